"""Draw curves over sizes, and a map of who is fastest over sizes and ranks; letters tell the algorithms apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import Circle, PathPatch
from matplotlib.path import Path

from labkit.floor.words import nbytes, seconds
from labkit.plot import sheet
from labkit.plot.sheet import BLACK, color, headline, write
from labkit.plot.svg import FAINT, GRID, INK, PAGE
from workbook.tools.sweep.plot import STYLES, Panel, badge, join

WIDE = sheet.FULL
TOP, BOTTOM, WIDTH = 2.4, 8.55, 6.4  # of a panel
LEFTS = (1.6, 10.0)
ROW, ROWS = 0.52, 10.0  # the legend's lines, and where they begin
COLUMNS = (0.45, 8.75)  # of the legend


@dataclass(frozen=True)
class Scene:
    """What is drawn.

    `curves[name]` are seconds over `sizes`; `map[i][j]` is the index of the fastest of `curves` for `ranks[i]` and
    `sizes[j]`; `here` is the size and the number of ranks that the curves are for.
    """

    title: str
    links: str
    sizes: npt.NDArray[np.float64]
    ranks: Sequence[int]
    curves: dict[str, npt.NDArray[np.float64]]
    map: npt.NDArray[np.int_]
    here: tuple[float, int]
    legend: Sequence[str]  # a line for each curve
    extra: tuple[str, npt.NDArray[np.float64]] | None = None  # one more curve, which has no letter
    ahead: npt.NDArray[np.bool_] | None = None  # where on the map that curve's way is faster than every letter

    @property
    def hatched(self) -> bool:
        """Tell whether that curve's way is faster than every letter anywhere on the map."""
        return self.ahead is not None and bool(self.ahead.any())

    def panel(self, nth: int, low: float = 1.0, high: float = 2.0) -> Panel:
        """Return the scales of the curves (0) or the map (1), whose values go from `low` to `high`."""
        return Panel(LEFTS[nth], (self.sizes[0], self.sizes[-1]), (low, high), WIDTH, TOP, BOTTOM)


def draw(scene: Scene) -> Axes:
    """Draw the curves, the map and the legend."""
    words = [*scene.legend, *([scene.extra[0]] if scene.extra else [])]
    words += ["hatched: NCCL, estimated, is faster than every letter"] * scene.hatched
    ax = sheet.sheet(WIDE, ROWS + ROW * ((len(words) + 1) // 2) + 0.15)
    headline(ax, 0.5, 0.6, scene.title)
    write(ax, 0.5, 1.15, scene.links, 8, FAINT, "left")
    _curves(ax, scene)
    _map(ax, scene)
    for i, line in enumerate(words):
        x, y = COLUMNS[i % 2], ROWS + ROW * (i // 2)
        if i < len(scene.legend):
            join(ax, [(x, y), (x + 0.9, y)], color=sheet.stroke(i), linewidth=2, linestyle=STYLES[i % 4])
            badge(ax, x + 0.45, y, i)
        elif i == len(scene.legend):
            join(ax, [(x, y), (x + 0.9, y)], color=INK, linewidth=1.1, linestyle=":")
        else:
            corners = [(x, y - 0.18), (x + 0.9, y - 0.18), (x + 0.9, y + 0.18), (x, y + 0.18)]
            ax.add_artist(_hatched(Path(corners), INK))  # on the page, which may be dark
        write(ax, x + 1.15, y, line, 8, align="left")
    return ax


def _curves(ax: Axes, scene: Scene) -> None:
    every = [*scene.curves.values(), *([scene.extra[1]] if scene.extra else [])]
    shown = np.concatenate([c[c > 0] for c in every])
    low, high = 10.0 ** math.floor(math.log10(shown.min())), 10.0 ** math.ceil(math.log10(shown.max()))
    panel = scene.panel(0, low, high)
    write(ax, LEFTS[0], TOP - 0.4, f"seconds on {scene.here[1]:,} ranks", 8.5, align="left")
    _sizes(ax, panel, lines=True)
    decades = round(math.log10(high / low))
    for k in range(0, decades + 1, max(1, decades // 6)):
        y = panel.y(low * 10**k)
        join(ax, [(LEFTS[0], y), (LEFTS[0] + WIDTH, y)], color=GRID, linewidth=0.7, zorder=0)
        write(ax, LEFTS[0] - 0.15, y, seconds(low * 10**k), 7.5, FAINT, "right")
    order = sorted(range(len(scene.curves)), key=lambda i: -list(scene.curves.values())[i][-1])
    for i, curve in enumerate(scene.curves.values()):
        points = panel.points(scene.sizes, curve)
        join(ax, points, color=sheet.stroke(i), linewidth=1.8, linestyle=STYLES[i % 4], zorder=3)
        place = (2 * order.index(i) + 1) * len(points) // (2 * len(order))  # badges side by side, never on one spot
        badge(ax, *points[place], i)
    if scene.extra:
        join(ax, panel.points(scene.sizes, scene.extra[1]), color=INK, linewidth=1.1, linestyle=":", zorder=4)
    x = panel.x(scene.here[0])
    join(ax, [(x, TOP), (x, BOTTOM)], color=INK, linewidth=0.8, zorder=2)


def _map(ax: Axes, scene: Scene) -> None:
    """Draw a stripe for each run of one winner, and a letter where its region is widest."""
    who = "the fastest letter" if scene.extra else "the fastest"
    write(ax, LEFTS[1], TOP - 0.4, f"{who}, by size and ranks (powers of two)", 8.5, align="left")
    rows, columns = scene.map.shape
    high, wide = (BOTTOM - TOP) / rows, WIDTH / columns
    for i in range(rows):
        if i % 2 == 0 or rows < 9:
            write(ax, LEFTS[1] - 0.15, BOTTOM - (i + 0.5) * high, f"{scene.ranks[i]:,}", 7.5, FAINT, "right")
    for which in dict.fromkeys(scene.map.ravel().tolist()):
        paint = color(which)
        ax.add_artist(PathPatch(_stripes(scene.map == which), facecolor=paint, edgecolor=paint, linewidth=0.4))
    if scene.ahead is not None and scene.hatched:
        ax.add_artist(_hatched(_stripes(scene.ahead)))
    for which in np.unique(scene.map):
        for i, j in _middles(scene.map == which):
            badge(ax, LEFTS[1] + (j + 0.5) * wide, BOTTOM - (i + 0.5) * high, int(which))
    panel = scene.panel(1)
    _sizes(ax, panel, lines=False)
    x = panel.x(scene.here[0])
    steps = [math.log(n) for n in scene.ranks]
    row = float(np.interp(math.log(scene.here[1]), steps, range(rows)))
    y = BOTTOM - (row + 0.5) * high
    for inner, ink in ((2.6, PAGE), (1.3, INK)):
        ax.add_artist(Circle((x, y), 0.2, facecolor="none", edgecolor=ink, linewidth=inner, zorder=7))
    join(ax, [(x - 0.3, y), (x + 0.3, y)], color=INK, linewidth=0.9, zorder=7)
    join(ax, [(x, y - 0.3), (x, y + 0.3)], color=INK, linewidth=0.9, zorder=7)


def _box(x: float, y: float, wide: float, high: float) -> Path:
    return Path([(x, y), (x + wide, y), (x + wide, y + high), (x, y + high), (x, y)], closed=True)


def _stripes(region: npt.NDArray[np.bool_]) -> Path:
    """Return a box for each run of cells in a row that are true."""
    high, wide = (BOTTOM - TOP) / region.shape[0], WIDTH / region.shape[1]
    boxes = []
    for i, row in enumerate(region):
        edges = np.flatnonzero(np.diff(row, prepend=False, append=False))
        for j, k in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            boxes.append(_box(LEFTS[1] + j * wide, BOTTOM - i * high, (k - j) * wide, -high))
    return Path.make_compound_path(*boxes)


def _hatched(path: Path, ink: str = BLACK) -> PathPatch:
    return PathPatch(path, facecolor="none", edgecolor=ink, hatch="///", linewidth=0)


def _middles(region: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Find where each region's letter goes: the cell that lies deepest in it; none in specks."""
    region = region.copy()
    found = []
    while region.sum() >= 6:
        depth, layer = np.zeros(region.shape, int), np.pad(region, 1)
        while layer.any():
            depth += layer[1:-1, 1:-1]
            layer[1:-1, 1:-1] &= layer[:-2, 1:-1] & layer[2:, 1:-1] & layer[1:-1, :-2] & layer[1:-1, 2:]
        deepest = np.argwhere(depth == depth.max())
        i, j = deepest[np.abs(deepest - deepest.mean(0)).sum(1).argmin()]
        found.append((int(i), int(j)))
        piece = np.zeros_like(region)  # take the piece that it lies in away
        piece[i, j] = True
        while True:
            grown = np.pad(piece, 1)
            grown = (grown[:-2, 1:-1] | grown[2:, 1:-1] | grown[1:-1, :-2] | grown[1:-1, 2:] | piece) & region
            if (grown == piece).all():
                break
            piece = grown
        if piece.sum() < 6:
            found.pop()
        region &= ~piece
    return found


def _sizes(ax: Axes, panel: Panel, lines: bool) -> None:
    first, last = math.ceil(math.log2(panel.sizes[0])), math.floor(math.log2(panel.sizes[1]))
    for k in range(first, last + 1, max(1, (last - first) // 5)):
        x = panel.x(2.0**k)
        ends = [(x, TOP), (x, BOTTOM)] if lines else [(x, BOTTOM), (x, BOTTOM + 0.1)]
        join(ax, ends, color=GRID if lines else FAINT, linewidth=0.7, zorder=0)
        write(ax, x, BOTTOM + 0.33, nbytes(2.0**k), 7.5, FAINT)
    write(ax, panel.left + WIDTH / 2, BOTTOM + 0.85, "size S (logarithmic)", 8, FAINT)
