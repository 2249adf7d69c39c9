"""Check before a lab is started that there is room for it: in memory, for processes and threads, for open files.

What Linux says is held against what ranks were measured to take.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator

from labkit.cluster import cgroups, process_limit
from labkit.floor import time_limits, words
from labkit.floor.errors import LabError

MiB = 1 << 20
LAB = 200 * MiB  # torch, once for all ranks, the controller and the kernel's client: benchmarks/start.py
RANK = 60 * MiB  # of its own, with a small model in training
CUDA = 523 * MiB  # of its own where it uses a GPU
CONTEXT = 1078 * MiB  # on the GPU, before it holds a tensor; both were seen on an H200
CONTROLLER = 150  # files that it has open beside those for each rank; the kernel has fewer
LINKS = 8  # files that it has open for each rank


def check(ranks: int) -> None:
    """Raise `LabError` where so many ranks have no room, as far as Linux tells."""
    _check_memory(ranks, RANK)
    process_limit.check(ranks)
    _check_files(ranks)


def _check_memory(ranks: int, each: int) -> None:
    there, whose = min(_free(), default=(None, ""))
    needed = LAB + ranks * each
    if there is None or there >= needed:
        return
    fewer = [n for n in (2, 1) if n < ranks and there >= LAB + n * each]
    raise LabError(
        f"{whose} has {words.nbytes(there)} of memory left, and {words.count(ranks, 'rank')} need about "
        f"{words.nbytes(needed)}. Close other notebooks (Kernel, Shut Down Kernel)"
        + (f", or call start({fewer[0]})." if fewer else " and call start() again.")
    )


def check_gpu(ranks: int, gpus: int) -> None:
    """Check the same for ranks that use GPUs: the host's memory, and that of the fullest GPU where they share it."""
    _check_memory(ranks, CUDA)
    free = [int(line) * MiB for line in _asked_gpus().split() if line.isdigit()]
    each = -(-ranks // gpus)
    if each == 1 or not free or min(free) >= each * CONTEXT:
        return
    fit = min(free) // CONTEXT * gpus
    instead = f"Call start({fit}), or" if fit else "End what else runs there (nvidia-smi names it), or call"
    raise LabError(
        f"A GPU has {words.nbytes(min(free))} of its memory left, and the {each} ranks that share it need about "
        f'{words.nbytes(each * CONTEXT)} before they hold anything. {instead} start(backend="gloo") for CPU ranks.'
    )


def _check_files(ranks: int) -> None:
    """Let this process and those that it starts have so many files open as the controller of these ranks will have."""
    if sys.platform == "win32":
        return
    import resource  # Windows has none

    needed = CONTROLLER + ranks * LINKS
    soft, hard = (math.inf if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    if hard < needed:
        raise LabError(
            f"A process may have no more than {hard} files open here, and one of a lab with "
            f"{words.count(ranks, 'rank')} needs about {needed}. "
            "Have that limit raised (ulimit -n), and start the notebook again."
        )
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _asked_gpus() -> str:
    """Return the MiB free on each GPU that the learner sees, a line each; "" where nvidia-smi does not tell."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(
            [*command, *(["-i", chosen] if chosen else [])],
            capture_output=True,
            text=True,
            timeout=time_limits.NVIDIA_SMI,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout if asked.returncode == 0 else ""


def _free() -> Iterator[tuple[int, str]]:
    """Yield how many bytes are free, and where: on the machine, and in each group that limits this process's memory."""
    available = cgroups.counts(cgroups.ROOT / "proc/meminfo").get("MemAvailable:")
    if available is not None:
        yield 1024 * available, "This machine"
    for group in cgroups.groups():
        free = group.free()
        if free is not None:
            yield free, "This notebook's container"
