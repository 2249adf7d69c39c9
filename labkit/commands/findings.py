"""Judge what a machine is: each thing that the workbook needs is fine, or wants a warning, or fails, and what to do.

Pure: `machine` asks, and tests hand in machines that we do not have.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labkit.cluster import memory_check, process_limit
from labkit.cluster.memory_check import CUDA, NO_SMI, RANK
from labkit.commands.machine import ELSEWHERE, NAME, Machine
from labkit.floor.errors import LabError
from labkit.floor.words import count, listed, nbytes

OK, WARN, FAIL = LEVELS = ("ok", "warn", "fail")
RANKS, FEWEST = 4, 2  # what lessons start, and with how many most of them still make sense
# The oldest driver on which CUDA's programs of a major version run, by NVIDIA's minor-version compatibility.
DRIVERS = {12: 525, 13: 580}
FRONT = ("jupyterlab", "notebook", "ipykernel", "ipython", "ipywidgets", "ipyparallel")  # what a notebook runs on
INSTALL = "pip install -e '.[lab]' in a clone of the repository, or make lab"
SMALL_SHARED_MEMORY = 64 << 20  # Docker's own choice


@dataclass(frozen=True)
class Finding:
    """One line of a report: `level` is "ok", "warn" or "fail", and `do` what to do about it, "" where it is fine."""

    level: str
    about: str
    says: str
    do: str = ""


def judge(m: Machine) -> list[Finding]:
    """Judge a machine, thing by thing, unless it was asked with another Python than the workbook's own."""
    if m.made and m.wanted.keys() - m.installed.keys() - {"jupyterlab"}:
        says = f"{m.executable} lacks packages that the workbook needs; its own Python is {m.made}"
        return [Finding(FAIL, "python", says, f"Ask with that one: {m.made} -m labkit doctor.")]
    judges = [_system, _python, _packages, _torch, _gpu, _memory, _limits, _meeting, _settings, _folders]
    return [finding for judge in judges for finding in judge(m)]


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


def _room(about: str, check: Callable[[int], object], well: str) -> Finding:
    """Let one of start()'s checks say whether there is room for the ranks: it warns where fewer have room."""
    for level, ranks in ((FAIL, FEWEST), (WARN, RANKS)):
        try:
            check(ranks)
        except LabError as error:
            return Finding(level, about, *split(str(error)))
    return Finding(OK, about, well)


# -- what runs ------------------------------------------------------------------------------------------------------


def _system(m: Machine) -> Iterator[Finding]:
    where = ", ".join(["WSL"] * m.wsl + ["in a container"] * m.container)
    says = f"{m.system} {m.release.split('-')[0]} on {m.processor}{f' ({where})' if where else ''}"
    if m.system != "Linux":
        says += ": the workbook has run on Linux alone"
        do = (
            "Ranks are started one by one, each with its own torch. A stuck rank may not be freed: lab.stop() and "
            "start() begin anew. Linux in a container or a virtual machine has all of it."
        )
        yield Finding(WARN, "system", says, do)
    elif not m.pidfds:
        says += " gives no handles on processes (pidfd_open), so ranks cannot be forked"
        do = "Use Linux 5.3 or newer, which is WSL 2 on Windows. In a container, its runtime has to allow pidfd_open."
        yield Finding(FAIL, "system", says, do)
    else:
        yield Finding(OK, "system", says)


def _python(m: Machine) -> Iterator[Finding]:
    says = f"{m.python}, {m.executable}"
    if outside(m.python, m.wanted_python):
        says += f"; the workbook needs {m.wanted_python}"
        do = "Name another Python, for an environment that is made anew: make clean, then make lab PYTHON=python3.12."
        yield Finding(FAIL, "python", says, do)
    else:
        yield Finding(OK, "python", says)


def _packages(m: Machine) -> Iterator[Finding]:
    """Hold the installed versions against pyproject.toml's ranges, but torch's, which has a line of its own."""
    if NAME not in m.installed:
        says = f"{NAME} is not installed here, so ipyparallel does not find what starts its ranks"
        yield Finding(FAIL, "workbook", says, f"Install it: {INSTALL}.")
    needed = sorted(m.wanted.keys() - {"torch", "jupyterlab"})
    if missing := [name for name in needed if name not in m.installed]:
        yield Finding(FAIL, "packages", f"not installed: {listed(missing)}", f"Install them: {INSTALL}.")
    for name in needed:
        yield from _version(m, name, name)
    if "jupyterlab" in m.installed:
        have = ", ".join(f"{name} {m.installed[name]}" for name in FRONT if name in m.installed)
        yield from _version(m, "jupyterlab", "front end") or [Finding(OK, "front end", have)]
    else:
        instead = f"Notebook {m.installed['notebook']}" if "notebook" in m.installed else "no JupyterLab"
        says = f"{instead} in this environment; the workbook is tested in JupyterLab alone"
        do = f"Install it ({INSTALL}), or open the notebooks elsewhere with {m.executable} as their kernel."
        yield Finding(WARN, "front end", says, do)


def _version(m: Machine, name: str, about: str) -> list[Finding]:
    """Find fault with the version of a package that is installed, if it is outside what the workbook takes."""
    has, wanted = m.installed.get(name, ""), m.wanted.get(name, "")
    side = outside(has, wanted) if has else ""
    says, do = f"{name} {has} is {side} than the workbook takes, {wanted}", f"pip install '{name}{wanted}'"
    if side == "older":
        return [Finding(FAIL, about, says, f"{do}.")]
    return [Finding(WARN, about, says, f"{do}, if something does not work: it was not tried.")] if side else []


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
    begins = re.split(r"[^\d.]", version)[0].split(".")
    return tuple([*(int(n) for n in begins if n), 0, 0, 0, 0][:4])


def _torch(m: Machine) -> Iterator[Finding]:
    version = m.torch.version if m.torch else m.installed.get("torch", "")
    if not m.torch_build:
        yield Finding(FAIL, "torch", "torch is not installed", f"Install it: {INSTALL}.")
    elif found := _version(m, "torch", "torch"):
        yield from found
    elif m.no_torch:
        do = "python -c 'import torch' shows all of it. Install torch anew: pip install --force-reinstall torch."
        yield Finding(FAIL, "torch", f"torch {version} cannot be imported: {m.no_torch}", do)
    elif m.torch and not m.torch.gloo:
        do = "Install PyTorch's own build: pip install --force-reinstall torch."
        yield Finding(FAIL, "torch", f"torch {version} has no Gloo, which joins CPU ranks", do)
    else:
        built = "CPUs alone" if m.torch_build == "cpu" else m.torch_build
        nccl = f", NCCL {'.'.join(map(str, m.torch.nccl))}" if m.torch and m.torch.nccl else ""
        yield Finding(OK, "torch", f"{version}, built for {built}{nccl}")


# -- GPUs -----------------------------------------------------------------------------------------------------------


def _gpu(m: Machine) -> Iterator[Finding]:
    """Say what becomes of the GPUs; without one, or with one that cannot be used, ranks run on CPUs."""
    names = Counter(gpu.name for gpu in m.gpus)
    has = listed([f"{n} × {name}" for name, n in names.items()]) or "an NVIDIA driver"
    has += f", driver {m.driver}" if m.driver else ""
    kind, _, built = m.torch_build.partition(" ")
    needs = DRIVERS.get(numbers(built)[0], 0)
    warned = m.torch.warned if m.torch else ""
    says, do = has, ""
    if kind == "ROCm":
        says = f"torch is built for {m.torch_build}; the workbook was never run with it"
        do = 'If ranks cannot be joined, call start(backend="gloo") for CPU ranks.'
    elif m.usable:
        if warned:
            says = f"{has}; torch warns: {warned}"
            do = 'If ranks fail on it, call start(backend="gloo") for CPU ranks.'
    elif not m.driver and not m.gpus and m.no_gpus in ("", NO_SMI):
        says = "no NVIDIA GPU: ranks run on CPUs, with Gloo"
    elif m.settings.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        says = f"{has}, hidden by CUDA_VISIBLE_DEVICES: ranks run on CPUs, with Gloo"
    elif m.no_gpus not in ("", NO_SMI):
        says = f"{m.no_gpus}: ranks run on CPUs, with Gloo"
        do = "If there is a GPU to be used, restart the machine, or reinstall NVIDIA's driver."
    elif kind == "cpu":
        says = f"{has}; but torch is built for CPUs alone, so ranks run on CPUs"
        do = f"To use the GPU, install a torch built for CUDA: PyTorch's installation page names the index. {_fits(m)}"
    elif numbers(m.driver)[0] < needs:
        says = f"{has}; but torch is built for {m.torch_build}, which needs driver {needs} or newer"
        another = f"install another torch: PyTorch's installation page names the index. {_fits(m)}"
        do = f"Ranks run on CPUs. Update the driver, or {another}"
    elif m.torch:
        says = f"{has}; but torch cannot use it{f': {warned}' if warned else ''}"
        do = "Look at nvidia-smi. In a container, start it with its GPUs (docker run --gpus all)."
    yield Finding(WARN if do else OK, "gpu", says, do)


def _fits(m: Machine) -> str:
    """Say which builds of torch a driver takes.

    >>> _fits(Machine(driver="550.54.15"))
    'Driver 550.54.15 takes one for CUDA 12.'
    """
    most = max((cuda for cuda, driver in DRIVERS.items() if numbers(m.driver)[0] >= driver), default=0)
    return f"Driver {m.driver} takes one for CUDA {most}." if most else "Its driver has to be updated as well."


# -- room -----------------------------------------------------------------------------------------------------------


def _memory(m: Machine) -> Iterator[Finding]:
    each = CUDA if m.usable else RANK
    if m.memory:
        left, whose = min(m.memory)
        where = "here" if whose == "This machine" else "in this container"
        well = f"{nbytes(left)} left {where}; {RANKS} ranks need about {nbytes(memory_check.LAB + RANKS * each)}"
        yield _room("memory", lambda ranks: memory_check.check_memory(ranks, each, m.memory), well)
    free = [gpu.left for gpu in m.gpus if gpu.left is not None]
    if m.usable == 1 and free:
        needed = f"{RANKS} ranks need about {nbytes(RANKS * memory_check.CONTEXT)} before they hold anything"
        well = f"{nbytes(min(free))} left; {needed}"
        yield _room("gpu memory", lambda ranks: memory_check.check_gpu_memory(ranks, 1, free), well)
    small = SMALL_SHARED_MEMORY if m.usable > 1 else 0
    if m.system == "Linux" and m.shared_memory <= small:
        says = f"/dev/shm holds {nbytes(m.shared_memory)}, and NCCL may need more between GPUs"
        if not m.shared_memory:
            says = "/dev/shm is not there, or not yours to write to: ranks that share memory use files"
        do = "In a container, have it mounted, and large enough: docker run --shm-size=1g."
        yield Finding(WARN, "shared memory", says, do)


def _limits(m: Machine) -> Iterator[Finding]:
    """Say how many cores, processes and open files there may be."""
    if m.cores < 1.5:
        says = f"{m.cores:.2g} core: {RANKS} ranks take turns on it, and times say little"
        do = "The workbook was tried on two cores and more. Give the machine or the container another, where you can."
        yield Finding(WARN, "cores", says, do)
    else:
        yield Finding(OK, "cores", f"{m.cores:.3g}")
    many = f"{min(limit.left for limit in m.tasks):,} more" if m.tasks else "any number of"
    well = f"{many} processes and threads may begin"
    yield _room("processes", lambda ranks: process_limit.check(ranks, m.tasks), well)
    soft, hard = ("any number" if n == math.inf else f"{n:,}" for n in m.files)
    well = f"a process may have {soft} open{'' if soft == hard else f', or {hard} where a lab needs more'}"
    yield _room("open files", lambda ranks: memory_check.check_files(ranks, m.files[1]), well)


def _meeting(m: Machine) -> Iterator[Finding]:
    """Say whether the lab's processes can meet: at Unix sockets among its temporary files, and at 127.0.0.1."""
    if m.refused:
        yield Finding(FAIL, "temporary files", *split(m.refused))
    elif m.sockets:
        says = f"{m.place} holds no Unix socket, at which ranks are reached ({m.sockets})"
        do = "Set TMPDIR to a folder on a disk of this machine, such as /tmp."
        yield Finding(FAIL, "temporary files", says, do)
    else:
        yield Finding(OK, "temporary files", f"{m.place}, {nbytes(m.disk)} free")
    if m.loopback:
        says = f"processes cannot reach each other at 127.0.0.1, as ranks do ({m.loopback})"
        do = "Bring the loopback interface up (ip link set lo up), or let the sandbox or firewall allow it."
        yield Finding(FAIL, "loopback", says, do)


# -- what a learner opens -------------------------------------------------------------------------------------------


def _settings(m: Machine) -> Iterator[Finding]:
    """Say what keeps Jupyter from starting, and what in the environment start() goes by."""
    if m.jupyter:
        do = "Set HOME, or JUPYTER_RUNTIME_DIR and JUPYTER_DATA_DIR, to folders that you may write to."
        yield Finding(WARN, "jupyter", f"Jupyter cannot write to {m.jupyter}, and does not start", do)
    if (optimize := m.settings.get("PYTHONOPTIMIZE", "")).isdigit() and int(optimize) > 1:
        says = f"PYTHONOPTIMIZE={optimize} drops docstrings, without which ipyparallel fails"
        yield Finding(FAIL, "environment", says, "Unset PYTHONOPTIMIZE where Jupyter is started.")
    for name, does in ELSEWHERE.items():
        if name in m.settings:
            yield Finding(OK, "environment", f"start() goes by {name}={m.settings[name]}: {does}")


def _folders(m: Machine) -> Iterator[Finding]:
    """Say where the learner's copies are, which labs run, and what others have left behind."""
    if m.copies:
        yield Finding(OK, "lessons", f"{count(m.copies, 'notebook')} in {m.folder}")
    else:
        do = "Make them: python -m labkit. If they are elsewhere, run this in that folder."
        yield Finding(WARN, "lessons", f"no copies of the lessons in {m.folder} yet", do)
    if m.labs:
        run = count(len(m.labs), "lab of yours runs, of process", "labs of yours run, of processes")
        yield Finding(OK, "labs", f"{run} {', '.join(map(str, m.labs))}")
    if m.left:
        says = f"left behind by labs whose processes have ended: {listed(m.left)}"
        yield Finding(WARN, "labs", says, f"Remove what they left: rm -r {' '.join(m.left)}")
