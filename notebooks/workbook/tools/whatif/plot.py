"""Curves over sizes, and a map of who is fastest over sizes and ranks; letters tell the algorithms apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, PathPatch
from matplotlib.path import Path

from labkit.floor.words import nbytes, seconds
from labkit.plot import sheet
from labkit.plot.sheet import BLACK, color, on, write
from labkit.plot.svg import FAINT, GRID, INK, PAGE

WIDE = 17.6
TOP, BOTTOM, WIDTH = 2.4, 8.55, 6.6  # of a panel
LEFTS = (1.6, 10.35)
ROW, ROWS = 0.52, 10.0  # the legend's lines, and where they begin
COLUMNS = (0.45, 9.1)  # of the legend
STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Scene:
    """What is drawn. `curves[name]` are seconds over `sizes`; `map[i][j]` is the index of the fastest of `curves`
    for `ranks[i]` and `sizes[j]`; `here` is the size and the number of ranks that the curves are for."""

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


def axes(scene: Scene) -> Axes:
    """Axes that are large enough."""
    return sheet.sheet(WIDE, ROWS + ROW * ((_legends(scene) + 1) // 2) + 0.15)


def draw(ax: Axes, scene: Scene) -> Axes:
    """Draw the scene on axes as `axes` makes them."""
    write(ax, 0.5, 0.6, scene.title, 10, align="left")
    write(ax, 0.5, 1.15, scene.links, 8, FAINT, "left")
    _curves(ax, scene)
    _map(ax, scene)
    names = list(scene.curves)
    for i, line in enumerate(scene.legend):
        x, y = COLUMNS[i % 2], ROWS + ROW * (i // 2)
        _line(ax, [x, x + 0.9], [y, y], color=sheet.stroke(i), linewidth=2, linestyle=STYLES[i % 4])
        _badge(ax, x + 0.45, y, i)
        write(ax, x + 1.15, y, line, 8, align="left")
    i = len(names)
    if scene.extra is not None:
        x, y = COLUMNS[i % 2], ROWS + ROW * (i // 2)
        _line(ax, [x, x + 0.9], [y, y], color=INK, linewidth=1.1, linestyle=":")
        write(ax, x + 1.15, y, scene.extra[0], 8, align="left")
        i += 1
    if scene.ahead is not None and scene.ahead.any():
        x, y = COLUMNS[i % 2], ROWS + ROW * (i // 2)
        ax.add_artist(_hatched(Path([(x, y - 0.18), (x + 0.9, y - 0.18), (x + 0.9, y + 0.18), (x, y + 0.18)])))
        write(ax, x + 1.15, y, "hatched: NCCL, estimated, is faster than every letter", 8, align="left")
    return ax


def _legends(scene: Scene) -> int:
    return len(scene.legend) + (scene.extra is not None) + (scene.ahead is not None and bool(scene.ahead.any()))


def _curves(ax: Axes, scene: Scene) -> None:
    every = [*scene.curves.values(), *([scene.extra[1]] if scene.extra else [])]
    shown = np.concatenate([c[c > 0] for c in every])
    low, high = 10.0 ** math.floor(math.log10(shown.min())), 10.0 ** math.ceil(math.log10(shown.max()))
    xs = [_across(0, s, scene.sizes) for s in scene.sizes]

    def y(seconds: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * _share(seconds, low, high)

    write(ax, LEFTS[0], TOP - 0.4, f"seconds on {scene.here[1]:,} ranks", 8.5, align="left")
    _sizes(ax, 0, scene.sizes)
    decades = round(math.log10(high / low))
    for k in range(0, decades + 1, max(1, decades // 6)):
        _line(ax, [LEFTS[0], LEFTS[0] + WIDTH], [y(low * 10**k)] * 2, color=GRID, linewidth=0.7, zorder=0)
        write(ax, LEFTS[0] - 0.15, y(low * 10**k), seconds(low * 10**k), 7.5, FAINT, "right")
    order = sorted(range(len(scene.curves)), key=lambda i: -list(scene.curves.values())[i][-1])
    for i, curve in enumerate(scene.curves.values()):
        ys = [y(t) for t in curve]
        _line(ax, xs, ys, color=sheet.stroke(i), linewidth=1.8, linestyle=STYLES[i % 4], zorder=3)
        place = (2 * order.index(i) + 1) * len(xs) // (2 * len(order))  # badges side by side, never on one spot
        _badge(ax, xs[place], ys[place], i)
    if scene.extra:
        _line(ax, xs, [y(t) for t in scene.extra[1]], color=INK, linewidth=1.1, linestyle=":", zorder=4)
    x = _across(0, scene.here[0], scene.sizes)
    _line(ax, [x, x], [TOP, BOTTOM], color=INK, linewidth=0.8, zorder=2)


def _map(ax: Axes, scene: Scene) -> None:
    """A stripe for each run of one winner; a letter where its region is widest."""
    write(
        ax,
        LEFTS[1],
        TOP - 0.4,
        "the fastest letter, by size and ranks (powers of two)"
        if scene.extra
        else "the fastest, by size and ranks (powers of two)",
        8.5,
        align="left",
    )
    rows, columns = scene.map.shape
    high, wide = (BOTTOM - TOP) / rows, WIDTH / columns
    stripes: dict[int, list[Path]] = {}
    for i in range(rows):
        bottom, start = BOTTOM - i * high, 0
        for j in range(1, columns + 1):
            if j == columns or scene.map[i][j] != scene.map[i][start]:
                left, right = LEFTS[1] + start * wide, LEFTS[1] + j * wide
                box = _box(left, bottom, right - left, -high)
                stripes.setdefault(int(scene.map[i][start]), []).append(box)
                start = j
        if i % 2 == 0 or rows < 9:
            write(ax, LEFTS[1] - 0.15, bottom - high / 2, f"{scene.ranks[i]:,}", 7.5, FAINT, "right")
    for which, paths in stripes.items():
        whole, paint = Path.make_compound_path(*paths), color(which)
        ax.add_artist(PathPatch(whole, facecolor=paint, edgecolor=paint, linewidth=0.4))
    if scene.ahead is not None and scene.ahead.any():
        found = [
            _box(LEFTS[1] + j * wide, BOTTOM - i * high, (k - j) * wide, -high)
            for i in range(rows) for j, k in _spans(scene.ahead[i])
        ]  # fmt: skip
        ax.add_artist(_hatched(Path.make_compound_path(*found)))
    for which in np.unique(scene.map):
        for i, j in _middles(scene.map == which):
            _badge(ax, LEFTS[1] + (j + 0.5) * wide, BOTTOM - (i + 0.5) * high, int(which))
    _sizes(ax, 1, scene.sizes)
    x = _across(1, scene.here[0], scene.sizes)
    steps = [math.log(n) for n in scene.ranks]
    row = float(np.interp(math.log(scene.here[1]), steps, range(rows)))
    y = BOTTOM - (row + 0.5) * high
    for inner, ink in ((2.6, PAGE), (1.3, INK)):
        ax.add_artist(Circle((x, y), 0.2, facecolor="none", edgecolor=ink, linewidth=inner, zorder=7))
    _line(ax, [x - 0.3, x + 0.3], [y, y], color=INK, linewidth=0.9, zorder=7)
    _line(ax, [x, x], [y - 0.3, y + 0.3], color=INK, linewidth=0.9, zorder=7)


def _box(x: float, y: float, wide: float, high: float) -> Path:
    return Path([(x, y), (x + wide, y), (x + wide, y + high), (x, y + high), (x, y)], closed=True)


def _spans(row: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """From where to where a row is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]])))
    return [(int(j), int(k)) for j, k in zip(edges[::2], edges[1::2], strict=True)]


def _hatched(path: Path) -> PathPatch:
    return PathPatch(path, facecolor="none", edgecolor=BLACK, hatch="///", linewidth=0)


def _middles(region: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where each region's letter goes: the cell that lies deepest in it; none in specks."""
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


def _sizes(ax: Axes, nth: int, sizes: npt.NDArray[np.float64]) -> None:
    first, last = math.ceil(math.log2(sizes[0])), math.floor(math.log2(sizes[-1]))
    for k in range(first, last + 1, max(1, (last - first) // 5)):
        x = _across(nth, 2.0**k, sizes)
        if nth == 0:
            _line(ax, [x, x], [TOP, BOTTOM], color=GRID, linewidth=0.7, zorder=0)
        else:
            _line(ax, [x, x], [BOTTOM, BOTTOM + 0.1], color=FAINT, linewidth=0.7, zorder=0)
        write(ax, x, BOTTOM + 0.33, nbytes(2.0**k), 7.5, FAINT)
    write(ax, LEFTS[nth] + WIDTH / 2, BOTTOM + 0.85, "size S (logarithmic)", 8, FAINT)


def _across(nth: int, size: float, sizes: npt.NDArray[np.float64]) -> float:
    return LEFTS[nth] + WIDTH * _share(size, float(sizes[0]), float(sizes[-1]))


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


def _line(ax: Axes, xs: Sequence[float], ys: Sequence[float], **look: Any) -> None:
    ax.add_artist(Line2D(xs, ys, **look))  # ax.plot would look for limits that never change, ten times slower


def _badge(ax: Axes, x: float, y: float, i: int) -> None:
    ax.add_artist(Circle((x, y), 0.19, facecolor=color(i), edgecolor=INK, linewidth=0.8, zorder=5))
    write(ax, x, y + 0.01, "ABCDEFGHIJ"[i], 7, on(i))
