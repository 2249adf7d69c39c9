"""A schedule's steps side by side: a row per rank, small cells for its chunks, an arrow per send; and its trees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Circle, PathPatch, Rectangle
from matplotlib.path import Path

from labkit.plot.sheet import FULL, TITLE, chip, color, extent, headline, on, sheet, stroke
from labkit.plot.svg import FAINT, INK
from labkit.plot.tiles import Pen
from workbook.tools.schedules.trees import depths_and_heights

CELL, ROW = 0.4, 0.72
LEFT, HEAD, FOOT, EDGE = 1.8, 0.85, 0.25, 0.4
MIDDLE = 1.55  # between two states, where the arrows are
WIDE = FULL  # units that a row of panels may take
LINE = 0.42
GREY = "#8c8c8c"  # of a switch, which is not a rank
LEVEL, STRIDE = 0.95, 0.95  # of a tree
OUTLINES: dict[str, dict[str, Any]] = {
    "empty": {"edgecolor": FAINT, "linewidth": 0.5, "linestyle": (0, (2, 2)), "zorder": 2},
    "there": {"edgecolor": INK, "linewidth": 0.5, "zorder": 4},
    "done": {"edgecolor": INK, "linewidth": 1.8, "zorder": 4},
}


@dataclass(frozen=True)
class Cell:
    """One chunk on one rank: the ranks that are in it, its text, and whether it is what the rank should end with."""

    ranks: tuple[int, ...] = ()
    text: str = ""
    done: bool = False


@dataclass(frozen=True)
class Panel:
    """What each rank holds before a step, `cells[r]`, and the sends of the step: (src, dst, text)."""

    title: str
    cells: Sequence[Sequence[Cell]]
    arrows: Sequence[tuple[int, int, str]] = ()


def draw(
    title: str, n: int, panels: Sequence[Panel], trees: Sequence[Sequence[int]], notes: Sequence[str],
    switches: Sequence[str],
) -> Axes:  # fmt: skip
    """Draw the steps of a schedule below its title and the parents in its trees, if it has some, above its notes.

    There are `n` rows, the last of which are the `switches`, by their names.
    """
    rows = _lines(panels)
    wide = [LEFT + sum(_widths(panel)[1] for panel in row) + EDGE for row in rows]
    trees_wide = 2 * EDGE + sum(_tree_wide(parent) for parent in trees)
    width = max(12.0, *wide, trees_wide, 2 * EDGE + extent(title, TITLE, bold=True))
    y, high = _top(trees), HEAD + n * ROW + 0.15
    ax = sheet(width, y + high * len(rows) + LINE * len(notes) + FOOT)
    pen = Pen(ax)
    headline(ax, EDGE, 0.45, title)
    x = EDGE
    for k, parent in enumerate(trees):
        _tree(ax, pen, parent, x, 0.95, f"tree {k + 1}, half {k + 1} of the buffer")
        x += _tree_wide(parent)
    outlines: dict[str, list[Path]] = {name: [] for name in OUTLINES}
    for row in rows:
        x = LEFT
        for r in range(n):
            middle = y + HEAD + (r + 0.5) * ROW
            switch = r - n + len(switches)
            if switch < 0:
                chip(ax, EDGE + 0.15, middle, r)
            else:
                ax.add_artist(Rectangle((EDGE, middle - 0.15), 0.3, 0.3, facecolor=GREY, edgecolor=INK, linewidth=0.5))
            name = f"rank {r}" if switch < 0 else switches[switch]
            pen.text(EDGE + 0.42, middle, name, 8, INK, "left")
        for panel in row:
            x = _panel(pen, panel, x, y, outlines, n - len(switches))
        y += high
    for note in notes:
        pen.text(EDGE, y + 0.1, note, 7.5, FAINT, "left")
        y += LINE
    pen.finish()
    for name, paths in outlines.items():
        if paths:
            ax.add_artist(PathPatch(Path.make_compound_path(*paths), facecolor="none", **OUTLINES[name]))
    return ax


def _panel(pen: Pen, panel: Panel, x: float, y: float, outlines: dict[str, list[Path]], ranks: int) -> float:
    """Draw a panel at (x, y), with so many ranks above the switches; where the next one begins."""
    held, wide = _widths(panel)
    pen.text(x + wide / 2, y + 0.45, panel.title, 8, FAINT)
    for r, cells in enumerate(panel.cells):
        for c, cell in enumerate(cells):
            _cell(pen, cell, x + c * CELL, y + HEAD + (r + 0.5) * ROW - CELL / 2, outlines)
    a, b = x + held + 0.08, x + held + MIDDLE - 0.1
    labels: dict[int, tuple[bool, int]] = {}  # whether a rank's last label stands above, and its number
    for src, dst, text in panel.arrows:
        ya, yb = (y + HEAD + (r + 0.5) * ROW for r in (src, dst))
        pen.arrow([(a, ya)], [(b, yb)], stroke(src) if src < ranks else FAINT, 1.5)
        if src >= ranks:  # many arrows leave a switch: their words stand where they arrive
            pen.text(b - 0.18, yb - 0.14, text, 7, INK, "right", bold=True, zorder=8, halo=True)
            continue
        last = labels.get(src)
        above, nth = (dst >= src, 0) if last is None else (not last[0], last[1] + 1)
        labels[src] = above, nth
        at = a + 0.02 + 0.45 * (nth // 2), ya + (-0.13 if above else 0.15)
        pen.text(*at, text, 7, INK, "left", bold=True, zorder=8, halo=True)
    return x + wide


def _widths(panel: Panel) -> tuple[float, float]:
    """Return how wide a panel's cells are, and the panel with its arrows and its title."""
    held = max((len(cells) for cells in panel.cells), default=0) * CELL
    return held, max(held + MIDDLE * bool(panel.arrows), 1.3) + 0.05


def _cell(pen: Pen, cell: Cell, x: float, y: float, outlines: dict[str, list[Path]]) -> None:
    w = CELL - 0.05
    if not cell.ranks:
        outlines["empty"].append(_box(x, y, w, CELL))
        return
    many = len(cell.ranks) > 1
    stripe = w / len(cell.ranks)
    for i, r in enumerate(cell.ranks):
        paths = pen.fills if many else pen.solid  # these have an outline
        paths.setdefault(color(r), []).append(_box(x + i * stripe, y, stripe, CELL))
    if many or cell.done:
        outlines["done" if cell.done else "there"].append(_box(x, y, w, CELL))
    if many:  # the text stands on a light ground
        pen.insets.append(_box(x + 0.05, y + 0.09, w - 0.1, CELL - 0.18))
    ink = INK if many else on(cell.ranks[0])
    pen.text(x + w / 2, y + CELL / 2, cell.text, 7, ink, bold=cell.done)


def _box(x: float, y: float, w: float, h: float) -> Path:
    return Path([(x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)], closed=True)


def _tree(ax: Axes, pen: Pen, parent: Sequence[int], x: float, y: float, title: str) -> None:
    """Draw a tree whose ranks stand in a row by number: NCCL's never cross themselves."""
    depths, _ = depths_and_heights(parent)
    places = [(x + (r + 0.5) * STRIDE, y + 0.75 + depth * LEVEL) for r, depth in enumerate(depths)]
    pen.text(x, y, title, 8, FAINT, "left")
    for r, up in enumerate(parent):
        if up >= 0:
            path = Path([places[r], places[up]])
            ax.add_artist(PathPatch(path, edgecolor=FAINT, linewidth=1.2, zorder=1))
    for r, at in enumerate(places):
        inner = r in parent
        ax.add_artist(Circle(at, 0.3, facecolor=color(r), edgecolor=INK, linewidth=2.0 if inner else 0.6, zorder=3))
        pen.text(*at, str(r), 8, on(r), bold=inner)


def _tree_wide(parent: Sequence[int]) -> float:
    return max(len(parent) * STRIDE, 4.2) + 0.9


def _top(trees: Sequence[Sequence[int]]) -> float:
    deepest = max((int(depths_and_heights(parent)[0].max()) for parent in trees), default=-1)
    return 0.75 if deepest < 0 else 2.2 + deepest * LEVEL


def _lines(panels: Sequence[Panel]) -> list[list[Panel]]:
    """Return the panels in rows of at most WIDE units, as even as they can be."""
    if not panels:
        return []
    fitting = max(1, int((WIDE - LEFT) / max(_widths(panel)[1] for panel in panels)))
    rows = math.ceil(len(panels) / fitting)
    across = math.ceil(len(panels) / rows)
    return [list(panels[i : i + across]) for i in range(0, len(panels), across)]
