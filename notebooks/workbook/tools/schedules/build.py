"""How schedules are made of one another: run backwards, one after the other, with the ranks renumbered.

An all-gather brings each chunk from its rank to all others, over some tree. Backwards, and adding, the same tree is a
reduction to that rank: every all-gather is a reduce-scatter, and the two behind one another are an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from labkit.floor.errors import LabError
from workbook.tools.schedules.schedule import Schedule, Send, Step

GATHERS = ("all_gather", "reduce_scatter", "all_reduce")


def backwards(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the same sends from the last to the first, each the other way and added: a broadcast becomes a reduce."""
    return tuple(tuple(Send(s.dst, s.src, s.chunks, True) for s in step) for step in reversed(steps))


def step(sends: Iterable[Send]) -> Step:
    """Return one step; sends without a chunk are left out."""
    return tuple(s for s in sends if s.chunks)


def filled(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps in which something is sent."""
    return tuple(s for s in steps if s)


def together(parts: Sequence[Sequence[Step]]) -> tuple[Step, ...]:
    """Join several lists of steps side by side: the k-th steps of all become one."""
    longest = max(map(len, parts), default=0)
    return tuple(tuple(s for part in parts if k < len(part) for s in part[k]) for k in range(longest))


def renumbered(steps: Iterable[Step], places: Sequence[int]) -> tuple[Step, ...]:
    """Return the same steps with rank `places[r]` in the place of rank r."""
    return tuple(tuple(Send(places[s.src], places[s.dst], s.chunks, s.reduce) for s in each) for each in steps)


def gathering(name: str, op: str, n: int, chunks: int, gather: Callable[[bool], tuple[Step, ...]]) -> Schedule:
    """Make an all-gather, the reduce-scatter that it is backwards, or the all-reduce that both are.

    `gather(True)` is the all-gather, `gather(False)` one that runs the other way round, for what is then turned.
    """
    check(name, op, GATHERS, n)
    steps: tuple[Step, ...] = ()
    if op != "all_gather":
        steps += backwards(gather(False))
    if op != "reduce_scatter":
        steps += gather(True)
    return Schedule(name, op, n, chunks, filled(steps))


def check(name: str, op: str, ops: Sequence[str], n: int, root: int = 0) -> None:
    """Refuse an operation that the algorithm does not do, and ranks that do not exist."""
    if op not in ops:
        raise LabError(f"{name} is not {op}. It does {', '.join(ops)}; schedules.of({op!r}, n) lists what does it.")
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise LabError(f"n={n!r} is not a number of ranks. Choose 1 or more.")
    if root not in range(n):
        raise LabError(f"There is no rank {root!r} among {n}. Choose a root of 0 to {n - 1}.")
