"""Ask what this machine is, of whatever the workbook needs; `findings` judges the answers.

Torch is not imported here: a process of its own is asked, with a time limit, as is each other program. What a `quick`
look leaves out keeps its default.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labkit.cluster import cgroups, memory_check, process_limit
from labkit.cluster.reaper import MPS, send
from labkit.cluster.reaper import __file__ as REAPER
from labkit.cluster.rundir import TAG, RunDir, choose_rundir
from labkit.faces import my_notebooks
from labkit.floor import time_limits
from labkit.floor.errors import LabError

NAME = "collectives-workbook"
PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
ELSEWHERE = {  # environment variables by which start() starts no ranks of its own here, and what each does
    "LABKIT_PROFILE": "its profile says where",
    "LABKIT_SHARED": "it uses a lab that runs",
}
SETTINGS = (*ELSEWHERE, "CUDA_VISIBLE_DEVICES", "PYTHONOPTIMIZE")  # environment variables
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Torch:
    """What torch says in a process that imports it: see `labkit.rank.torch_facts`."""

    version: str
    gpus: int
    nccl: tuple[int, ...] = ()
    gloo: bool = True
    warned: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi tells it: `left` are the bytes that are free, None where it tells none."""

    name: str
    left: int | None = None


@dataclass(frozen=True)
class Machine:
    """A machine and an environment of Python, as far as the workbook cares; the defaults are those of one that is well.

    `refused` is what start() says of the place for a run's files, `sockets` and `loopback` are why no process can be
    reached there; each is "" where all is well.
    """

    system: str = "Linux"
    release: str = "6.1.0"
    processor: str = "x86_64"
    container: bool = False
    wsl: bool = False
    pidfds: bool = True
    python: str = "3.12.3"
    executable: str = "/venv/bin/python"
    wanted_python: str = ">=3.11"
    wanted: Mapping[str, str] = field(default_factory=dict)  # versions that pyproject.toml allows, by package
    installed: Mapping[str, str] = field(default_factory=dict)  # versions, by package
    made: str = ""  # the Python of this clone's .venv, where that is another one
    torch_build: str = "cpu"  # "CUDA 13.0", "ROCm 6.4"; "" where there is no torch
    torch: Torch | None = None
    no_torch: str = ""  # why torch says nothing of the above
    driver: str = ""  # NVIDIA's
    gpus: tuple[Gpu, ...] = ()
    no_gpus: str = ""  # why nvidia-smi tells of none
    mps: bool = False
    memory: tuple[tuple[int, str], ...] = ()  # bytes left, and whose
    cores: float = 4
    tasks: tuple[process_limit.Limit, ...] = ()
    files: tuple[float, float] = (1024, math.inf)
    place: str = "/tmp"
    refused: str = ""
    sockets: str = ""
    disk: int = 1 << 34  # bytes free there
    shared_memory: int = 1 << 34  # bytes; 0 where there is none that this user may write to
    loopback: str = ""
    jupyter: str = ""  # the folder that Jupyter cannot write to, "" where it can
    settings: Mapping[str, str] = field(default_factory=dict)
    folder: str = "my-notebooks"
    copies: int = 37  # notebooks in it; 0 where there is no such folder
    labs: tuple[int, ...] = ()  # of this user: the processes that own them
    left: tuple[str, ...] = ()  # folders of labs whose processes have ended

    @property
    def usable(self) -> int:
        """How many GPUs torch can use."""
        return self.torch.gpus if self.torch else 0


def ask(quick: bool = False) -> Machine:
    """Return what this machine is; `quick` asks no program and takes some tenths of a second."""
    wanted_python, wanted = _wanted()
    place, refused = _place()
    rows, no_gpus = ([], "") if quick else memory_check.ask_gpus("name", "driver_version", "memory.free")
    torch, no_torch = (None, "") if quick else ask_torch()
    folder = my_notebooks.default_folder(Path())
    running, left = ((), ()) if quick else labs_of_this_user(place)
    return Machine(
        system=platform.system(),
        release=platform.release(),
        processor=platform.machine(),
        container=_in_container(),
        wsl="microsoft" in platform.release().lower(),
        pidfds=_pidfds(),
        python=platform.python_version(),
        executable=sys.executable,
        wanted_python=wanted_python,
        wanted=wanted,
        installed=_installed([NAME, *wanted, "notebook"]),
        made=_made(),
        torch_build=_torch_build(),
        torch=torch,
        no_torch=no_torch,
        driver=rows[0][1] if rows else _driver(),
        gpus=tuple(Gpu(name, int(mib) * memory_check.MiB if mib.isdigit() else None) for name, _, mib in rows),
        no_gpus=no_gpus,
        mps=shutil.which(MPS) is not None,
        memory=tuple(memory_check.free()),
        cores=_cores(),
        tasks=tuple(process_limit.limits()),
        files=memory_check.files(),
        place=place,
        refused=refused,
        sockets=_no_sockets(place),
        disk=shutil.disk_usage(place).free if place else 0,
        shared_memory=shutil.disk_usage(SHARED_MEMORY).total if os.access(SHARED_MEMORY, os.W_OK) else 0,
        loopback=_unreachable(socket.AF_INET, ("127.0.0.1", 0)),
        jupyter=_unwritable(),
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
        folder=str(folder),
        copies=len(list(folder.glob("*.ipynb"))) if my_notebooks.is_copies(folder) else 0,
        labs=running,
        left=left,
    )


def ask_torch() -> tuple[Torch | None, str]:
    """Ask torch in a process of its own, or say why it does not tell."""
    command = [sys.executable, "-m", "labkit.rank.torch_facts"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=time_limits.TORCH_TELLS)
        told = json.loads(asked.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return None, f"it was not imported in {time_limits.TORCH_TELLS:.0f} s"
    except (ValueError, IndexError):
        return None, (asked.stderr.strip().splitlines() or [f"its process ended with {asked.returncode}"])[-1]
    return Torch(**{**told, "nccl": tuple(told["nccl"])}), ""


# -- Python and its packages --------------------------------------------------------------------------------------


def _wanted() -> tuple[str, dict[str, str]]:
    """Return which Python and which packages pyproject.toml allows; no packages where it is not beside labkit."""
    with contextlib.suppress(OSError, ImportError):
        import tomllib  # Python before 3.11 has none

        project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
        needs = [*project["dependencies"], *project["optional-dependencies"]["lab"]]
        return project["requires-python"], dict(re.findall(r"^([\w.-]+)(.*)", need)[0] for need in needs)
    return ">=3.11", {}


def _installed(names: list[str]) -> dict[str, str]:
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _made() -> str:
    venv = PYPROJECT.with_name(".venv")
    python = venv / "bin" / "python"
    return str(python) if python.exists() and not venv.samefile(sys.prefix) else ""


def _torch_build() -> str:
    """Read in torch's files what it was built for, which its package's version may not say, without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return ""
    with contextlib.suppress(OSError):
        said = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
        for name, called in (("cuda", "CUDA"), ("hip", "ROCm")):
            if built := re.search(rf"^{name}\b.*= '(\d+\.\d+)", said, re.MULTILINE):
                return f"{called} {built[1]}"
    return "cpu"


# -- the machine ----------------------------------------------------------------------------------------------------


def _in_container() -> bool:
    """Tell whether this looks like a container; one that hides it well counts as none."""
    signs = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
    return any(map(os.path.exists, signs)) or bool({"container", "KUBERNETES_SERVICE_HOST"} & os.environ.keys())


def _pidfds() -> bool:
    """Tell whether Linux gives handles on processes, without which the lab signals none."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _driver() -> str:
    """Return the version of NVIDIA's driver as Linux tells it; "" where it does not, as under WSL."""
    with contextlib.suppress(OSError):
        said = Path("/proc/driver/nvidia/version").read_text()
        if found := re.search(r"Kernel Module.*?\s(\d{3,}[\d.]*)\s", said):
            return found[1]
    return ""


def _cores() -> float:
    here = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(here, cgroups.cores() or math.inf)


def _place() -> tuple[str, str]:
    """Return the folder in which start() would make a run's, or why it would refuse."""
    try:
        return str(choose_rundir().path.parent), ""
    except LabError as error:
        return "", str(error)


def _no_sockets(place: str) -> str:
    """Say why processes cannot meet at a Unix socket in a folder; "" where they can, or need not."""
    if not place or sys.platform != "linux":
        return ""
    try:
        with tempfile.TemporaryDirectory(prefix="labkit-doctor-", dir=place) as folder:
            return _unreachable(socket.AF_UNIX, f"{folder}/s")
    except OSError as error:
        return str(error)


def _unreachable(family: socket.AddressFamily, address: str | tuple[str, int]) -> str:
    """Say why processes cannot meet at a socket of this address; "" where they can."""
    try:
        with socket.socket(family) as listener, socket.socket(family) as caller:
            listener.bind(address)
            listener.listen()
            caller.settimeout(time_limits.SOCKETS_CONNECT)
            caller.connect(listener.getsockname())
    except OSError as error:
        return str(error)
    return ""


def _unwritable() -> str:
    """Return the folder in which Jupyter keeps what a kernel is reached by, where it can neither write nor make it."""
    named = os.environ.get("JUPYTER_RUNTIME_DIR") or os.environ.get("JUPYTER_DATA_DIR")
    folder = Path(named or os.path.expanduser("~/.local/share/jupyter"))
    there = next(parent for parent in (folder, *folder.absolute().parents) if os.path.exists(parent))
    return "" if os.access(there, os.W_OK) else str(folder)


# -- this user's labs -----------------------------------------------------------------------------------------------


def labs_of_this_user(place: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return who owns the labs that this user runs here, and the folders that nobody will remove any more.

    Each lab has a reaper, which names its owner and its folder on its command line, makes the folder, and ends last.
    A folder without one is left behind, unless something of its run lives.
    """
    reapers = dict(_reapers())
    folders = sorted(Path(place).glob("labkit-*")) if place else []
    left = [str(folder) for folder in folders if str(folder) not in reapers and _left_behind(folder)]
    return tuple(sorted(owner for owner in reapers.values() if owner > 0)), tuple(left)


def _reapers() -> Iterator[tuple[str, int]]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            said = (process / "cmdline").read_text().split("\0")
            if REAPER in said and process.stat().st_uid == os.getuid():
                owner, folder = said[said.index(REAPER) + 1 :][:2]
                yield folder, int(owner)


def _left_behind(folder: Path) -> bool:
    """Tell whether this is the folder of a run of this user's of which no process lives, in no container either."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        tag = json.loads((folder / "address.json").read_text())["tag"]
        with socket.socket(socket.AF_UNIX) as caller, contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            caller.connect(RunDir(folder, tag).socket)
            return False
        return folder.stat().st_uid == os.getuid() and not send(f"{TAG}={tag}".encode())
    return False
