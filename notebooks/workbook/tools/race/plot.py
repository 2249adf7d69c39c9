"""A race over sizes: how many times as fast as the reference each contestant is, a line each, axes logarithmic."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Circle, PathPatch, RegularPolygon
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from labkit.plot.sheet import FULL, extent, headline, sheet, write
from labkit.plot.svg import INK
from workbook.tools.sweep.plot import line, panel

WIDE, HIGH = FULL, 9.6
LEFT, WIDTH = 1.9, 14.4
SMALL = 8.0  # points
# Okabe and Ito's; each with a shape and a line of its own, so that nothing is told by colour alone.
LOOKS = (
    ("#D55E00", "circle", "-"),
    ("#0072B2", "square", "--"),
    ("#009E73", "triangle", "-."),
    ("#CC79A7", "diamond", ":"),
    ("#E69F00", "star", "--"),
    ("#56B4E9", "cross", "-."),
)


def draw(title: str, reference: str, ratios: Mapping[str, Mapping[int, float]]) -> Axes:
    """Draw `ratios[name][size]`; `reference` is the contestant that they are ratios to."""
    ax = sheet(WIDE, HIGH)
    headline(ax, 0.5, 0.62, title)
    values = [v for mine in ratios.values() for v in mine.values()]
    sizes = sorted({s for mine in ratios.values() for s in mine})
    grid = panel(ax, LEFT, sizes, [0.5, 2.0, *values], "{:g} ×".format, WIDTH)
    even = grid.y(1.0)
    ax.plot([LEFT, LEFT + WIDTH], [even, even], color=INK, linewidth=1.2, zorder=1)
    even_is = f"{reference} is 1 ×, higher is faster"
    write(ax, LEFT + 1.0, 1.3, even_is, SMALL, align="left", mono=True)
    ax.plot([LEFT, LEFT + 0.8], [1.3, 1.3], color=INK, linewidth=1.2)
    x, y = LEFT + 1.6 + extent(even_is, SMALL, mono=True), 1.3
    for (name, mine), (paint, shape, style) in zip(ratios.items(), cycle(LOOKS), strict=False):
        room = 1.2 + extent(name, SMALL, mono=True) + 0.4
        if x + room > WIDE:
            x, y = LEFT, y + 0.5
        ax.plot([x, x + 0.8], [y, y], color=paint, linewidth=1.5, linestyle=style)
        _mark(ax, x + 0.4, y, shape, paint)
        write(ax, x + 1.0, y, name, SMALL, align="left", mono=True)
        x += room
        line(ax, grid, list(mine), list(mine.values()), paint, style)
        for size, value in mine.items():
            _mark(ax, grid.x(size), grid.y(value), shape, paint)
    return ax


def _mark(ax: Axes, x: float, y: float, shape: str, paint: str) -> None:
    style: dict[str, Any] = {"facecolor": paint, "edgecolor": "none", "zorder": 5}
    if shape == "circle":
        ax.add_artist(Circle((x, y), 0.11, **style))
    elif shape in ("square", "diamond", "triangle"):
        corners, turn = {"square": (4, 0.785398), "diamond": (4, 0.0), "triangle": (3, 3.141593)}[shape]
        ax.add_artist(RegularPolygon((x, y), corners, radius=0.15, orientation=turn, **style))
    else:
        star = Path.unit_regular_star(5) if shape == "star" else Path.unit_regular_star(4, 0.3)
        ax.add_artist(PathPatch(star.transformed(Affine2D().scale(0.17).translate(x, y)), **style))
