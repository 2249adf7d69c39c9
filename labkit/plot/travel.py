"""The ranks' operations in the order of events, a column a moment: what a cursor travels over."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.plot.sheet import chip, extent, sheet, write
from labkit.plot.svg import FAINT, GRID, INK, WRONG
from labkit.plot.timeline import BAR, KINDS, LEFT, PENDING, RIGHT, ROW, TOP, WIDE, Room, lane
from labkit.theory.moments import Moments
from labkit.theory.record import Op
from labkit.words import seconds

COLUMNS = 48  # moments of one picture
WIDEST = 1.1  # of a column
BOTTOM = 1.25
THIN = 0.1  # an operation that is under way behind what its rank does


def axes(moments: Moments) -> Axes:
    """Axes that are large enough for one picture of these moments."""
    return sheet(WIDE, TOP + ROW * moments.record.n + BOTTOM)


def place(moments: Moments, moment: int) -> tuple[float, float, float]:
    """Where the cursor stands in its picture: in the middle of the moment's column, through all lanes.

    How far it is from the left, from the top and from the bottom, as parts of the picture's width and height.
    """
    first, height = moment // COLUMNS * COLUMNS, TOP + ROW * moments.record.n + BOTTOM
    return (_x(moments, first, moment) + _width(moments) / 2) / WIDE, (TOP - 0.15) / height, BOTTOM / height


def draw(ax: Axes, moments: Moments, first: int) -> Axes:
    """Draw the moments from `first` on, on axes as `axes` makes them, y downwards."""
    last = min(first + COLUMNS, len(moments))
    top, bottom = TOP, TOP + ROW * moments.record.n
    write(ax, 0.4, 0.5, "operations in the order of their beginnings and ends", 8, FAINT, "left")
    _ticks(ax, moments, first, last, top, bottom)
    ends = (_x(moments, first, first), _x(moments, first, last))
    bars = []
    for r, mine in enumerate(moments.record.ops):
        ax.plot(ends, [lane(r)] * 2, color=PENDING, linewidth=1, zorder=1)
        chip(ax, 0.55, lane(r), r)
        write(ax, 0.82, lane(r), f"rank {r}", 9, align="left")
        for op in mine:
            if piece := _bar(ax, moments, op, first, last):
                bars.append((piece, r, op))
    room = Room([])
    for piece, r, op in sorted(bars, key=lambda b: b[:2]):
        place = f"line {op.line}" if op.line else ""
        room.label(ax, piece, r, (f"{op.op} · {place}" if place else op.op, op.op))
    _legend(ax, [op for _, _, op in bars])
    return ax


def _width(moments: Moments) -> float:
    """Of a column; all pictures of one record have the same."""
    return min(WIDEST, (WIDE - LEFT - RIGHT) / min(COLUMNS, len(moments)))


def _x(moments: Moments, first: int, moment: int) -> float:
    """Where a moment's column begins."""
    return LEFT + (moment - first) * _width(moments)


def _ticks(ax: Axes, moments: Moments, first: int, last: int, top: float, bottom: float) -> None:
    """The moments' numbers, and the time at some of them."""
    width, free, clear = _width(moments), 0.0, 0.0
    for moment in range(first, last):
        x = _x(moments, first, moment) + width / 2
        ax.plot([x, x], [top, bottom], color=GRID, linewidth=0.7, zorder=0)
        number = str(moment + moments.left_out)
        if x - extent(number, 7.5) / 2 > clear:
            write(ax, x, bottom + 0.26, number, 7.5, FAINT)
            clear = x + extent(number, 7.5) / 2 + 0.12
        said = seconds(at) if (at := moments.events[moment].at) > 0 else "0"
        if x - extent(said, 7.5) / 2 > free:
            write(ax, x, bottom + 0.6, said, 7.5, FAINT)
            free = x + extent(said, 7.5) / 2 + 0.3
    write(ax, 0.4, bottom + 0.26, "moment", 8, FAINT, "left")
    write(ax, 0.4, bottom + 0.6, "time", 8, FAINT, "left")


def _bar(ax: Axes, moments: Moments, op: Op, first: int, last: int) -> tuple[float, float] | None:
    """Draw an operation, if it is in this picture; from where to where it reaches."""
    begun, stands, over = moments.places(op)
    if over <= first or begun >= last:
        return None
    paint, y = KINDS[op.kind][0], lane(op.rank)
    failed = op.error and over < len(moments)  # by itself: what the lab has freed is not over

    def piece(start: int, end: int, high: float) -> tuple[float, float]:
        a, b = _x(moments, first, max(start, first)), _x(moments, first, min(end, last))
        if b > a:
            box = Rectangle((a, y - high / 2), b - a, high, facecolor=paint, edgecolor=INK, linewidth=0.6, zorder=4)
            ax.add_artist(box)
            if failed:
                box.set(edgecolor=WRONG, linewidth=1.6)
        return a, b

    if stands > begun:
        piece(begun, min(stands, over), THIN)
    piece(stands, over, BAR)
    if failed and over <= last:
        write(ax, _x(moments, first, over), y + BAR / 2 + 0.2, f"✗ {op.error}", 7.5, WRONG, "right")
    return _x(moments, first, max(begun, first)), _x(moments, first, min(over, last))


def _legend(ax: Axes, ops: Sequence[Op]) -> None:
    x = LEFT
    y = 0.9
    for kind, (paint, words) in KINDS.items():
        if any(op.kind == kind for op in ops):
            ax.add_artist(Rectangle((x, y - 0.13), 0.45, 0.26, facecolor=paint, edgecolor=INK, linewidth=0.6))
            write(ax, x + 0.57, y, words, 8, align="left")
            x += 0.57 + extent(words, 8) + 0.4
    if any(op.asynchronous for op in ops):
        ax.add_artist(Rectangle((x, y - THIN / 2), 0.45, THIN, facecolor=PENDING, edgecolor=INK, linewidth=0.6))
        write(ax, x + 0.57, y, "under way, before its .wait()", 8, align="left")
