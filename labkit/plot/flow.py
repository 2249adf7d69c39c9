"""Before → after, one row a rank: every tile coloured and labelled by the ranks that it came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from matplotlib.axes import Axes

from labkit.plot.sheet import chip, extent, sheet, stroke, wrapped
from labkit.plot.svg import FAINT, INK, WRONG
from labkit.plot.tiles import KNOT, PITCH, TILE, Pen, Tile, needed

GAP = 0.22  # between groups of tiles
ROW, TOP, LEFT, MARGIN = 1.28, 1.2, 1.75, 0.4
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

    @cached_property
    def fitted(self) -> list[list[list[list[Tile]]]]:
        """The columns, all tiles widened alike until the words of each fit into it."""
        every = [tile for column in self.columns for row in column for group in row for tile in group]
        wider = max((needed(tile) / tile.width for tile in every), default=1.0)
        return [
            [[[replace(t, width=t.width * max(1.0, wider)) for t in group] for group in row] for row in column]
            for column in self.columns
        ]

    @cached_property
    def starts(self) -> list[float]:
        """Where each column begins, and where the last one ends; a long title may jut out over its tiles."""
        starts, widths = [LEFT], [_width(column) for column in self.fitted]
        juts = [max(0.0, (extent(title, 9, bold=True) - w) / 2) for title, w in zip(self.titles, widths, strict=False)]
        last = len(widths) - 1
        for i, width in enumerate(widths):
            room = juts[i] + juts[i + 1] + 0.2 if i < last else juts[i]
            gap = GUTTER if i == 0 else BESIDE if i < last else 0
            starts.append(starts[-1] + width + max(gap, room))
        return starts

    @property
    def top(self) -> float:
        """Where the first row begins."""
        return TOP + 0.5 * bool(self.code)

    @property
    def width(self) -> float:
        """The width of the drawing."""
        least = max(12.0 if self.wrong else 9.0, extent(self.code, 8.5, mono=True) + 2 * MARGIN)
        return max(self.starts[-1] + 0.3, least)

    @cached_property
    def lines(self) -> list[tuple[str, bool]]:
        """The lines under it, wrapped to its width, each with whether it tells a mistake."""
        room = self.width - 2 * MARGIN
        said = [(f"✗ {line}", True) for line in self.wrong] + [(line, False) for line in self.notes]
        return [(part, wrong) for line, wrong in said for part in wrapped(line, room, 8.5 if wrong else 7.5, wrong)]


def axes(drawing: Drawing) -> Axes:
    """Axes that are large enough."""
    return sheet(drawing.width, drawing.top + ROW * drawing.ranks + LINE * len(drawing.lines) + 0.25)


def draw(ax: Axes, drawing: Drawing) -> Axes:
    """Draw on axes as `axes` makes them, y downwards."""
    pen = Pen(ax)
    top, starts = drawing.top, drawing.starts
    if drawing.code:
        pen.text(MARGIN, 0.45, drawing.code, 8.5, FAINT, "left", mono=True)
    for title, column, x in zip(drawing.titles, drawing.fitted, starts, strict=False):
        pen.text(x + _width(column) / 2 - (PITCH - TILE) / 2, top - 0.5, title, 9, INK, bold=True)
    for r in range(drawing.ranks):
        y = top + ROW * r
        chip(ax, 0.55, y + TILE / 2, r)
        pen.text(0.82, y + TILE / 2, f"rank {r}", 9, INK, "left")
        for column, x in zip(drawing.fitted, starts, strict=False):
            for group in column[r]:
                for tile in group:
                    pen.tile(x, y, tile)
                    x += PITCH * tile.width
                x += GAP
    _arrows(pen, drawing)
    y = top + ROW * drawing.ranks + 0.1
    for line, wrong in drawing.lines:
        pen.text(MARGIN, y, line, 8.5 if wrong else 7.5, WRONG if wrong else FAINT, "left", bold=wrong)
        y += LINE
    pen.finish()
    return ax


def _width(column: Iterable[Groups]) -> float:
    def length(groups: Groups) -> float:
        return sum(t.width * PITCH for g in groups for t in g) + GAP * max(0, len(groups) - 1)

    return max((length(groups) for groups in column), default=0.0) or PITCH


def _arrows(pen: Pen, drawing: Drawing) -> None:
    """From sources to results: each pair where they are few, else all through one knot."""
    n, top, starts = drawing.ranks, drawing.top, drawing.starts
    left, right = starts[1] - GUTTER + 0.05, starts[1] - 0.14
    middle = (left + right) / 2

    def y(r: int) -> float:
        return top + ROW * r + TILE / 2

    ends = [starts[0] + _width([drawing.fitted[0][r]]) + 0.02 for r in range(n)]
    pairs = sorted(set(drawing.arrows))
    if n <= SOME or len(pairs) <= 2 * n:
        for s, d in pairs:
            into = [a for a, b in pairs if b == d]
            spread = (into.index(s) - (len(into) - 1) / 2) * min(0.13, 0.5 / len(into))
            pen.curve((ends[s], y(s)), (right, y(d) + spread), stroke(s), 1.3)
        return
    knot = (middle, (y(0) + y(n - 1)) / 2)
    for s in sorted({s for s, _ in pairs}):
        pen.curve((ends[s], y(s)), knot, stroke(s), 1.3, head=False)
    for d in sorted({d for _, d in pairs}):
        pen.curve(knot, (right, y(d)), KNOT, 1.1)
    pen.knot(knot)
