"""Straight from whoever has it to whoever wants it: simple, and some rank has most of the work."""

from __future__ import annotations

from workbook.tools.schedules.build import backwards, check, step
from workbook.tools.schedules.schedule import Schedule, Send


def naive(op: str, n: int, root: int = 0) -> Schedule:
    """Let all send their buffer to the root in turns; it adds them up and sends the total to each.

    >>> naive("all_reduce", 4).sent(1.0)
    [3.0, 1.0, 1.0, 1.0]
    """
    check("naive", op, ("broadcast", "reduce", "all_reduce"), n, root)
    out = tuple(step([Send(root, (root + i) % n, (0,))]) for i in range(1, n))
    steps = {"broadcast": out, "reduce": backwards(out), "all_reduce": backwards(out) + out}[op]
    return Schedule("naive", op, n, 1, steps, root)


def linear(op: str, n: int, root: int = 0) -> Schedule:
    """Gather or scatter without a tree: one message between the root and each other rank, N-1 in a row.

    >>> linear("scatter", 4).sent(4.0)
    [3.0, 0.0, 0.0, 0.0]
    """
    check("linear", op, ("gather", "scatter"), n, root)
    others = [(root + i) % n for i in range(1, n)]
    sends = [Send(root, r, (r,)) if op == "scatter" else Send(r, root, (r,)) for r in others]
    return Schedule("linear", op, n, n, tuple((send,) for send in sends), root)


def pairwise(op: str, n: int) -> Schedule:
    """Make an all-to-all of N-1 steps: in step k rank r sends its chunk for rank r+k straight there.

    >>> pairwise("all_to_all", 4).sent(4.0)
    [3.0, 3.0, 3.0, 3.0]
    """
    check("pairwise", op, ("all_to_all",), n)
    steps = tuple(step(Send(r, (r + k) % n, (r * n + (r + k) % n,)) for r in range(n)) for k in range(1, n))
    return Schedule("pairwise", op, n, n, steps)
