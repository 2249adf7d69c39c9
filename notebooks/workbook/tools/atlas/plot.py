"""Draw published tables over sizes, both axes logarithmic: letters and dashes tell them apart, squares the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

from labkit.floor.words import nbytes, seconds
from labkit.plot import sheet
from labkit.plot.sheet import headline, stroke, write
from labkit.plot.svg import FAINT, GRID, INK
from workbook.tools.sweep import plot as curves
from workbook.tools.sweep.plot import STYLES, Panel, badge, join, marks, rate

WIDE = 14.8
LEFT, TOP, BOTTOM, WIDTH = 1.75, 1.9, 9.3, 12.6  # of the panel
ROW, ROWS = 0.52, 10.75  # the legend's lines, and where they begin
LETTERS = curves.LETTERS[:6]  # as many as one can follow with the eye; others come on the next page
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
        """All the curves."""
        return [*self.tables, *filter(None, (self.own, self.model)), *self.limits]


def draw(scene: Scene) -> Axes:
    """Draw the curves and their legend."""
    ax = sheet.sheet(WIDE, ROWS + ROW * len(scene.every) + 0.1)
    headline(ax, 0.4, 0.55, scene.title)
    for i, line in enumerate(sheet.wrapped(scene.note, WIDE - 0.8, 8)[:2]):
        write(ax, 0.4, 1.1 + 0.42 * i, line, 8, FAINT, "left")
    panel = _panel(scene)
    _grid(ax, panel, seconds if scene.time else rate)
    taken: list[tuple[float, float]] = []
    y = ROWS
    for limit in scene.limits:
        points = _seen(panel, limit)
        join(ax, points, color=FAINT, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
        for x, high in points[:1]:  # its figure tells it from the other limits
            write(ax, x + 0.1, high - 0.2, limit.said.rpartition(", ")[2], 7.5, FAINT, "left")
    for i, table in enumerate(scene.tables):
        points, look = _seen(panel, table), {"color": stroke(i), "linestyle": STYLES[i % 4]}
        join(ax, points, linewidth=1.6, zorder=3, **look)
        for at in points:
            ax.add_artist(Circle(at, 0.055, facecolor=stroke(i), edgecolor="none", zorder=3))
        if points:
            where = LEFT + WIDTH * (i + 0.5) / len(scene.tables)
            taken.append(_free(sorted(points, key=lambda at: abs(at[0] - where)), taken))
            badge(ax, *taken[-1], i, zorder=7)
        join(ax, [(0.5, y), (1.4, y)], linewidth=1.8, **look)
        badge(ax, 0.95, y, i, zorder=7)
        write(ax, 1.65, y, sheet.shortened(table.said, WIDE - 2, 8), 8, align="left")
        y += ROW
    if scene.model:
        join(ax, _seen(panel, scene.model), color=INK, linewidth=1.3, linestyle="--", zorder=4)
        join(ax, [(0.5, y), (1.4, y)], color=INK, linewidth=1.3, linestyle="--")
        write(ax, 1.65, y, sheet.shortened(scene.model.said, WIDE - 2, 8), 8, align="left")
        y += ROW
    if scene.own:
        for points in (_seen(panel, scene.own), [(0.5, y), (1.4, y)]):
            join(ax, points, color=INK, linewidth=2.4, zorder=6)
            for px, py in points:
                box = Rectangle((px - 0.09, py - 0.09), 0.18, 0.18, facecolor=INK, edgecolor="none", zorder=6)
                ax.add_artist(box)
        write(ax, 1.65, y, sheet.shortened(scene.own.said, WIDE - 2, 8, mono=False), 8, align="left", bold=True)
        y += ROW
    for limit in scene.limits:
        join(ax, [(0.5, y), (1.4, y)], color=FAINT, linewidth=1.2, linestyle=(0, (1, 2)))
        write(ax, 1.65, y, sheet.shortened(limit.said, WIDE - 2, 8), 8, align="left")
        y += ROW
    return ax


def _panel(scene: Scene) -> Panel:
    """Make room for all that was measured and for the model; of bandwidths the upper decades, where machines differ."""
    measured = [*scene.tables, *filter(None, (scene.own,))]
    points = [(s, v) for line in measured for s, v in zip(line.sizes, line.values, strict=True)]
    lines = [*measured, *filter(None, (scene.model,))] if scene.time else scene.every
    drawn = [v for line in lines for v in line.values]
    low, high = min(v for _, v in points) / 1.3, max(drawn) * 1.3
    if not scene.time:
        low = max(low, high / 10**DECADES)
    sizes = [s for s, v in points if v >= low]
    across = (min(sizes) / 1.4, max(max(sizes), 2 * min(sizes)) * 1.4)
    return Panel(LEFT, across, (low, high), WIDTH, TOP, BOTTOM)


def _seen(panel: Panel, line: Line) -> list[tuple[float, float]]:
    """Return where those of a line's points lie that are on the panel."""
    points = zip(line.sizes, line.values, strict=True)
    (left, right), (low, high) = panel.sizes, panel.values
    return [(panel.x(s), panel.y(v)) for s, v in points if left <= s <= right and low <= v <= high]


def _grid(ax: Axes, panel: Panel, said: Callable[[float], str]) -> None:
    first, last = math.ceil(math.log2(panel.sizes[0])), math.floor(math.log2(panel.sizes[1]))
    for k in range(first, last + 1, max(1, math.ceil((last - first) / 8))):
        x = panel.x(2.0**k)
        join(ax, [(x, TOP), (x, BOTTOM)], color=GRID, linewidth=0.7, zorder=0)
        write(ax, x, BOTTOM + 0.32, nbytes(2.0**k), 7.5, FAINT)
    for value in marks(*panel.values):
        y = panel.y(value)
        join(ax, [(LEFT, y), (LEFT + WIDTH, y)], color=GRID, linewidth=0.7, zorder=0)
        write(ax, LEFT - 0.15, y, said(value), 7.5, FAINT, "right")
    write(ax, LEFT + WIDTH / 2, BOTTOM + 0.85, "size S (both scales logarithmic)", 8, FAINT)


def _free(points: Sequence[tuple[float, float]], taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Choose the first point where no letter stands; where one stands on each, go up from the first."""
    x, y = points[0]
    over = [(x, y - 0.42 * k) for k in range(1, len(taken) + 1)]
    free = (at for at in (*points, *over) if all(math.dist(at, other) >= 0.41 for other in taken))
    return next(free, (x, y))
