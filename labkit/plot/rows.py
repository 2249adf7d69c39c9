"""Place a rank's boxes and bars in the picture of its two lanes, and choose each bar's pieces and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from labkit.floor.words import nbytes
from labkit.plot.sheet import FULL, Scale, extent
from labkit.theory.log import Op, Span
from labkit.theory.overlap import Interval, Overlap, common, computing, end, overlaps, standing, under_way
from labkit.theory.record import Record, Wait

WIDE, LEFT, RIGHT = FULL, 2.5, 0.35
BOX, STRIP = 0.42, 0.11  # heights of a span, and of the line where a rank stands
BAR, THIN = 0.25, 0.1  # heights of an operation: with a label, and where there are too many for labels
LEAST = 0.05  # a width at least; what is narrower within a bar is not shown
LEVELS, TRACKS, THREADS = 4, 16, 64  # spans above one another; operations at once, with labels and without
NAMED = 60  # operations of a rank that keep room for a label beside them
LETTERS = 7.5  # points
UNKNOWN = 0.45  # how long a bar is whose end is not known


@dataclass(frozen=True)
class Bar:
    """One operation: its track, from where to where, and its pieces (from, to, look); none where its end is unknown.

    A look is "hidden", "exposed", or the kind of a wait. `words` say what it is, in ever fewer ones.
    """

    op: Op
    start: float
    end: float
    pieces: Sequence[tuple[float, float, str]]
    words: Sequence[str]
    track: int = 0
    beside: bool = True  # whether there is room for a label beside it

    @cached_property
    def label(self) -> tuple[str, float, str]:
        """Its words, where they begin, and on which look they stand, or ""; beside it where none have room on it."""
        best = sorted(self.pieces, key=lambda p: p[2] not in ("hidden", "exposed"))  # then as they come
        for words in self.words:
            for a, b, look in best:
                clear = 0.06 if look in ("hidden", "exposed") else 0.16  # so little hatching would look like a sign
                if extent(words, LETTERS) + 2 * clear <= b - a:
                    return words, a + clear, look
        return self.words[-1] if self.beside else "", self.end + 0.06, ""

    @property
    def taken(self) -> Interval:
        """The part of its track that it takes, with its label."""
        words, x, look = self.label
        return self.start, (self.end if look else x + extent(words, LETTERS)) + 0.06


@dataclass(frozen=True)
class Row:
    """One rank: its spans with their levels, its bars on their tracks, and where it stands (from, to)."""

    spans: Sequence[tuple[Span, int]]
    bars: Sequence[Bar]
    stands: Sequence[Interval]
    overlap: Overlap
    last: float  # the last timestamp that is known of it
    left_out: int  # boxes and bars for which there is no room
    thick: float = BAR  # a track's height

    @property
    def computing(self) -> float:
        """The height of the lane of spans, with the line where the rank stands."""
        return BOX * (1 + max((level for _, level in self.spans), default=0)) + 2 * STRIP

    @property
    def tracks(self) -> int:
        """The number of operations that are drawn above one another."""
        return 1 + max((bar.track for bar in self.bars), default=0)

    @property
    def height(self) -> float:
        """The height of both lanes."""
        return max(self.computing + self.thick * self.tracks, 1.15)


def scale(record: Record) -> Scale:
    """Return a scale that all timestamps of a record have room on."""
    last = max([1e-6, *(end(record, r) for r in range(record.n) if record.ops[r] or record.spans[r])])
    return Scale(1.03 * last, LEFT, WIDE - RIGHT)


def rows(record: Record, x: Scale) -> list[Row]:
    """Return every rank's row, index = rank."""
    numbers = {id(op): k for k, meeting in enumerate(record.meetings, 1) for op in meeting.ops}
    short = one_name(record) != ""
    waits: dict[int, list[Wait]] = {}
    for wait in record.waits:
        waits.setdefault(id(wait.op), []).append(wait)
    found = []
    for r, overlap in enumerate(overlaps(record)):
        last, work = end(record, r), computing(record, r)
        spans = sorted(record.spans[r], key=lambda s: (s.entered, -_until(s, last)))
        levels = _stacked([(s.entered, _until(s, last)) for s in spans])
        boxes = [(s, level) for s, level in zip(spans, levels, strict=True) if level < LEVELS]
        ops = sorted(record.ops[r], key=lambda o: o.entered)
        bars = [_bar(op, last, work, waits.get(id(op), []), x, _words(op, numbers, short)) for op in ops]
        shown = _tracked(bars)
        stands = [(x(a), x(b)) for a, b in standing(record, r)]
        found.append(Row(boxes, shown, stands, overlap, last, len(spans) - len(boxes) + len(bars) - len(shown)))
    thin = any(row.tracks > TRACKS for row in found)
    return [replace(row, thick=THIN) for row in found] if thin else found


def one_name(record: Record) -> str:
    """Return the name that all collectives have; "" where there are several kinds, or none."""
    names = {op.name for mine in record.ops for op in mine if op.kind == "collective"}
    return names.pop() if len(names) == 1 else ""


def _until(span: Span, last: float) -> float:
    return last if span.left is None else span.left


def _tracked(bars: Sequence[Bar]) -> list[Bar]:
    """Put each on the first track that is free for it, and for its label as long as there are few enough."""
    tracks = _stacked([bar.taken for bar in bars]) if len(bars) <= NAMED else [TRACKS]
    if tight := max(tracks, default=0) >= TRACKS:
        tracks = _stacked([(bar.start, bar.end) for bar in bars])
    found = [replace(bar, track=track, beside=not tight) for bar, track in zip(bars, tracks, strict=True)]
    return [bar for bar in found if bar.track < THREADS]


def _stacked(intervals: Sequence[Interval]) -> list[int]:
    """Return for each of them the first level that is free."""
    ends: list[float] = []
    levels = []
    for a, b in intervals:
        level = next((k for k, free in enumerate(ends) if free <= a), len(ends))
        ends[level : level + 1] = [b]
        levels.append(level)
    return levels


def _bar(op: Op, last: float, work: Sequence[Interval], waits: Sequence[Wait], x: Scale, words: Sequence[str]) -> Bar:
    a, way = x(op.entered), under_way(op, last)
    if way is None:
        return Bar(op, a, a + UNKNOWN, [], words)
    b = max(x(way[1]), a + LEAST)
    hidden = _merged([(x(c), x(d)) for c, d in common([way], work)])
    hidden = [(a if c - a < LEAST else c, b if b - d < LEAST else d) for c, d in hidden]
    looks = [(c, d, "hidden") for c, d in hidden]
    looks += [(x(w.start), x(w.until), w.kind) for w in waits if x(w.until) - x(w.start) >= LEAST]
    edges = sorted({a, b, *(e for c, d, _ in looks for e in (c, d) if a < e < b)})
    pieces: list[tuple[float, float, str]] = []
    for c, d in pairwise(edges):
        look = next((what for e, f, what in reversed(looks) if e <= (c + d) / 2 <= f), "exposed")
        if pieces and pieces[-1][2] == look:
            c = pieces.pop()[0]
        pieces.append((c, d, look))
    return Bar(op, a, b, pieces, words)


def _merged(intervals: Sequence[Interval]) -> list[Interval]:
    """Join intervals that are too near to be told apart."""
    found: list[Interval] = []
    for a, b in intervals:
        if found and a - found[-1][1] < LEAST:
            found[-1] = (found[-1][0], b)
        else:
            found.append((a, b))
    return found


def _words(op: Op, numbers: dict[int, int], short: bool) -> list[str]:
    """Return a bar's words, in ever fewer ones; a collective has one number on all ranks."""
    if op.kind == "collective":
        number = str(numbers[id(op)])
        name = number if short else f"{number} · {op.name}"
        size = [] if op.bytes is None else [f"{name} · {nbytes(op.bytes)}"]
        return list(dict.fromkeys([*size, name, number]))
    arrow, peer = "→" if op.kind == "send" else "←", "any" if op.peer is None else str(op.peer)
    return [f"{op.name} {arrow} {peer}", f"{arrow}{peer}"]
