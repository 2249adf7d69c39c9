"""Before → after, one row a rank: every tile coloured and labelled by the ranks that it came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from matplotlib.axes import Axes

from labkit.plot.svg import FAINT, INK
from labkit.plot.tiles import KNOT, LINES, PITCH, TILE, WRONG, Pen, Tile, color

GAP = 0.22  # between groups of tiles
ROW, TOP, LEFT = 1.28, 1.2, 1.75
GUTTER, BESIDE = 2.3, 0.8  # between before and after, and between after and what was expected
LINE = 0.42  # height of a line of words
SOME = 4  # ranks up to which every pair gets an arrow of its own

Groups = Sequence[Sequence[Tile]]


@dataclass(frozen=True)
class Drawing:
    """Columns of tiles, each with a title and, for every rank, groups of tiles; arrows (source, result) by rank."""

    titles: Sequence[str]
    columns: Sequence[Sequence[Groups]]
    arrows: Sequence[tuple[int, int]] = ()
    notes: Sequence[str] = ()
    code: str = ""
    wrong: Sequence[str] = ()

    @property
    def ranks(self) -> int:
        """How many rows there are."""
        return len(self.columns[0])


def size(drawing: Drawing) -> tuple[float, float]:
    """Width and height of the drawing in units."""
    width, lines = _words(drawing)
    return width, TOP + bool(drawing.code) * 0.5 + ROW * drawing.ranks + LINE * len(lines) + 0.25


def _words(drawing: Drawing) -> tuple[float, list[tuple[str, bool]]]:
    """The width of the drawing, and the lines under it, wrapped to that, each with whether it tells a mistake."""
    width = max(_starts(drawing)[-1] + 0.3, 12.0 if drawing.wrong else 9.0, len(drawing.code) * 0.155 + 0.8)
    said = [(f"✗ {line}", True) for line in drawing.wrong] + [(line, False) for line in drawing.notes]
    room = {True: int((width - 0.8) * 6.4), False: int((width - 0.8) * 8)}
    return width, [(part, wrong) for line, wrong in said for part in wrap(line, room[wrong])]


def draw(ax: Axes, drawing: Drawing) -> Axes:
    """Draw on axes of `size(drawing)` units, y downwards."""
    pen = Pen(ax)
    top = TOP + bool(drawing.code) * 0.5
    starts = _starts(drawing)
    if drawing.code:
        pen.text(0.4, 0.45, drawing.code, 8.5, FAINT, "left", mono=True)
    for title, column, x in zip(drawing.titles, drawing.columns, starts, strict=False):
        pen.text(x + _width(column) / 2 - (PITCH - TILE) / 2, top - 0.5, title, 9, INK, bold=True)
    for r in range(drawing.ranks):
        y = top + ROW * r
        pen.chip(0.55, y + TILE / 2, r)
        pen.text(0.82, y + TILE / 2, f"rank {r}", 9, INK, "left")
        for column, x in zip(drawing.columns, starts, strict=False):
            for group in column[r]:
                for tile in group:
                    pen.tile(x, y, tile)
                    x += PITCH * tile.width
                x += GAP
    _arrows(pen, drawing, starts, top)
    y = top + ROW * drawing.ranks + 0.1
    for line, wrong in _words(drawing)[1]:
        pen.text(0.4, y, line, 8.5 if wrong else 7.5, WRONG if wrong else FAINT, "left", bold=wrong)
        y += LINE
    pen.finish()
    return ax


def _width(column: Iterable[Groups]) -> float:
    def wide(groups: Groups) -> float:
        return sum(t.width * PITCH for g in groups for t in g) + GAP * max(0, len(groups) - 1)

    return max((wide(groups) for groups in column), default=0.0) or PITCH


def _starts(drawing: Drawing) -> list[float]:
    """Where each column begins, and where the last one ends; a long title may jut out over its tiles."""
    starts = [LEFT]
    widths = [_width(column) for column in drawing.columns]
    juts = [max(0.0, (len(title) * 0.2 - w) / 2) for title, w in zip(drawing.titles, widths, strict=False)]
    last = len(widths) - 1
    for i, width in enumerate(widths):
        room = juts[i] + juts[i + 1] + 0.2 if i < last else juts[i]
        gap = GUTTER if i == 0 else BESIDE if i < last else 0
        starts.append(starts[-1] + width + max(gap, room))
    return starts


def _arrows(pen: Pen, drawing: Drawing, starts: list[float], top: float) -> None:
    """From sources to results: each pair where they are few, else all through one knot."""
    n = drawing.ranks
    left, right = starts[1] - GUTTER + 0.05, starts[1] - 0.14
    middle = (left + right) / 2

    def y(r: int) -> float:
        return top + ROW * r + TILE / 2

    ends = [_ending(drawing.columns[0][r], starts[0]) for r in range(n)]
    pairs = sorted(set(drawing.arrows))
    if n <= SOME or len(pairs) <= 2 * n:
        for s, d in pairs:
            into = [a for a, b in pairs if b == d]
            spread = (into.index(s) - (len(into) - 1) / 2) * min(0.13, 0.5 / len(into))
            pen.curve((ends[s], y(s)), (right, y(d) + spread), LINES.get(color(s), color(s)), 1.3)
        return
    knot = (middle, (y(0) + y(n - 1)) / 2)
    for s in sorted({s for s, _ in pairs}):
        pen.curve((ends[s], y(s)), knot, LINES.get(color(s), color(s)), 1.3, head=False)
    for d in sorted({d for _, d in pairs}):
        pen.curve(knot, (right, y(d)), KNOT, 1.1)
    pen.knot(knot)


def _ending(groups: Groups, start: float) -> float:
    return start + _width([groups]) + 0.02
