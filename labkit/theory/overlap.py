"""How much of the communication is hidden behind computing, as the ranks' records say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from labkit.theory.log import Op
from labkit.theory.record import Record

Interval = tuple[float, float]  # seconds: from, to


@dataclass(frozen=True)
class Overlap:
    """How long one rank computed, how long its communication was under way, and how long both at once: seconds.

    - `computing`: the time in at least one span, less the time in which the rank stood in a communicating call (also
      the one that starts an asynchronous operation), in a `.wait()`, or in what waits behind a backward pass (DDP).
    - `communicating`: the time in which at least one operation was under way: from its call until its data was there.
      Waiting for a rank that comes late is part of it.
    - `hidden`: the time that belongs to both.

    They are unions of intervals, so nothing counts twice, and `hidden` is at most either of them. `open` counts the
    operations that are left out because it is unknown when their data was there (DDP's own buckets on Gloo, or a handle
    that was not waited for). `late` counts those that are taken to be under way until their `.wait()`, though their
    data may have been there before it: sends and receives, and everything on a GPU. With them, `communicating` and
    `hidden` are upper bounds.

    Times are wall-clock times: a rank that shares its core with another rank counts as computing all the while.
    """

    computing: float
    communicating: float
    hidden: float
    open: int = 0
    late: int = 0

    @property
    def share(self) -> float:
        """The part of the communication that was hidden: 0 to 1; 0 where there was none."""
        return self.hidden / self.communicating if self.communicating else 0.0


def overlaps(record: Record) -> tuple[Overlap, ...]:
    """Return each rank's overlap, index = rank."""
    found = []
    for r, ops in enumerate(record.ops):
        known = [(op, way) for op in ops if (way := under_way(op, end(record, r)))]
        work, ways = computing(record, r), union(way for _, way in known)
        late = sum(op.asynchronous and op.there is None and not op.error for op, _ in known)
        shared = common(work, ways)
        found.append(Overlap(length(work), length(ways), length(shared), len(ops) - len(known), late))
    return tuple(found)


def end(record: Record, rank: int) -> float:
    """Return the latest time that is known of a rank: what still runs has run until then."""
    log = record.logs[rank]
    moments = [t for op in log.ops for t in (op.entered, op.left, op.ended, op.there) if t is not None]
    moments += [t for span in log.spans for t in (span.entered, span.left) if t is not None]
    return max([*moments, *([log.ended] if log.ended is not None else [])], default=0.0)


def computing(record: Record, rank: int) -> list[Interval]:
    """Find when a rank computed: in its spans, as far as it did not stand."""
    last = end(record, rank)
    spans = union((s.entered, last if s.left is None else s.left) for s in record.logs[rank].spans)
    return without(spans, standing(record, rank))


def standing(record: Record, rank: int) -> list[Interval]:
    """Find when a rank itself stood in a communicating call, in a `.wait()`, or behind a backward pass."""
    last, log = end(record, rank), record.logs[rank]
    calls = [(op.entered, last if op.left is None else op.left) for op in log.ops]
    return union([*calls, *((op.waited[0], op.waited[1]) for op in log.ops if op.waited), *log.stood])


def under_way(op: Op, last: float) -> Interval | None:
    """Find from when to when an operation communicated, `last` being the latest time known; None where unknown."""
    if op.witnessed:
        return None
    if op.asynchronous and not op.error:
        return None if op.arrived is None else (op.entered, max(op.entered, op.arrived))
    over = op.waited[1] if op.waited else op.left
    return op.entered, last if over is None else over


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals that touch or overlap, in order.

    >>> union([(3, 4), (0, 2), (1, 3), (6, 6)])
    [(0, 4)]
    """
    found: list[Interval] = []
    for a, b in sorted(i for i in intervals if i[1] > i[0]):
        if found and a <= found[-1][1]:
            found[-1] = (found[-1][0], max(b, found[-1][1]))
        else:
            found.append((a, b))
    return found


def common(xs: Sequence[Interval], ys: Sequence[Interval]) -> list[Interval]:
    """Intersect two unions.

    >>> common([(0, 4), (6, 9)], [(2, 7)])
    [(2, 4), (6, 7)]
    """
    found, i, j = [], 0, 0
    while i < len(xs) and j < len(ys):
        a, b = max(xs[i][0], ys[j][0]), min(xs[i][1], ys[j][1])
        if a < b:
            found.append((a, b))
        if xs[i][1] < ys[j][1]:
            i += 1
        else:
            j += 1
    return found


def without(xs: Sequence[Interval], ys: Sequence[Interval]) -> list[Interval]:
    """Subtract one union from another.

    >>> without([(0, 4), (6, 9)], [(2, 7)])
    [(0, 2), (7, 9)]
    """
    edges = [-inf, *(moment for interval in ys for moment in interval), inf]
    return common(xs, list(zip(edges[::2], edges[1::2], strict=True)))


def length(intervals: Iterable[Interval]) -> float:
    """Add up the lengths of intervals.

    >>> length([(0, 4), (6, 9)])
    7
    """
    return sum(b - a for a, b in intervals)
