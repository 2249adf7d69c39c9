"""Whether there is memory for a lab before it is started: what Linux says, against what ranks were measured to take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labkit import words
from labkit.errors import LabError

MiB = 1 << 20
LAB = 200 * MiB  # torch, once for all ranks, the controller and the kernel's client: benchmarks/start.py
RANK = 60 * MiB  # of its own, with a small model in training
ROOT = Path("/")


def check(ranks: int, root: Path = ROOT) -> None:
    """Raise `LabError` where so many ranks have no room in memory; nothing where nobody says how much there is."""
    there, whose = min(_free(root), default=(None, ""))
    needed = LAB + ranks * RANK
    if there is None or there >= needed:
        return
    fewer = [n for n in (2, 1) if n < ranks and there >= LAB + n * RANK]
    raise LabError(
        f"{whose} has {words.nbytes(there)} of memory left, and {words.count(ranks, 'rank')} need about "
        f"{words.nbytes(needed)}. Close other notebooks (Kernel, Shut Down Kernel)"
        + (f", or call start({fewer[0]})." if fewer else " and call start() again.")
    )


def _free(root: Path) -> Iterator[tuple[int, str]]:
    """How many bytes are free, and where: on the machine, and in each group that limits this process's memory."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield 1024 * int(line.split()[1]), "This machine"
    for line in _lines(root / "proc/self/cgroup"):
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            yield from _within(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _within(root / "sys/fs/cgroup/memory", path, *files)


def _within(top: Path, path: str, limit: str, used: str, cache: str) -> Iterator[tuple[int, str]]:
    """What each group down to this one leaves; a container may see only its own, at the top."""
    group = top
    for name in ["", *path.strip("/").split("/")]:
        group = group / name
        limits, uses = _lines(group / limit), _lines(group / used)
        if limits and uses and limits[0].isdigit():  # version 2 says "max" where there is none
            given_back = next((int(x.split()[1]) for x in _lines(group / "memory.stat") if x.split()[0] == cache), 0)
            yield int(limits[0]) - int(uses[0]) + given_back, "This notebook's container"


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split("\n")[:-1]
    except OSError:
        return []
