"""Draw several lists of numbers in one panel, to compare ways of training: a dash pattern and a mark each.

Colours mean ranks here, and a line may stand for all of them: so lines are ink. What ranks reached apart is shaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes

from labkit.plot.curves import MARKS, frame, mark, points, ticks
from labkit.plot.sheet import extent, sheet, shortened, write
from labkit.plot.svg import FAINT, INK, PAGE

WIDE, HIGH = 11.2, 5.0  # of the panel without its margins
LEFT, RIGHT, BOTTOM = 1.2, 0.6, 1.0
ROW, SAMPLE, TOP = 0.46, 1.7, 0.3  # a line of the legend, how long its piece of line is, and the gap below it
MOST = len(MARKS)  # more lines than that cannot be told apart
MARKED = 7  # marks of a line
DASHES = ("-", (0, (4, 1.6)), (0, (1, 1.3)), (0, (7, 1.6, 1, 1.6)), (0, (2.2, 1.2)), (0, (9, 1.4, 1, 1.2, 1, 1.4)))


@dataclass(frozen=True)
class Line:
    """One line: where its points lie, the lowest and the highest rank there if they differ, and what to say of it."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None
    note: str


def draw(lines: Sequence[Line], what: str, ylabel: str = "") -> Axes:
    """Draw the lines in one panel; `what` is said under one axis, `ylabel` above the other."""
    top = ROW * (len(lines) + bool(ylabel)) + TOP  # below the legend, and below what the values are
    ax = sheet(LEFT + WIDE + RIGHT, top + HIGH + BOTTOM)
    if ylabel:
        write(ax, LEFT - 0.15, top - 0.35, shortened(ylabel, WIDE, 8), 8, FAINT, "left")
    seen = [v for line in lines for ys in (line.ys, *(line.band or ())) for v in ys if math.isfinite(v)]
    along = [x for line in lines for x in line.xs]
    low, high = min(along), max(along)
    across = ticks(low, high if high > low else low + (abs(low) or 1.0))
    up = ticks(min(seen, default=0.0), max(seen, default=1.0))
    place = frame(ax, (LEFT, LEFT + WIDE, top, top + HIGH), across, up, what)
    for nth, line in enumerate(lines):
        y = ROW * (nth + 0.6)
        _stroke(ax, [(LEFT, y), (LEFT + SAMPLE, y)], nth)
        mark(ax, LEFT + SAMPLE / 2, y, nth, PAGE, 1)
        _words(ax, line, y)
        if line.band is not None:
            low_high = [*zip(line.xs, *line.band, strict=True)]
            for finite, part in groupby(low_high, lambda point: all(map(math.isfinite, point))):
                if finite:
                    pairs = [(place(x, a), place(x, b)) for x, a, b in part]
                    around = [low for low, _ in pairs] + [high for _, high in reversed(pairs)]
                    ax.fill(*zip(*around, strict=True), facecolor=INK, alpha=0.13, linewidth=0, zorder=1)
        places = points(place, line.xs, line.ys)
        _stroke(ax, places, nth)
        for i in _marked([x for x, _ in places], nth / len(lines)):
            mark(ax, *places[i], nth, PAGE, 1)
    return ax


def _words(ax: Axes, line: Line, y: float) -> None:
    """Write the name, and the note behind it: each as much as there is room for."""
    x, end = LEFT + SAMPLE + 0.25, LEFT + WIDE
    name = shortened(line.name, 0.6 * (end - x), 9, mono=True)
    write(ax, x, y, name, 9, align="left", mono=True)
    x += extent(name, 9, mono=True) + 0.3
    write(ax, x, y, shortened(line.note, end - x, 7.5), 7.5, FAINT, "left")


def _marked(xs: Sequence[float], shift: float) -> list[int]:
    """Choose the points of a line that bear its mark: about equally far apart, lines' marks beside each other's."""
    held = [i for i, x in enumerate(xs) if math.isfinite(x)]
    if not held:
        return []
    first, last = xs[held[0]], xs[held[-1]]
    wanted = [first + (last - first) * (k + (1 + shift) / 2) / MARKED for k in range(MARKED)]
    return sorted({min(held, key=lambda i: abs(xs[i] - x)) for x in wanted})


def _stroke(ax: Axes, places: Sequence[tuple[float, float]], nth: int) -> None:
    ax.plot(*zip(*places, strict=True), color=INK, linewidth=1.5, linestyle=DASHES[nth % len(DASHES)], zorder=2)
