"""Judge what a machine is: each thing that the workbook needs is fine, or wants a warning, or fails, and what to do.

Pure: `machine` asks, and tests hand in machines that we do not have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labkit.cluster import memory_check, process_limit
from labkit.cluster.memory_check import CUDA, NO_SMI, RANK
from labkit.cluster.reaper import MPS
from labkit.commands.machine import ELSEWHERE, NAME, Machine
from labkit.floor.errors import LabError
from labkit.floor.words import count, listed, nbytes
from labkit.theory.gpu_sharing import MANY_A_GPU

OK, WARN, FAIL = LEVELS = ("ok", "warn", "fail")
RANKS, FEWEST = 4, 2  # what lessons start, and with how many most of them still make sense
# The oldest driver on which CUDA's programs of a major version run, by NVIDIA's minor-version compatibility.
DRIVERS = {11: 450, 12: 525, 13: 580}
FRONT = ("ipykernel", "ipython", "ipywidgets", "ipyparallel")  # what a notebook runs on; JupyterLab shows it
INSTALL = "pip install -e '.[lab]' in a clone of the repository, or make lab"
DRIVER_AGAIN = "If there is a GPU to be used, restart the machine, or reinstall NVIDIA's driver."
SMALL_SHARED_MEMORY = 64 << 20  # Docker's own choice


@dataclass(frozen=True)
class Finding:
    """One line of a report: `level` is "ok", "warn" or "fail", and `do` what to do about it, "" where it is fine."""

    level: str
    about: str
    says: str
    do: str = ""


def judge(machine: Machine) -> list[Finding]:
    """Judge a machine, thing by thing."""
    judges = [_system, _python, _packages, _torch, _gpu, _sharing, _memory, _cores, _tasks, _files, _place, _sockets]
    judges += [_jupyter, _environment, _copies, _labs]
    return [finding for judge in judges for finding in judge(machine)]


def worst(findings: list[Finding]) -> str:
    """Return the worst level among them."""
    return max((f.level for f in findings), key=LEVELS.index, default=OK)


def split(message: str) -> tuple[str, str]:
    """Split an error's message into what is the matter and what to do, which ends it.

    >>> split("This machine has 9 MiB left. Close other notebooks.")
    ('This machine has 9 MiB left', 'Close other notebooks.')
    """
    if "\n" in message:
        says, _, do = message.strip().rpartition("\n")
    else:
        says, do = (*re.split(r"(?<=\.) (?=[A-Z])", message, maxsplit=1), "")[:2]
    return says.rstrip("."), do


def _refused(check: Callable[[int], object], ranks: int = RANKS) -> str:
    """Return what one of start()'s checks says against so many ranks."""
    try:
        check(ranks)
    except LabError as error:
        return str(error)
    return ""


def _room(about: str, check: Callable[[int], object], well: str) -> Finding:
    """Let one of start()'s checks say whether there is room for the ranks: it warns where fewer have room."""
    if none := _refused(check, FEWEST):
        return Finding(FAIL, about, *split(none))
    if fewer := _refused(check):
        return Finding(WARN, about, *split(fewer))
    return Finding(OK, about, well)


# -- what runs ------------------------------------------------------------------------------------------------------


def _system(m: Machine) -> Iterator[Finding]:
    where = ", ".join(["WSL"] * m.wsl + ["in a container"] * m.container)
    says = f"{m.system} {m.release.split('-')[0]} on {m.processor}{f' ({where})' if where else ''}"
    if m.system != "Linux":
        yield Finding(
            WARN, "system", f"{says}: the workbook has run on Linux alone",
            "Ranks are started one by one, each with its own torch. A stuck rank may not be freed: lab.stop() and "
            "start() begin anew. Linux in a container or a virtual machine has all of it.",
        )  # fmt: skip
    elif not m.pidfds:
        yield Finding(
            FAIL, "system", f"{says} gives no handles on processes (pidfd_open), so ranks cannot be forked",
            "Use Linux 5.3 or newer"
            + (", which is WSL 2 on Windows." if m.wsl else ". In a container, its runtime has to allow pidfd_open."),
        )  # fmt: skip
    else:
        yield Finding(OK, "system", says)


def _python(m: Machine) -> Iterator[Finding]:
    says = f"{m.python}, {m.executable}"
    if outside(m.python, m.wanted_python):
        yield Finding(
            FAIL, "python", f"{says}; the workbook needs {m.wanted_python}",
            "Name another Python, for an environment that is made anew: make clean, then make lab PYTHON=python3.12.",
        )  # fmt: skip
    else:
        yield Finding(OK, "python", says)


def _packages(m: Machine) -> Iterator[Finding]:
    """Hold the installed versions against pyproject.toml's ranges, but torch's, which has a line of its own."""
    if NAME not in m.installed:
        yield Finding(
            FAIL, "workbook", f"{NAME} is not installed here, so ipyparallel does not find what starts its ranks",
            f"Install it: {INSTALL}.",
        )  # fmt: skip
    needed = sorted(m.wanted.keys() - {"torch", "jupyterlab"})
    if missing := [name for name in needed if name not in m.installed]:
        yield Finding(FAIL, "packages", f"not installed: {listed(missing)}", f"Install them: {INSTALL}.")
    for name in needed:
        if name in m.installed:
            yield from _version(m, name, name)
    have = [f"{name} {m.installed[name]}" for name in ("jupyterlab", "notebook", *FRONT) if name in m.installed]
    if "jupyterlab" in m.installed:
        yield from list(_version(m, "jupyterlab", "front end")) or [Finding(OK, "front end", ", ".join(have))]
        return
    instead = f"Notebook {m.installed['notebook']}" if "notebook" in m.installed else "no JupyterLab"
    yield Finding(
        WARN, "front end", f"{instead} in this environment; the workbook is tested in JupyterLab alone",
        f"Install it ({INSTALL}), or open the notebooks elsewhere with {m.executable} as their kernel.",
    )  # fmt: skip


def _version(m: Machine, name: str, about: str) -> Iterator[Finding]:
    wanted = m.wanted.get(name, "")
    if name not in m.installed:
        yield Finding(FAIL, about, f"{name} is not installed", f"Install it: {INSTALL}.")
    elif side := outside(m.installed[name], wanted):
        low = side == "older"
        yield Finding(
            FAIL if low else WARN, about, f"{name} {m.installed[name]} is {side} than the workbook takes, {wanted}",
            f"pip install '{name}{wanted}'" + ("." if low else ", if something does not work: it was not tried."),
        )  # fmt: skip


def outside(version: str, wanted: str) -> str:
    """Say whether a version is "older" or "newer" than a range such as ">=2.11,<2.16", or "" where it is inside.

    >>> outside("2.8.0", ">=2.11,<2.16"), outside("2.16.0a0", ">=2.11,<2.16"), outside("2.13.0+cpu", ">=2.11,<2.16")
    ('older', 'newer', '')
    """
    has = numbers(version)
    for sign, bound in re.findall(r"(>=|<)\s*([\d.]+)", wanted):
        if sign == ">=" and has < numbers(bound):
            return "older"
        if sign == "<" and has >= numbers(bound):
            return "newer"
    return ""


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers, four of them, to be compared.

    >>> numbers("2.13.0+cpu") == numbers("2.13")
    True
    """
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple([*map(int, found[0].split(".")), 0, 0, 0, 0][:4]) if found else (0, 0, 0, 0)


def _torch(m: Machine) -> Iterator[Finding]:
    version = m.torch.version if m.torch else m.installed.get("torch", "")
    built = {"cpu": "built for CPUs alone"}.get(m.torch_build, f"built for {_built(m)}")
    if not m.torch_build:
        yield Finding(FAIL, "torch", "torch is not installed", f"Install it: {INSTALL}.")
    elif found := list(_version(m, "torch", "torch")):
        yield from found
    elif m.no_torch:
        yield Finding(
            FAIL, "torch", f"torch {version} cannot be imported: {m.no_torch}",
            "python -c 'import torch' shows all of it. Install torch anew: pip install --force-reinstall torch.",
        )  # fmt: skip
    elif m.torch and not m.torch.gloo:
        yield Finding(
            FAIL, "torch", f"torch {version} has no Gloo, which joins CPU ranks",
            "Install PyTorch's own build: pip install --force-reinstall torch.",
        )  # fmt: skip
    else:
        yield Finding(OK, "torch", f"{version}, {built}")


def _built(m: Machine) -> str:
    """Say what torch was built for.

    >>> _built(Machine(torch_build="cuda 13.0"))
    'CUDA 13.0'
    """
    return m.torch_build.replace("cuda", "CUDA").replace("rocm", "ROCm")


# -- GPUs -----------------------------------------------------------------------------------------------------------


def _gpu(m: Machine) -> Iterator[Finding]:
    """Say what becomes of the GPUs; without one, or with one that cannot be used, ranks run on CPUs."""
    has = listed([f"{n} × {name}" for name, n in _counted(m).items()]) or "an NVIDIA driver"
    driver = f"{has}, driver {m.driver}" if m.driver else has
    kind, _, built = m.torch_build.partition(" ")
    needs = DRIVERS.get(numbers(built)[0], 0)
    hidden = m.settings.get("CUDA_VISIBLE_DEVICES")
    usable = m.torch is not None and m.torch.usable and m.torch.gpus > 0
    if kind == "rocm":
        yield Finding(
            WARN, "gpu", f"torch is built for {_built(m)}; the workbook was never run with it",
            'If ranks cannot be joined, call start(backend="gloo") for CPU ranks.',
        )  # fmt: skip
    elif usable and m.torch and m.torch.warned:
        yield Finding(
            WARN, "gpu", f"{driver}; torch warns: {m.torch.warned[0]}",
            'If ranks fail on it, call start(backend="gloo") for CPU ranks.',
        )  # fmt: skip
    elif usable:
        yield Finding(OK, "gpu", driver)
    elif not m.driver and not m.gpus and m.no_gpus in ("", NO_SMI):
        yield Finding(OK, "gpu", "no NVIDIA GPU: ranks run on CPUs, with Gloo")
    elif not m.driver and not m.gpus:
        yield Finding(WARN, "gpu", f"{m.no_gpus}: ranks run on CPUs, with Gloo", DRIVER_AGAIN)
    elif hidden in ("", "-1"):
        yield Finding(OK, "gpu", f"{driver}, hidden by CUDA_VISIBLE_DEVICES: ranks run on CPUs, with Gloo")
    elif kind == "cpu":
        yield Finding(
            WARN, "gpu", f"{driver}; but torch is built for CPUs alone, so ranks run on CPUs",
            f"To use the GPU, install a torch built for CUDA: PyTorch's installation page names the index. {_fits(m)}",
        )  # fmt: skip
    elif m.driver and numbers(m.driver)[0] < needs:
        yield Finding(
            WARN, "gpu", f"{driver}; but torch is built for {_built(m)}, which needs driver {needs} or newer",
            "Ranks run on CPUs. Update the driver, or install another torch: PyTorch's installation page names "
            f"the index. {_fits(m)}",
        )  # fmt: skip
    elif m.torch:
        why = f": {m.torch.warned[0]}" if m.torch.warned else ""
        yield Finding(
            WARN, "gpu", f"{driver}; but torch cannot use it{why}",
            "Look at nvidia-smi. In a container, start it with its GPUs (docker run --gpus all).",
        )  # fmt: skip
    elif m.no_gpus:
        yield Finding(WARN, "gpu", f"{driver}; but {m.no_gpus}", DRIVER_AGAIN)
    elif kind:
        yield Finding(OK, "gpu", driver)


def _counted(m: Machine) -> dict[str, int]:
    names = [gpu.name for gpu in m.gpus]
    return {name: names.count(name) for name in names}


def _fits(m: Machine) -> str:
    """Say which builds of torch a driver takes.

    >>> _fits(Machine(driver="550.54.15"))
    'Driver 550.54.15 takes one for CUDA 12.'
    """
    most = max((cuda for cuda, driver in DRIVERS.items() if numbers(m.driver)[0] >= driver), default=0)
    return f"Driver {m.driver} takes one for CUDA {most}." if most else "Its driver has to be updated as well."


def _sharing(m: Machine) -> Iterator[Finding]:
    """Say how ranks reach each other on GPUs: whether they share one, under MPS or by turns."""
    if m.torch is None or not (m.torch.usable and m.torch.gpus and m.torch.nccl):
        return
    gpus, nccl = m.torch.gpus, ".".join(map(str, m.torch.nccl))
    if gpus > 1:
        yield Finding(OK, "nccl", f"NCCL {nccl}: start() gives each of {gpus} GPUs a rank")
    else:
        many = m.torch.nccl >= MANY_A_GPU
        how = "takes several ranks on one GPU" if many else "ranks on one GPU reach each other through sockets"
        yield Finding(OK, "nccl", f"NCCL {nccl}: {how}")
    if m.mps:
        yield Finding(OK, "mps", f"{MPS} is there: ranks that share a GPU compute at the same time")
    elif gpus == 1:
        yield Finding(
            WARN, "mps", f"no {MPS}: {RANKS} ranks that share the GPU take turns, and small messages are slow",
            "It comes with NVIDIA's driver: install the driver's programs. In a container, ask for them "
            "(NVIDIA_DRIVER_CAPABILITIES=compute,utility).",
        )  # fmt: skip


# -- room -----------------------------------------------------------------------------------------------------------


def _memory(m: Machine) -> Iterator[Finding]:
    gpus = m.torch.gpus if m.torch and m.torch.usable else 0
    each = CUDA if gpus else RANK
    if not m.memory:
        yield Finding(OK, "memory", "this system does not say how much is left")
        return
    left, whose = min(m.memory)
    limit = f", whose limit is {nbytes(m.memory_limit)}" if m.memory_limit is not None and "container" in whose else ""
    where = "here" if whose == "This machine" else "in this container"
    needed = memory_check.LAB + RANKS * each
    yield _room(
        "memory",
        lambda ranks: memory_check.check_memory(ranks, each, m.memory),
        f"{nbytes(left)} left {where}{limit}; {RANKS} ranks need about {nbytes(needed)}",
    )
    free = [gpu.left for gpu in m.gpus if gpu.left is not None]
    if gpus == 1 and free:
        yield _room(
            "gpu memory",
            lambda ranks: memory_check.check_gpu_memory(ranks, 1, free),
            f"{nbytes(min(free))} left; {RANKS} ranks need about {nbytes(RANKS * memory_check.CONTEXT)} before they "
            "hold anything",
        )
    if m.system == "Linux" and m.shared_memory is None:
        yield Finding(
            WARN, "shared memory", "/dev/shm is not there, or not yours to write to",
            "Ranks that share memory then use files. In a container, have it mounted (docker run --shm-size=1g).",
        )  # fmt: skip
    elif m.system == "Linux" and gpus > 1 and m.shared_memory is not None and m.shared_memory <= SMALL_SHARED_MEMORY:
        yield Finding(
            WARN, "shared memory", f"/dev/shm holds {nbytes(m.shared_memory)}, and NCCL may need more between GPUs",
            "In a container, give it more: docker run --shm-size=1g.",
        )  # fmt: skip


def _cores(m: Machine) -> Iterator[Finding]:
    if m.cores < 1.5:
        yield Finding(
            WARN, "cores", f"{m.cores:.2g} core: {RANKS} ranks take turns on it, and times say little",
            "The workbook was tried on two cores and more. Give the machine or the container another, where you can.",
        )  # fmt: skip
    else:
        yield Finding(OK, "cores", f"{m.cores:.3g}")


def _tasks(m: Machine) -> Iterator[Finding]:
    least = min(m.tasks, key=lambda limit: limit.left, default=None)
    most = f"{least.left:,} more processes and threads may begin" if least else "any number of processes and threads"
    yield _room("processes", lambda ranks: process_limit.check(ranks, m.tasks), most)


def _files(m: Machine) -> Iterator[Finding]:
    soft, hard = ("any number" if n == math.inf else f"{n:,}" for n in m.files)
    more = "" if soft == hard else f", or {hard} where a lab needs more"
    most = f"a process may have {soft} open{more}"
    yield _room("open files", lambda ranks: memory_check.check_files(ranks, m.files[1]), most)


def _place(m: Machine) -> Iterator[Finding]:
    about = "temporary files"
    if m.refused:
        yield Finding(FAIL, about, *split(m.refused))
    elif m.system == "Linux" and m.sockets:
        yield Finding(
            FAIL, about, f"{m.place} holds no Unix socket, at which ranks are reached ({m.sockets})",
            "Set TMPDIR to a folder on a disk of this machine, such as /tmp.",
        )  # fmt: skip
    else:
        free = f"{nbytes(m.disk)} free" if m.disk is not None else "room enough"
        noexec = ", noexec (the lab runs nothing from there)" if m.noexec else ""
        yield Finding(OK, about, f"{m.place}, {free}{noexec}{'' if m.sockets else '; Unix sockets work there'}")


def _sockets(m: Machine) -> Iterator[Finding]:
    if m.loopback:
        yield Finding(
            FAIL, "loopback", f"processes cannot reach each other at 127.0.0.1, as ranks do ({m.loopback})",
            "Bring the loopback interface up (ip link set lo up), or let the sandbox or firewall allow it.",
        )  # fmt: skip


# -- what a learner opens -------------------------------------------------------------------------------------------


def _jupyter(m: Machine) -> Iterator[Finding]:
    if m.jupyter:
        yield Finding(
            WARN, "jupyter", f"Jupyter cannot write to {m.jupyter}, and does not start",
            "Set HOME, or JUPYTER_RUNTIME_DIR and JUPYTER_DATA_DIR, to folders that you may write to.",
        )  # fmt: skip


def _environment(m: Machine) -> Iterator[Finding]:
    if (optimize := m.settings.get("PYTHONOPTIMIZE", "")).isdigit() and int(optimize) > 1:
        yield Finding(
            FAIL, "environment", f"PYTHONOPTIMIZE={optimize} drops docstrings, without which ipyparallel fails",
            "Unset PYTHONOPTIMIZE where Jupyter is started.",
        )  # fmt: skip
    for name, does in ELSEWHERE.items():
        if name in m.settings:
            yield Finding(OK, "environment", f"start() goes by {name}={m.settings[name]}: {does}")


def _copies(m: Machine) -> Iterator[Finding]:
    if not m.lessons and not m.copies:
        yield Finding(
            WARN, "lessons", "the workbook's notebooks are not beside labkit, and no copies are here",
            "Clone the repository and install from there: pip install -e '.[lab]'.",
        )  # fmt: skip
    elif not m.copies:
        yield Finding(
            WARN, "lessons", f"no copies of the lessons in {m.folder} yet",
            "Make them: python -m labkit. If they are elsewhere, run this in that folder.",
        )  # fmt: skip
    else:
        yield Finding(OK, "lessons", f"{count(m.copies, 'notebook')} in {m.folder}")


def _labs(m: Machine) -> Iterator[Finding]:
    if m.labs:
        owners = f"process{'es' * (len(m.labs) > 1)} {', '.join(map(str, m.labs))}"
        yield Finding(OK, "labs", f"{count(len(m.labs), 'lab')} of yours run{'s' * (len(m.labs) == 1)}, of {owners}")
    if m.left:
        yield Finding(
            WARN, "labs", f"left behind by labs whose processes have ended: {listed(m.left)}",
            f"Remove what they left: rm -r {' '.join(m.left)}",
        )  # fmt: skip
