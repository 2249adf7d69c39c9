"""A product of matrices painted over a mesh: what each rank holds of X, W and the result; and the ranks' real tiles.

A rank's colour means that the rank is alone in holding a tile. What several ranks hold is hatched, with their chips: it
belongs to none of them alone. A sum that is not added up yet is dotted, with a plus between the chips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.plot.sheet import FULL, LEAST, chip, color, extent, on, sheet, wrapped, write
from labkit.plot.svg import EDGE, FAINT, INK, PAGE
from workbook.tools.painter.placements import Span, coordinates

WIDE, MARGIN = FULL, 0.45
SIDE = 3.7  # the longest side of a matrix
GAP, NAME = 0.55, 0.55  # between the matrices; above each, for its name
NOTES, LINE = 9.4, 0.36  # where the words begin; from one line to the next
HELD, SUM = "//", ".."
CHIP = 0.17
CELL, BLOCK, BETWEEN = 0.46, 9.3, 0.5  # of the ranks' real tiles: a number's side, and a rank's room
Tiles = Mapping[tuple[Span, Span], Sequence[Sequence[int]]]


@dataclass(frozen=True)
class Matrix:
    """`tiles` says which ranks have which rows and columns: each alone, or teams whose parts add up to them."""

    name: str
    shape: tuple[int, int]
    words: str
    tiles: Tiles


@dataclass(frozen=True)
class Part:
    """What one rank holds of a matrix: `where` are the places of its numbers in the whole, counted row by row."""

    shape: tuple[int, int]
    values: np.ndarray
    where: np.ndarray


def draw(mesh: Sequence[int], x: Matrix, w: Matrix, y: Matrix, notes: Sequence[str]) -> Axes:
    """Draw W above the result, X left of it, so that what is multiplied lies in line, and the notes, the first bold."""
    unit = SIDE / max(*x.shape, *w.shape)  # one number's side
    lines = _lines(notes, WIDE - MARGIN - NOTES)
    k = w.shape[0]
    high = 2 * NAME + (k + y.shape[0]) * unit + GAP
    ax = sheet(WIDE, 2 * MARGIN + max(high, LINE * len(lines)))
    left, top = MARGIN, MARGIN + NAME
    right, low = left + k * unit + GAP, top + k * unit + GAP + NAME
    _matrix(ax, w, right, top, unit)
    _matrix(ax, x, left, low, unit)
    _matrix(ax, y, right, low, unit)
    _mesh(ax, mesh, left, MARGIN, k * unit, k * unit + NAME)
    _write(ax, NOTES, lines)
    return ax


def _write(ax: Axes, left: float, lines: Sequence[tuple[str, bool]]) -> None:
    for nth, (words, first) in enumerate(lines):
        write(ax, left, MARGIN + LINE * (nth + 0.5), words, 9, INK, "left", bold=first)


def _lines(notes: Sequence[str], room: float) -> list[tuple[str, bool]]:
    """Wrap the notes, with a gap between two; each line with whether it is of the first note."""
    found: list[tuple[str, bool]] = []
    for nth, note in enumerate(notes):
        found += [("", False)] * bool(found)
        found += [(line, nth == 0) for line in wrapped(note, room, 9, bold=nth == 0)]
    return found


def _matrix(ax: Axes, matrix: Matrix, left: float, top: float, unit: float) -> None:
    rows, columns = matrix.shape
    write(ax, left, top - NAME / 2, matrix.name, 10, INK, "left", bold=True)
    write(ax, left + extent(matrix.name, 10, bold=True) + 0.15, top - NAME / 2, matrix.words, 8, FAINT, "left")
    _box(ax, left, top, columns * unit, rows * unit, edge=EDGE)
    for ((a, b), (c, d)), teams in matrix.tiles.items():
        x, y, wide, high = left + c * unit, top + a * unit, (d - c) * unit, (b - a) * unit
        partial = any(len(team) > 1 for team in teams)
        if len(teams) == 1 and not partial:
            _box(ax, x, y, wide, high, face=color(teams[0][0]))
            _owner(ax, x + wide / 2, y + high / 2, wide, high, teams[0][0])
        else:
            _box(ax, x, y, wide, high, face=PAGE)
            _box(ax, x, y, wide, high, hatch=SUM if partial else HELD)
            together = teams if partial else [[rank for team in teams for rank in team]]
            _holders(ax, x, y, wide, high, together, partial)
        _box(ax, x, y, wide, high, face="none", edge=INK)


def _owner(ax: Axes, x: float, y: float, wide: float, high: float, rank: int) -> None:
    """Write the rank's number in a tile of its colour."""
    for words in (f"rank {rank}", str(rank)):
        if extent(words, 8) + 0.1 <= wide and high >= 0.22:
            write(ax, x, y, words, 8, on(rank))
            return


def _holders(
    ax: Axes, x: float, y: float, wide: float, high: float, teams: Sequence[Sequence[int]], partial: bool
) -> None:
    """Draw a chip for each rank on a plain ground, each sum in rows of its own."""
    step = 2 * CHIP + (0.3 if partial else 0.12)
    most = max(1, int((wide - 0.1 + step - 2 * CHIP) / step))
    rows = [team[i : i + most] for team in teams for i in range(0, len(team), most)]
    tall = 2 * CHIP + 0.12
    if tall * len(rows) > high:  # no room: the hatch alone says it, and the words beside
        return
    widest = (max(map(len, rows)) - 1) * step + 2 * CHIP + 0.14
    middle = y + high / 2 - tall * (len(rows) - 1) / 2
    _box(ax, x + (wide - widest) / 2, middle - tall / 2, widest, tall * len(rows), face=PAGE, zorder=3.5)
    ends = {team[-1] for team in teams}
    for nth, row in enumerate(rows):
        at = x + wide / 2 - (len(row) - 1) * step / 2
        for i, rank in enumerate(row):
            chip(ax, at + i * step, middle + nth * tall, rank, CHIP)
            write(ax, at + i * step, middle + nth * tall, str(rank), LEAST, on(rank))
            if partial and rank not in ends and i + 1 < len(row):
                write(ax, at + (i + 0.5) * step, middle + nth * tall, "+", 9, INK)


def _mesh(ax: Axes, mesh: Sequence[int], left: float, top: float, wide: float, high: float) -> None:
    """Draw the ranks as they stand on the mesh, in the corner that X and W leave free."""
    two = len(mesh) == 2
    shape = (mesh[0], mesh[1]) if two else (mesh[0], 1) if high - 1.0 > wide - 0.7 else (1, mesh[0])
    down, across = shape
    unit = min(0.62, (high - 1.0) / down, (wide - 1.1) / across)
    write(ax, left, top + NAME / 2, "mesh", 10, INK, "left", bold=True)
    words = " × ".join(map(str, mesh)) + " ranks"
    write(ax, left + extent("mesh", 10, bold=True) + 0.15, top + NAME / 2, words, 8, FAINT, "left")
    x, y = left + (0.95 if two else 0.1), top + NAME + (0.4 if two else 0.1)
    for rank in range(down * across):
        i, j = coordinates(rank, shape)
        _box(ax, x + j * unit, y + i * unit, unit, unit, face=color(rank), edge=INK)
        write(ax, x + (j + 0.5) * unit, y + (i + 0.5) * unit, str(rank), 8 if unit > 0.3 else LEAST, on(rank))
    if two:
        write(ax, x - 0.1, y + down * unit / 2, "dim 0 ↓", 8, FAINT, "right")
        write(ax, x + across * unit / 2, y - 0.2, "dim 1 →", 8, FAINT)


# -- the ranks' real tiles --------------------------------------------------------------------------------------------


def draw_parts(notes: Sequence[str], parts: Sequence[Sequence[Part]]) -> Axes:
    """Draw for each rank the numbers of `parts[r]`, X, W and Y, where they lie in the whole matrices."""
    lines = _lines(notes, WIDE - 2 * MARGIN)
    head = LINE * (len(lines) + 1)
    high = NAME + max(part.shape[0] for part in parts[0]) * _cell(parts[0])
    ax = sheet(WIDE, 2 * MARGIN + head + -(-len(parts) // 2) * (high + BETWEEN) - BETWEEN)
    _write(ax, MARGIN, lines)
    for rank, mine in enumerate(parts):
        left = MARGIN + (rank % 2) * BLOCK
        _rank(ax, rank, mine, left, MARGIN + head + (rank // 2) * (high + BETWEEN))
    return ax


def _cell(mine: Sequence[Part]) -> float:
    """Return the side of one number: X, W and Y stand side by side in a rank's room."""
    columns = sum(part.shape[1] for part in mine)
    return min(CELL, (BLOCK - 0.5 - 2 * 0.75) / columns, 3.0 / max(part.shape[0] for part in mine))


def _rank(ax: Axes, rank: int, mine: Sequence[Part], left: float, top: float) -> None:
    unit = _cell(mine)
    chip(ax, left + CHIP, top + 0.2, rank, CHIP)
    write(ax, left + 0.45, top + 0.2, f"rank {rank}", 9, INK, "left")
    top += NAME
    tall = max(part.shape[0] for part in mine) * unit
    for part, sign in zip(mine, ("@", "=", ""), strict=True):
        rows, columns = part.shape
        y = top + (tall - rows * unit) / 2
        _box(ax, left, y, columns * unit, rows * unit, edge=EDGE)
        for place, value in zip(part.where.ravel().tolist(), part.values.ravel().tolist(), strict=True):
            i, j = divmod(int(place), columns)
            _box(ax, left + j * unit, y + i * unit, unit, unit, face=color(rank), edge=INK, width=0.4)
            words = f"{value:.3g}"
            if unit >= 0.3 and extent(words, LEAST) <= unit:
                write(ax, left + (j + 0.5) * unit, y + (i + 0.5) * unit, words, LEAST, on(rank))
        left += columns * unit
        write(ax, left + 0.375, top + tall / 2, sign, 11, INK)
        left += 0.75


def _box(
    ax: Axes, x: float, y: float, wide: float, high: float, face: str = "none", edge: str = "none", hatch: str = "",
    width: float = 0.8, zorder: float = 3,
) -> None:  # fmt: skip
    """Draw a rectangle; a hatch is grey."""
    box = Rectangle((x, y), wide, high, facecolor=face, edgecolor=FAINT if hatch else edge, zorder=zorder)
    if hatch:
        box.set_hatch(hatch)
    box.set_linewidth(0 if hatch or edge == "none" else width)
    ax.add_artist(box)
