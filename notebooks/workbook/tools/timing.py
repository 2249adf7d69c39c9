"""Turn bytes and seconds into algbw and busbw, as nccl-tests defines them. Knows no clock, no torch and no cluster.

algbw is S / t, and S is nccl-tests' "size", which is not the same buffer for every operation: see `convention`.
busbw is algbw times a factor of the operation and the number of ranks, chosen so that busbw tells how fast the
hardware's links were used, whatever the number of ranks. GB/s are 10⁹ bytes per second, β is in seconds per byte.

Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, and the `…GetBw` functions of src/*.cu.
"""

from __future__ import annotations

from collections.abc import Callable

from labkit.floor.errors import LabError
from labkit.theory.primitives import PART, PRIMITIVES

GB = 1e9
OPS = tuple(name for name, p in PRIMITIVES.items() if p.busbw)


def busbw_factor(op: str, n: int) -> float:
    """Return what algbw is multiplied by to get busbw, for n ranks.

    >>> busbw_factor("all_reduce", 4), busbw_factor("all_gather", 4), busbw_factor("broadcast", 4)
    (1.5, 0.75, 1.0)

    The least that each rank must send (or the busiest one, where there is a root) is factor × S. Raises `LabError`
    for an operation that carries no data, or that nccl-tests does not know.
    """
    if op == "barrier":
        raise LabError("A barrier carries no data and has no bandwidth. Ask for its time alone.")
    if n < 1:
        raise LabError(f"n={n!r} is not a number of ranks. Give 1 or more.")
    return float(_busbw(op)[1](n))


def convention(op: str) -> tuple[str, str]:
    """Say what S is, and what algbw is multiplied by to get busbw.

    >>> convention("all_gather")
    ('S is n × the part of one rank', '(n-1)/n')
    """
    factor, _ = _busbw(op)
    chunks = ", a part for each rank" * PRIMITIVES[op].chunked
    return "S is n × the part of one rank" if _in_parts(op) else f"S is the whole buffer of one rank{chunks}", factor


def _busbw(op: str) -> tuple[str, Callable[[int], float]]:
    found = PRIMITIVES[op].busbw if op in OPS else None
    if found is None:
        raise LabError(f"{op!r} has no bus bandwidth here. Choose one of: {', '.join(OPS)}.")
    return found


def _in_parts(op: str) -> bool:
    """Tell whether a rank brings, or gets, one part of S."""
    return PART in (PRIMITIVES[op].brings, PRIMITIVES[op].gets)


def size(op: str, n: int, part: float) -> float:
    """Return nccl-tests' S in bytes, from the smaller tensor of one rank: what it brings, or of a scatter gets.

    >>> size("all_gather", 4, 100), size("all_reduce", 4, 100)
    (400, 100)
    """
    return part * n if _in_parts(op) else part


def algbw(nbytes: float, seconds: float) -> float:
    """Return S / t in GB/s.

    >>> algbw(1e6, 1e-3)
    1.0
    """
    return nbytes / seconds / GB


def busbw(op: str, n: int, nbytes: float, seconds: float) -> float:
    """Return algbw × `busbw_factor`, in GB/s.

    >>> busbw("all_reduce", 4, 1e6, 1e-3)
    1.5
    """
    return algbw(nbytes, seconds) * busbw_factor(op, n)
