"""Published tables as curves over sizes, both axes logarithmic; letters and dashes tell them apart, squares the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Rectangle

from labkit.floor.words import nbytes, seconds
from labkit.plot import sheet
from labkit.plot.sheet import color, on, stroke, write
from labkit.plot.svg import FAINT, GRID, INK
from workbook.tools.sweep.plot import marks, rate

WIDE = 14.8
LEFT, TOP, BOTTOM, WIDTH = 1.75, 1.9, 9.3, 12.6  # of the panel
ROW, ROWS = 0.52, 10.75  # the legend's lines, and where they begin
LETTERS = "ABCDEF"  # as many as one can follow with the eye; others come on the next page
STYLES = ("-", "--", "-.", ":")
DECADES = 3.2  # of bandwidth at most: what lies below is left out


@dataclass(frozen=True)
class Line:
    """A curve: `values` over `sizes` and the words beside it in the legend."""

    said: str
    sizes: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class Scene:
    """What is drawn. Values are GB/s, or seconds where `time` is true."""

    title: str
    note: str
    time: bool
    tables: Sequence[Line]
    own: Line | None = None
    model: Line | None = None
    limits: Sequence[Line] = ()

    @property
    def every(self) -> list[Line]:
        """All curves."""
        return [*self.tables, *filter(None, (self.own, self.model)), *self.limits]


@dataclass(frozen=True)
class Scales:
    """Where a size and a value lie."""

    sizes: tuple[float, float]
    values: tuple[float, float]

    def x(self, size: float) -> float:
        """Where a size lies."""
        return LEFT + WIDTH * math.log(size / self.sizes[0]) / math.log(self.sizes[1] / self.sizes[0])

    def y(self, value: float) -> float:
        """Where a value lies."""
        return BOTTOM - (BOTTOM - TOP) * math.log(value / self.values[0]) / math.log(self.values[1] / self.values[0])

    def seen(self, line: Line) -> list[tuple[float, float]]:
        """A line's points that are on the panel."""
        points = zip(line.sizes, line.values, strict=True)
        (left, right), (low, high) = self.sizes, self.values
        return [(self.x(s), self.y(v)) for s, v in points if left <= s <= right and low <= v <= high]


def axes(scene: Scene) -> Axes:
    """Axes that are large enough."""
    return sheet.sheet(WIDE, ROWS + ROW * len(scene.every) + 0.1)


def draw(ax: Axes, scene: Scene) -> Axes:
    """Draw the scene on axes as `axes` makes them."""
    write(ax, 0.4, 0.55, scene.title, 10, align="left")
    for i, line in enumerate(sheet.wrapped(scene.note, WIDE - 0.8, 8)[:2]):
        write(ax, 0.4, 1.1 + 0.42 * i, line, 8, FAINT, "left")
    scales = _scales(scene)
    _grid(ax, scales, seconds if scene.time else rate)
    taken: list[tuple[float, float]] = []
    y = ROWS
    for limit in scene.limits:
        _line(ax, scales.seen(limit), color=FAINT, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
    for i, table in enumerate(scene.tables):
        points, look = scales.seen(table), {"color": stroke(i), "linestyle": STYLES[i % 4]}
        _line(ax, points, linewidth=1.6, zorder=3, **look)
        for at in points:
            ax.add_artist(Circle(at, 0.055, facecolor=stroke(i), edgecolor="none", zorder=3))
        if points:
            where = LEFT + WIDTH * (i + 0.5) / len(scene.tables)
            taken.append(_free(sorted(points, key=lambda at: abs(at[0] - where)), taken))
            _badge(ax, *taken[-1], i)
        _line(ax, [(0.5, y), (1.4, y)], linewidth=1.8, **look)
        _badge(ax, 0.95, y, i)
        write(ax, 1.65, y, sheet.shortened(table.said, WIDE - 2, 8), 8, align="left")
        y += ROW
    if scene.model:
        _line(ax, scales.seen(scene.model), color=INK, linewidth=1.3, linestyle="--", zorder=4)
        _line(ax, [(0.5, y), (1.4, y)], color=INK, linewidth=1.3, linestyle="--")
        write(ax, 1.65, y, sheet.shortened(scene.model.said, WIDE - 2, 8), 8, align="left")
        y += ROW
    if scene.own:
        for points in (scales.seen(scene.own), [(0.5, y), (1.4, y)]):
            _line(ax, points, color=INK, linewidth=2.4, zorder=6)
            for px, py in points:
                box = Rectangle((px - 0.09, py - 0.09), 0.18, 0.18, facecolor=INK, edgecolor="none", zorder=6)
                ax.add_artist(box)
        write(ax, 1.65, y, sheet.shortened(scene.own.said, WIDE - 2, 8, mono=False), 8, align="left", bold=True)
        y += ROW
    for limit in scene.limits:
        _line(ax, [(0.5, y), (1.4, y)], color=FAINT, linewidth=1.2, linestyle=(0, (1, 2)))
        write(ax, 1.65, y, sheet.shortened(limit.said, WIDE - 2, 8), 8, align="left")
        y += ROW
    return ax


def _scales(scene: Scene) -> Scales:
    """Room for all that was measured, and for the model; of bandwidths the upper decades, where machines differ."""
    measured = [*scene.tables, *filter(None, (scene.own,))]
    points = [(s, v) for line in measured for s, v in zip(line.sizes, line.values, strict=True)]
    drawn = [
        v
        for line in (scene.every if not scene.time else [*measured, *filter(None, (scene.model,))])
        for v in line.values
    ]
    low, high = min(v for _, v in points) / 1.3, max(drawn) * 1.3
    if not scene.time:
        low = max(low, high / 10**DECADES)
    sizes = [s for s, v in points if v >= low]
    return Scales((min(sizes) / 1.4, max(max(sizes), 2 * min(sizes)) * 1.4), (low, high))


def _grid(ax: Axes, scales: Scales, said: Callable[[float], str]) -> None:
    first, last = math.ceil(math.log2(scales.sizes[0])), math.floor(math.log2(scales.sizes[1]))
    for k in range(first, last + 1, max(1, math.ceil((last - first) / 8))):
        x = scales.x(2.0**k)
        _line(ax, [(x, TOP), (x, BOTTOM)], color=GRID, linewidth=0.7, zorder=0)
        write(ax, x, BOTTOM + 0.32, nbytes(2.0**k), 7.5, FAINT)
    for value in marks(*scales.values):
        y = scales.y(value)
        _line(ax, [(LEFT, y), (LEFT + WIDTH, y)], color=GRID, linewidth=0.7, zorder=0)
        write(ax, LEFT - 0.15, y, said(value), 7.5, FAINT, "right")
    write(ax, LEFT + WIDTH / 2, BOTTOM + 0.85, "size S (both scales logarithmic)", 8, FAINT)


def _free(points: Sequence[tuple[float, float]], taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The first point where no letter stands; where one stands on each, above the first as far as need be."""
    x, y = points[0]
    over = [(x, y - 0.42 * k) for k in range(1, len(taken) + 1)]
    free = (at for at in (*points, *over) if all(math.dist(at, other) >= 0.41 for other in taken))
    return next(free, (x, y))


def _line(ax: Axes, points: Sequence[tuple[float, float]], **look: Any) -> None:
    ax.add_artist(Line2D([x for x, _ in points], [y for _, y in points], **look))


def _badge(ax: Axes, x: float, y: float, i: int) -> None:
    ax.add_artist(Circle((x, y), 0.19, facecolor=color(i), edgecolor=INK, linewidth=0.8, zorder=7))
    write(ax, x, y + 0.01, LETTERS[i], 7, on(i))
