"""A space–time diagram: a line a rank, a bar an operation, an arrow a message, hatches where a rank waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from matplotlib.axes import Axes
from matplotlib.patches import Circle, Polygon, Rectangle
from matplotlib.ticker import MaxNLocator

from labkit.plot.sheet import chip, extent, sheet, write
from labkit.plot.svg import FAINT, GRID, INK, PAGE, WRONG
from labkit.theory.record import Meeting, Op, Record
from labkit.words import seconds

# Greys, for colours mean ranks; the legend's words, and the labels on the bars, say the same.
KINDS = {"send": ("#56606b", "sends"), "recv": ("#b4bec8", "receives"), "collective": ("#868c94", "collectives")}
PENDING = "#8a8a84"
HATCHES = {"waited": "////", "stayed": "\\\\\\\\", "never": "xxx"}
WORDS = {
    "waited": "waits for another rank",
    "stayed": "needs nothing more, but stays until another rank comes",
    "never": "waits for a rank that never comes",
}
WIDE, LEFT, RIGHT = 19.0, 1.9, 0.5
TOP, ROW, BOTTOM, BAR = 1.25, 1.45, 1.0, 0.42
LINE = 0.42
LEAST = 0.07  # a bar's width at least
MOST = 200  # labels


@dataclass(frozen=True)
class Scale:
    """From seconds to units of the picture."""

    start: float
    end: float

    def x(self, seconds: float) -> float:
        """Where a moment lies."""
        return LEFT + (seconds - self.start) / (self.end - self.start) * (WIDE - LEFT - RIGHT)

    @property
    def unit(self) -> tuple[str, float]:
        """The unit of the axis, and how many of it a second has."""
        span = self.end - self.start
        return ("s", 1.0) if span >= 2 else ("ms", 1e3) if span >= 2e-3 else ("µs", 1e6)


def axes(record: Record) -> Axes:
    """Axes that are large enough for the record."""
    return sheet(WIDE, TOP + ROW * record.n + BOTTOM + LINE * len(record.notes))


def draw(ax: Axes, record: Record) -> Axes:
    """Draw on axes as `axes` makes them, y downwards."""
    ops = [op for mine in record.ops for op in mine]
    last = max((t for op in ops for t in (op.left, op.ended) if t is not None), default=1e-6)
    last = max([last, *(op.entered for op in ops), 1e-6])
    scale = Scale(0.0, last * 1.02)
    _grid(ax, record, scale)
    for meeting in record.meetings:
        _meeting(ax, meeting, scale)
    taken: dict[tuple[int, int], float] = {}
    for op in sorted(ops, key=lambda o: o.entered):
        _bar(ax, op, scale)
    _waits(ax, record, scale)
    _messages(ax, record, scale)
    labels = [(_spans(op, scale)[0][0], op.rank, _said(op)) for op in ops]
    labels += [(_spans(op, scale)[1][0], op.rank, (f"wait · line {op.waited[2]}", "wait")) for op in ops if op.waited]
    for x, rank, words in sorted(labels)[:MOST]:
        _label(ax, x, rank, words, taken)
    _legend(ax, record)
    for i, note in enumerate(record.notes):
        write(ax, 0.4, TOP + ROW * record.n + BOTTOM + LINE * (i + 0.2), note, 7.5, FAINT, "left")
    return ax


def _y(rank: int) -> float:
    return TOP + ROW * (rank + 0.5)


def _grid(ax: Axes, record: Record, scale: Scale) -> None:
    """The ranks' lines, and the axis of time below them."""
    unit, per_second = scale.unit
    bottom = TOP + ROW * record.n
    for tick in MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]).tick_values(0, scale.end * per_second):
        if 0 <= tick <= scale.end * per_second:
            x = scale.x(tick / per_second)
            ax.plot([x, x], [TOP, bottom], color=GRID, linewidth=0.7, zorder=0)
            write(ax, x, bottom + 0.28, f"{tick:g}", 7.5, FAINT)
    write(ax, (LEFT + WIDE - RIGHT) / 2, bottom + 0.68, f"{unit} since the first operation was entered", 8, FAINT)
    for r in range(record.n):
        ax.plot([LEFT, WIDE - RIGHT], [_y(r)] * 2, color=PENDING, linewidth=1, zorder=1)
        chip(ax, 0.55, _y(r), r)
        write(ax, 0.82, _y(r), f"rank {r}", 9, align="left")


def _spans(op: Op, scale: Scale) -> list[tuple[float, float]]:
    """From where to where an operation's bars reach: the call, and the `.wait()` for it."""
    spans = [(op.entered, op.left if op.left is not None else scale.end)]
    if op.waited:
        spans.append(op.waited[:2])
    return [(scale.x(a), max(scale.x(b), scale.x(a) + LEAST)) for a, b in spans]


def _bar(ax: Axes, op: Op, scale: Scale) -> None:
    paint = KINDS[op.kind][0]
    spans = _spans(op, scale)
    for a, b in spans:
        box = Rectangle((a, _y(op.rank) - BAR / 2), b - a, BAR, facecolor=paint, edgecolor=INK, linewidth=0.6, zorder=4)
        ax.add_artist(box)
        if op.error:
            box.set(edgecolor=WRONG, linewidth=1.6)
    if op.asynchronous and len(spans) == 2:  # under way between the call and its wait
        ax.plot([spans[0][1], spans[1][0]], [_y(op.rank)] * 2, color=paint, linewidth=2.5, zorder=2)
    if op.error:
        write(ax, min(spans[-1][1], WIDE - 0.2), _y(op.rank) - BAR / 2 - 0.2, f"✗ {op.error}", 7.5, WRONG, "right")


def _waits(ax: Axes, record: Record, scale: Scale) -> None:
    """Hatch the part of a bar in which its rank waited for another."""
    for wait in record.waits:
        a, b = scale.x(wait.start), scale.x(wait.until)
        if b - a > 0.04:
            corner = (a, _y(wait.op.rank) - BAR / 2)
            ax.add_artist(Rectangle(corner, b - a, BAR, facecolor=PAGE, edgecolor="none", alpha=0.8, zorder=5))
            hatch = HATCHES[wait.kind]
            look = {"facecolor": "none", "edgecolor": KINDS[wait.op.kind][0], "linewidth": 0.6, "hatch": hatch}
            ax.add_artist(Rectangle(corner, b - a, BAR, zorder=5, **look))  # type: ignore[arg-type]
        long = seconds(wait.seconds)
        said = {
            "waited": f"waits {long} for rank {wait.for_}",
            "stayed": f"stays {long}, until rank {wait.for_} comes",
            "never": f"waits {long} for rank {wait.for_}, in vain",
        }[wait.kind]
        if b - a > extent(said, 7.5) + 0.2:
            label = write(ax, (a + b) / 2, _y(wait.op.rank), said, 7.5)
            label.set_bbox({"boxstyle": "round,pad=0.15", "facecolor": PAGE, "edgecolor": "none"})


def _meeting(ax: Axes, meeting: Meeting, scale: Scale) -> None:
    """One shape through all ranks of a collective, from where each entered it to where each left."""
    ops = sorted(meeting.ops, key=lambda o: o.rank)
    first = min(scale.x(op.entered) for op in ops)
    for r in sorted(set(meeting.ranks) - {op.rank for op in ops}):
        write(ax, first, _y(r) - 0.2, f"✗ never came to {' or '.join(meeting.names)}", 7.5, WRONG, "left")
    left, right = [], []
    for op in ops:
        spans = _spans(op, scale)
        for side in (-BAR / 2, BAR / 2):
            left.append((spans[0][0], _y(op.rank) + side))
            right.append((spans[-1][1], _y(op.rank) + side))
    shape = Polygon(left + right[::-1], facecolor=KINDS["collective"][0], edgecolor="none", alpha=0.16, zorder=1.5)
    ax.add_artist(shape)
    for edge in (left, right):  # one collective ends where the next may begin
        xs, ys = zip(*edge, strict=True)
        ax.plot(xs, ys, color=KINDS["collective"][0], linewidth=0.8, alpha=0.7, zorder=1.6)


def _messages(ax: Axes, record: Record, scale: Scale) -> None:
    """An arrow from where the data could leave to where it was there."""
    for m in record.messages:
        if not m.send or not m.recv:
            continue
        arrived = m.recv.ended if m.recv.ended is not None else m.recv.left
        if arrived is None or m.recv.error or m.send.error:
            continue
        begun = max(m.send.entered, min(m.recv.entered, m.send.left if m.send.left is not None else m.recv.entered))
        down = 1 if m.recv.rank > m.send.rank else -1
        tail = (scale.x(begun), _y(m.send.rank) + down * BAR / 2)
        tip = (max(scale.x(arrived), tail[0] + 0.02), _y(m.recv.rank) - down * BAR / 2)
        look = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
        ax.annotate("", tip, tail, arrowprops=look, zorder=6)
        ax.add_artist(Circle(tail, 0.045, facecolor=INK, edgecolor="none", zorder=6))


def _said(op: Op) -> tuple[str, str]:
    """What a bar is, in more and in fewer words."""
    where = f"line {op.line}" if op.function is None else op.function.replace(", its line ", " line ")
    return (f"{op.op} · {where}" if op.line else op.op), op.op


def _label(ax: Axes, x: float, rank: int, words: tuple[str, str], taken: dict[tuple[int, int], float]) -> None:
    """Write above a bar, or else below it, where there is room."""
    for text, side in product(words, (-1, 1)):
        width = extent(text, 7.5)
        start = min(x, WIDE - 0.2 - width)
        if start >= taken.get((rank, side), 0.0):
            write(ax, start, _y(rank) + side * (BAR / 2 + 0.2), text, 7.5, align="left", halo=True)
            taken[rank, side] = start + width + 0.15
            return


def _legend(ax: Axes, record: Record) -> None:
    x = LEFT
    kinds = [k for k in KINDS if any(o.kind == k for mine in record.ops for o in mine)]
    entries: Sequence[tuple[str, str, str]] = [(KINDS[k][0], "", KINDS[k][1]) for k in kinds]
    waits = {w.kind for w in record.waits}
    entries = [*entries, *((PENDING, HATCHES[k], WORDS[k]) for k in HATCHES if k in waits)]
    for paint, hatch, words in entries:
        look = {"facecolor": PAGE if hatch else paint, "edgecolor": paint if hatch else INK, "hatch": hatch}
        ax.add_artist(Rectangle((x, 0.42), 0.5, 0.3, linewidth=0.6, zorder=4, **look))  # type: ignore[arg-type]
        write(ax, x + 0.62, 0.58, words, 8, align="left")
        x += 0.62 + extent(words, 8) + 0.5
    if record.messages:
        look2 = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.1, "mutation_scale": 9}
        ax.annotate("", (x + 0.6, 0.57), (x, 0.57), arrowprops=look2)
        write(ax, x + 0.72, 0.58, "a message", 8, align="left")
