"""Whether there is memory for a lab before it is started: what Linux says, against what ranks were measured to take."""

from __future__ import annotations

from collections.abc import Iterator

from labkit import words
from labkit.cluster import cgroups
from labkit.errors import LabError

MiB = 1 << 20
LAB = 200 * MiB  # torch, once for all ranks, the controller and the kernel's client: benchmarks/start.py
RANK = 60 * MiB  # of its own, with a small model in training


def check(ranks: int) -> None:
    """Raise `LabError` where so many ranks have no room in memory; nothing where nobody says how much there is."""
    there, whose = min(_free(), default=(None, ""))
    needed = LAB + ranks * RANK
    if there is None or there >= needed:
        return
    fewer = [n for n in (2, 1) if n < ranks and there >= LAB + n * RANK]
    raise LabError(
        f"{whose} has {words.nbytes(there)} of memory left, and {words.count(ranks, 'rank')} need about "
        f"{words.nbytes(needed)}. Close other notebooks (Kernel, Shut Down Kernel)"
        + (f", or call start({fewer[0]})." if fewer else " and call start() again.")
    )


def _free() -> Iterator[tuple[int, str]]:
    """How many bytes are free, and where: on the machine, and in each group that limits this process's memory."""
    available = cgroups.counts(cgroups.ROOT / "proc/meminfo").get("MemAvailable:")
    if available is not None:
        yield 1024 * available, "This machine"
    for group in cgroups.groups():
        free = group.free()
        if free is not None:
            yield free, "This notebook's container"
