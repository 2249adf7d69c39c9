"""Doubling distances: exchanges with a rank 1, 2, 4, … away, in about log2 N steps."""

from __future__ import annotations

from labkit.floor.errors import LabError
from workbook.tools.formulas import log2_up
from workbook.tools.schedules.build import GATHERS, check, filled, gathering, renumbered, step
from workbook.tools.schedules.schedule import Schedule, Send, Step


def recursive_doubling(op: str, n: int) -> Schedule:
    """Exchange the whole buffer with the rank 2ᵏ away in step k: log2 N steps, S·log2 N bytes from each.

    Where N is not a power of two, the ranks that are too many hand theirs to a neighbour first (Thakur, Rabenseifner,
    Gropp 2005) and get the result last: two more steps.

    >>> len(recursive_doubling("all_reduce", 8).steps), len(recursive_doubling("all_reduce", 6).steps)
    (3, 4)
    """
    check("recursive doubling", op, ("all_reduce",), n)
    active, fold, unfold = _folded(n, (0,))
    p = len(active)
    inner = [step(Send(active[i], active[i ^ 1 << k], (0,), True) for i in range(p)) for k in range(p.bit_length() - 1)]
    return Schedule("recursive doubling", op, n, 1, filled([fold, *inner, unfold]))


def halving_doubling(op: str, n: int) -> Schedule:
    """Rabenseifner's: exchange halves with a neighbour, quarters with the rank 2 away, … and all of it backwards.

    The bytes of a ring in 2·log2 N steps, the large messages near. Where N is not a power of two it is folded as in
    recursive doubling. Alone, a reduce-scatter begins with the farthest (recursive halving) and an all-gather ends
    with it, so that rank r has chunk r; both need a power of two.

    >>> schedule = halving_doubling("all_reduce", 8)
    >>> len(schedule.steps), schedule.sent(8.0)[0]
    (6, 14.0)
    """
    check("halving-doubling", op, GATHERS, n)
    p = 1 << n.bit_length() - 1
    if op == "all_reduce":
        active, fold, unfold = _folded(n, tuple(range(p)))
        inner = gathering("halving-doubling", op, p, p, lambda _: _doubling(p))
        near = [active[_reversed(v, p)] for v in range(p)]  # the farthest in the schedule is the next in the ring
        return Schedule("halving-doubling", op, n, p, filled([fold, *renumbered(inner.steps, near), unfold]))
    if p != n:
        raise LabError(f"{op} by halving or doubling needs a power of two, not {n}. Take schedules.bruck({op!r}, {n}).")
    return gathering("halving-doubling", op, n, n, lambda _: _doubling(n))


def _doubling(p: int) -> tuple[Step, ...]:
    """Gather p ranks' chunks, p a power of two: in step k exchange the 2ᵏ chunks that one has with the rank 2ᵏ away."""
    return tuple(
        step(Send(r, r ^ 1 << k, tuple(range(r >> k << k, (r >> k << k) + (1 << k)))) for r in range(p))
        for k in range(p.bit_length() - 1)
    )


def _reversed(v: int, p: int) -> int:
    """Return a number below p, a power of two, with its binary digits reversed."""
    return int(format(v + p, "b")[:0:-1] or "0", 2)


def _folded(n: int, chunks: tuple[int, ...]) -> tuple[list[int], Step, Step]:
    """Return the ranks that go on, a power of two, and what the others hand over first and get back last."""
    extra = n - (1 << n.bit_length() - 1)
    active = [r for r in range(n) if r >= 2 * extra or r % 2]
    fold = step(Send(r, r + 1, chunks, True) for r in range(0, 2 * extra, 2))
    return active, fold, step(Send(r + 1, r, chunks) for r in range(0, 2 * extra, 2))


def bruck(op: str, n: int) -> Schedule:
    """Bruck's (1997), for any N in ⌈log2 N⌉ steps: in step k send what you have gathered to the rank 2ᵏ before you.

    An all-to-all moves each chunk by the binary digits of its way: fewer steps than N-1, but about half of
    the buffer is sent in each.

    >>> len(bruck("all_gather", 5).steps), len(bruck("all_to_all", 5).steps)
    (3, 3)
    """
    check("Bruck", op, (*GATHERS, "all_to_all"), n)
    if op == "all_to_all":
        return Schedule("Bruck", op, n, n, filled(_digits(n)))

    def gather(_: bool) -> tuple[Step, ...]:
        return tuple(
            step(Send(r, (r - 2**k) % n, tuple((r + i) % n for i in range(min(2**k, n - 2**k)))) for r in range(n))
            for k in range(log2_up(n))
        )

    return gathering("Bruck", op, n, n, gather)


def _digits(n: int) -> list[Step]:
    """Send, in step k of an all-to-all, the chunks whose way has digit k set 2ᵏ ranks on."""
    steps = []
    for k in range(log2_up(n)):
        moving: dict[int, list[int]] = {r: [] for r in range(n)}
        for src in range(n):
            for way in range(n):
                if way >> k & 1:
                    moving[(src + way % 2**k) % n].append(src * n + (src + way) % n)
        steps.append(step(Send(r, (r + 2**k) % n, tuple(chunks)) for r, chunks in moving.items()))
    return steps


def pat(op: str, n: int, aggregate: int | None = None) -> Schedule:
    """NCCL's parallel aggregated trees (arXiv 2506.20252; collectives.h): a binomial tree for each chunk, far first.

    A message has at most `aggregate` chunks, a power of two; by default as many as there are: ⌈log2 N⌉ steps, Bruck's
    with the distances from far to near, so that the large messages stay near. With A chunks a message it takes
    log2 A far steps, and then the near trees one rank at a time: ⌈N⌉₂/A - 1 more, with ⌈N⌉₂ the next power of two.

    >>> len(pat("all_gather", 8).steps), len(pat("all_gather", 8, aggregate=2).steps)
    (3, 4)
    """
    check("PAT", op, GATHERS, n)
    full = 1 << log2_up(n)
    most = max(1, full // 2) if aggregate is None else min(aggregate, max(1, full // 2))
    if most < 1 or most & (most - 1):
        raise LabError(f"aggregate={aggregate}: a message of PAT has a power of two of chunks. Choose 1, 2, 4, …")

    def gather(_: bool) -> tuple[Step, ...]:
        near, bits = full // most, [1 << k for k in range((most // 2).bit_length())]  # ranks of a near tree
        groups = [[odd * d * near for odd in range(1, most // d, 2)] for d in reversed(bits)]
        groups += [[tree * near + place for tree in range(most)] for place in _far_first(near)]
        return tuple(
            step(
                Send(q, (q - bit) % n, tuple((q + to - bit) % n for to in group if to < n))
                for q in range(n)
                for bit in [group[0] & -group[0]]
            )
            for group in groups
        )

    return gathering("PAT", op, n, n, gather)


def _far_first(size: int) -> list[int]:
    """Return the places 1 to size-1 of a binomial tree, a parent before its children, the farther child first.

    >>> _far_first(8)
    [4, 6, 7, 5, 2, 3, 1]
    """
    if size < 2:
        return []
    rest = _far_first(size // 2)
    return [size // 2, *(size // 2 + place for place in rest), *rest]
