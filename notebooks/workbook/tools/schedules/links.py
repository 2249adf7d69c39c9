"""What a schedule puts on shared links: ranks sit on hosts, and all that leaves a host goes through its one link."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from labkit.floor.errors import LabError
from workbook.tools.schedules.schedule import Schedule


@dataclass(frozen=True)
class Load:
    """What one step puts on the busiest host's link, one way: messages, and their bytes as a share of S."""

    messages: int
    share: float


def home(schedule: Schedule, hosts: int) -> list[int]:
    """Return the host of each rank; every host has as many ranks, in a row. Raises `LabError` where that cannot be."""
    if hosts < 1 or schedule.n % hosts:
        raise LabError(f"{schedule.n} ranks cannot be dealt out evenly to {hosts} hosts. Choose a divisor.")
    return [r * hosts // schedule.n for r in range(schedule.n)]


def loads(schedule: Schedule, hosts: int) -> list[Load]:
    """Return what each step puts on the busiest link of a host, out of it or into it.

    >>> from workbook.tools import schedules
    >>> loads(schedules.halving_doubling("all_reduce", 8), hosts=2)[2]  # four messages of S/8 at once
    Load(messages=4, share=0.5)
    >>> loads(schedules.ring("all_reduce", 8), hosts=2)[2]
    Load(messages=1, share=0.125)
    """
    where, found = home(schedule, hosts), []
    for step in schedule.steps:
        messages: Counter[tuple[str, int]] = Counter()
        chunks: Counter[tuple[str, int]] = Counter()
        for send in step:
            if where[send.src] != where[send.dst]:
                for link in (("out", where[send.src]), ("in", where[send.dst])):
                    messages[link] += 1
                    chunks[link] += len(send.chunks)
        most, share = max(messages.values(), default=0), max(chunks.values(), default=0) / schedule.chunks
        found.append(Load(most, share))
    return found


def seconds(schedule: Schedule, nbytes: float, alpha: float, beta: float, hosts: int | None = None) -> float:
    """Return how long the steps take, one after the other: each α, and β for each byte on its busiest link.

    α is in seconds per message, β in seconds per byte. Every rank has a link of its own, both ways at once; with
    `hosts` every host has one, too, as fast as a rank's, for all that leaves it or comes to it.

    >>> from workbook.tools import schedules
    >>> halving = schedules.halving_doubling("all_reduce", 8)
    >>> seconds(halving, 8e9, 0.0, 1e-9), seconds(halving, 8e9, 0.0, 1e-9, hosts=2)
    (14.0, 20.0)
    """
    own = loads(schedule, schedule.n)
    shared = loads(schedule, hosts) if hosts else own
    return sum(alpha + beta * nbytes * max(a.share, b.share) for a, b in zip(own, shared, strict=True))
