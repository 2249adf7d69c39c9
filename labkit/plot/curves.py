"""Draw values over steps, or over time, a line per rank, panels side by side on one scale.

A line has its rank's colour and mark. Where lines lie upon one another their marks take turns, so all can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from labkit.plot.sheet import color, extent, headline, sheet, shortened, stroke, write
from labkit.plot.svg import FAINT, GRID, INK

ALONE, WIDE, HIGH = 8.6, 6.4, 6.4  # a panel with its margins: two side by side fit beside the file browser
LEFT, TOP, BOTTOM, RIGHT = 1.1, 0.95, 5.5, 0.25
LEGEND, MARGIN = 1.0, 0.5
ACROSS = 2  # panels in a row
MARKED = 20  # places of a panel at most that bear a mark
MARKS = ("o", "s", "^", "D", "v", "p", "P", "X")

Panel = tuple[str, Mapping[int, Sequence[float]], str]  # its heading, each rank's values, and a note
Against = tuple[str, Mapping[int, Sequence[float]]]  # an axis's words, and where each rank's values lie on it


def draw(panels: Sequence[Panel], every: int = 1, against: Sequence[Against] = ()) -> Axes:
    """Draw the panels on one scale; value i of a line belongs to step `every · (i + 1)`.

    With `against`, a panel's values lie where it says instead.
    """
    one = ALONE if len(panels) == 1 else WIDE
    wide = one * min(ACROSS, len(panels))
    ax = sheet(wide + 0.3, LEGEND + HIGH * math.ceil(len(panels) / ACROSS))
    _legend(ax, sorted({r for _, lines, _ in panels for r in lines}), wide)
    finite = [v for _, lines, _ in panels for line in lines.values() for v in line if math.isfinite(v)]
    if against:
        reached = [x for _, lines in against for line in lines.values() for x in line]
        across = ticks(min(reached), max(reached))
    else:
        longest = max((len(line) for _, lines, _ in panels for line in lines.values()), default=1)
        across = ticks(every, every * max(2, longest))
        against = [("step", {r: steps(len(line), every) for r, line in lines.items()}) for _, lines, _ in panels]
    up = ticks(min(finite, default=0.0), max(finite, default=1.0))
    for i, (panel, where) in enumerate(zip(panels, against, strict=True)):
        row, column = divmod(i, ACROSS)
        _panel(ax, (one * column, LEGEND + HIGH * row, one), panel, where, across, up)
    return ax


def steps(count: int, every: int = 1) -> list[float]:
    """Return the steps that so many values belong to, one kept after each `every` of them."""
    return [float(every * (i + 1)) for i in range(count)]


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers, four to eight of them, that enclose low and high, from 0 where that is one step below.

    >>> ticks(2.5, 3.6), ticks(13, 60)
    ([2.4, 2.6, 2.8, 3.0, 3.2, 3.4, 3.6], [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    """
    room = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(room / 5))
    step = next(step for k in (1, 2, 5, 10) if room / (step := k * power) <= 5.5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    first = 0 if first == 1 else first  # else three times as much would look like five times
    digits = max(0, -math.floor(math.log10(step)))
    return [round(k * step, digits) for k in range(first, max(last, first + 1) + 1)]


def _legend(ax: Axes, ranks: Sequence[int], room: float) -> None:
    """Name as many ranks as there is room for, and the last."""
    x = MARGIN
    last = f"… rank {ranks[-1]}"
    for r in ranks:
        more = 0.4 + extent(last, 8) if r != ranks[-1] else 0.0
        if x + 0.85 + extent(f"rank {r}", 8) + more > room:
            write(ax, x, 0.5, last, 8, align="left")
            return
        ax.plot([x, x + 0.7], [0.5, 0.5], color=stroke(r), linewidth=1.6)
        mark(ax, x + 0.35, 0.5, r, color(r), 0.6)
        write(ax, x + 0.85, 0.5, f"rank {r}", 8, align="left")
        x += 1.25 + extent(f"rank {r}", 8)


def frame(
    ax: Axes, box: tuple[float, float, float, float], across: Sequence[float], up: Sequence[float], what: str
) -> Callable[[float, float], tuple[float, float]]:
    """Draw a grid with its figures in a box (left, right, top, bottom), and return where a point lies in it."""
    left, right, top, bottom = box

    def place(along: float, value: float) -> tuple[float, float]:
        return (
            left + (right - left) * (along - across[0]) / (across[-1] - across[0]),
            bottom - (bottom - top) * (value - up[0]) / (up[-1] - up[0]),
        )

    for value in up:
        _, level = place(0, value)
        ax.plot([left, right], [level, level], color=GRID, linewidth=0.7, zorder=0)
        write(ax, left - 0.15, level, f"{value:.6g}", 7.5, FAINT, "right")
    figures = [figure(along) for along in across]
    widest = max(extent(said, 7.5) for said in figures)
    some = math.ceil((widest + 0.25) * (len(across) - 1) / (right - left))  # where all do not fit, every second one …
    for along, said in list(zip(across, figures, strict=True))[::some]:
        upright, _ = place(along, up[0])
        end = right + RIGHT + 0.2  # where the sheet ends, or the next panel's figures begin
        if upright + extent(said, 7.5) / 2 > end:
            write(ax, end, bottom + 0.28, said, 7.5, FAINT, "right")
        else:
            write(ax, upright, bottom + 0.28, said, 7.5, FAINT)
    write(ax, (left + right) / 2, bottom + 0.68, shortened(what, right - left, 8), 8, FAINT)
    return place


def figure(along: float) -> str:
    """Write a number on an axis: seconds, steps, samples.

    >>> figure(0.013), figure(60), figure(24000), figure(2.5e12)
    ('0.013', '60', '24,000', '2.5e+12')
    """
    return f"{along:,.10g}" if 1000 <= abs(along) < 1e10 else f"{along:.6g}"


def _panel(
    ax: Axes,
    spot: tuple[float, float, float],
    panel: Panel,
    against: Against,
    across: Sequence[float],
    up: Sequence[float],
) -> None:
    heading, lines, note = panel
    what, where = against
    x, y, wide = spot
    left, right = x + LEFT, x + wide - RIGHT
    headline(ax, left, y + 0.25, heading, right - left, mono=True)
    write(ax, left, y + 0.62, shortened(note, right - left, 7.5), 7.5, FAINT, "left")
    place = frame(ax, (left, right, y + TOP, y + BOTTOM), across, up, what)
    for nth, (r, line) in enumerate(sorted(lines.items())):
        places = points(place, where[r], line)
        ax.plot(*zip(*places, strict=True), color=stroke(r), linewidth=1.6, zorder=2)
        gap = math.ceil(len(places) / MARKED)
        for i, (across_, level) in enumerate(places[gap - 1 :: gap]):
            if i % len(lines) == nth and math.isfinite(level):
                mark(ax, across_, level, r, color(r), 0.6)


def points(
    place: Callable[[float, float], tuple[float, float]], xs: Sequence[float], ys: Sequence[float]
) -> list[tuple[float, float]]:
    """Return where a line's points lie; one whose value is not finite is a gap."""
    return [place(x, y) if math.isfinite(y) else (math.nan, math.nan) for x, y in zip(xs, ys, strict=True)]


def mark(ax: Axes, x: float, y: float, nth: int, fill: str, edge: float) -> None:
    """Draw the n-th line's mark."""
    look: dict[str, Any] = {"color": fill, "markeredgecolor": INK, "markeredgewidth": edge}
    ax.plot([x], [y], marker=MARKS[nth % len(MARKS)], markersize=6, zorder=4, **look)
