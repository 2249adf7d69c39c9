"""Check before a lab is started that there is room for it: in memory, for processes and threads, for open files.

What Linux says is held against what ranks were measured to take. A check may be given what another machine said.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence

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
NO_SMI = "nvidia-smi is not on this machine"


def check(ranks: int) -> None:
    """Raise `LabError` where so many ranks have no room, as far as Linux tells."""
    check_memory(ranks, RANK)
    process_limit.check(ranks)
    _allow_files(ranks)


def check_memory(ranks: int, each: int, left: Iterable[tuple[int, str]] | None = None) -> None:
    """Check that so many ranks of so many bytes fit into what is `left`, see `free`."""
    there, whose = min(free() if left is None else left, default=(None, ""))
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
    check_memory(ranks, CUDA)
    rows, _ = ask_gpus("memory.free")
    check_gpu_memory(ranks, gpus, [int(free) * MiB for (free,) in rows if free.isdigit()])


def check_gpu_memory(ranks: int, gpus: int, left: Sequence[int]) -> None:
    """Check that ranks that share GPUs fit into what is left on the fullest of them, in bytes; none where unknown."""
    each = -(-ranks // gpus)
    if each == 1 or not left or min(left) >= each * CONTEXT:
        return
    fit = min(left) // CONTEXT * gpus
    instead = f"Call start({fit}), or" if fit else "End what else runs there (nvidia-smi names it), or call"
    raise LabError(
        f"A GPU has {words.nbytes(min(left))} of its memory left, and the {each} ranks that share it need about "
        f'{words.nbytes(each * CONTEXT)} before they hold anything. {instead} start(backend="gloo") for CPU ranks.'
    )


def check_files(ranks: int, most: float) -> int:
    """Return how many files the controller of so many ranks has open, and check that a process may have `most`."""
    needed = CONTROLLER + ranks * LINKS
    if most < needed:
        raise LabError(
            f"A process may have no more than {most} files open here, and one of a lab with "
            f"{words.count(ranks, 'rank')} needs about {needed}. "
            "Have that limit raised (ulimit -n), and start the notebook again."
        )
    return needed


def files() -> tuple[float, float]:
    """Return how many files a process may have open by its own limit, and up to which it may raise that itself."""
    if sys.platform == "win32":
        return math.inf, math.inf
    import resource  # Windows has none

    soft, hard = (math.inf if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    return soft, hard


def _allow_files(ranks: int) -> None:
    """Let this process and those that it starts have so many files open as the controller of these ranks will have."""
    soft, hard = files()
    needed = check_files(ranks, hard)
    if soft < needed:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def ask_gpus(*fields: str) -> tuple[list[list[str]], str]:
    """Ask nvidia-smi for these fields of each GPU that the learner sees, memory in MiB; say why where it tells none."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(
            [*command, *(["-i", chosen] if chosen else [])],
            capture_output=True,
            text=True,
            timeout=time_limits.NVIDIA_SMI,
        )
    except subprocess.TimeoutExpired:
        return [], f"nvidia-smi did not answer in {time_limits.NVIDIA_SMI:.0f} s"
    except OSError:
        return [], NO_SMI
    if asked.returncode:
        said = (asked.stdout + asked.stderr).split("\n")[0].rstrip(". ")
        return [], f"nvidia-smi failed: {said or f'exit code {asked.returncode}'}"
    rows = [[field.strip() for field in line.split(",")] for line in asked.stdout.splitlines()]
    return [row for row in rows if len(row) == len(fields)], ""


def free() -> Iterator[tuple[int, str]]:
    """Yield how many bytes are free, and where: on the machine, and in each group that limits this process's memory."""
    available = cgroups.counts(cgroups.ROOT / "proc/meminfo").get("MemAvailable:")
    if available is not None:
        yield 1024 * available, "This machine"
    for group in cgroups.groups():
        free = group.free()
        if free is not None:
            yield free, "This notebook's container"
