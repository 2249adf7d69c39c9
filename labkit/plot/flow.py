"""Draw before → after, one row per rank: every tile coloured and labelled by the ranks that it came from.

An arrow says that numbers depend on others. From row to row it stands for all the tiles of both; from or to some of
them it leaves its row over these tiles and comes to the other one from under them, in a lane of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from matplotlib.axes import Axes

from labkit.plot.sheet import chip, extent, sheet, stroke, wrapped
from labkit.plot.svg import FAINT, INK, WRONG
from labkit.plot.tiles import HEAD, PITCH, TILE, Pen, Tile, flat, needed

GAP = 0.22  # between groups of tiles
TOP, LEFT, MARGIN = 1.2, 1.75, 0.4
APART, NEAR, LANE = 0.38, 0.08, 0.11  # between rows; from a row to the first arrow that runs there; to the next one
GUTTER, BESIDE = 2.3, 0.8  # between before and after, and between after and what was expected
NARROW, RIGHT = 1.1, 0.3  # the least between before and after, where room is scarce; right of all tiles
LINE = 0.42  # height of a line of words

Groups = Sequence[Sequence[Tile]]
Span = tuple[int, int]  # a row's tiles: the first and the last of them


@dataclass(frozen=True)
class Arrow:
    """The tiles `into` of rank `result` depend on the tiles `of` rank `source`; None stands for the whole row."""

    source: int
    result: int
    of: Span | None = None
    into: Span | None = None


@dataclass(frozen=True)
class Drawing:
    """Columns of tiles, each with a title and, for every rank, groups of tiles; arrows from the first to the second.

    Where they are wider than the `room`, in units, the arrows have less of it.
    """

    titles: Sequence[str]
    columns: Sequence[Sequence[Groups]]
    arrows: Sequence[Arrow] = ()
    notes: Sequence[str] = ()
    code: str = ""
    wrong: Sequence[str] = ()
    room: float = math.inf

    @property
    def ranks(self) -> int:
        """The number of rows."""
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
    def gutter(self) -> float:
        """The room for arrows, between before and after."""
        tiles = sum(map(width, self.fitted)) + BESIDE * (len(self.columns) - 2)
        return min(GUTTER, max(NARROW, self.room - LEFT - tiles - RIGHT))

    @cached_property
    def starts(self) -> list[float]:
        """The places where each column begins, and where the last one ends; a long title may jut out over its tiles."""
        starts, widths = [LEFT], [width(column) for column in self.fitted]
        juts = [max(0.0, (extent(title, 9, bold=True) - w) / 2) for title, w in zip(self.titles, widths, strict=False)]
        last = len(widths) - 1
        for i, wide in enumerate(widths):
            room = juts[i] + juts[i + 1] + 0.2 if i < last else juts[i]
            gap = self.gutter if i == 0 else BESIDE if i < last else 0
            starts.append(starts[-1] + wide + max(gap, room))
        return starts

    @cached_property
    def leaving(self) -> dict[tuple[int, Span], int]:
        """The lane over its row of each source that is a part of one, counted from the row: the first is highest."""
        return _lanes(sorted({(a.source, a.of) for a in self.arrows if a.of is not None}, reverse=True))

    @cached_property
    def arriving(self) -> dict[tuple[int, Span], int]:
        """The lane under its row of each result that is a part of one, counted from the row: the last is lowest."""
        return _lanes(sorted({(a.result, a.into) for a in self.arrows if a.into is not None}))

    @cached_property
    def row(self) -> float:
        """The distance from row to row."""
        rooms = [2 * NEAR + LANE * lane for lane in self.leaving.values()]
        rooms += [3 * NEAR + HEAD + LANE * lane for lane in self.arriving.values()]
        return TILE + max(APART, *rooms, 0.0)

    @property
    def top(self) -> float:
        """The height at which the first row begins."""
        return TOP + 0.5 * bool(self.code) + LANE * sum(r == 0 for r, _ in self.leaving)


def draw(drawing: Drawing) -> Axes:
    """Draw the rows of tiles with their arrows, and the lines under them."""
    top, starts = drawing.top, drawing.starts
    bottom = top + drawing.row * drawing.ranks
    least = max(12.0 if drawing.wrong else 9.0, extent(drawing.code, 8.5, mono=True) + 2 * MARGIN)
    wide = max(starts[-1] + RIGHT, least)
    said = [(f"✗ {line}", True) for line in drawing.wrong] + [(line, False) for line in drawing.notes]
    room = wide - 2 * MARGIN
    lines = [(part, wrong) for line, wrong in said for part in wrapped(line, room, 8.5 if wrong else 7.5, wrong)]
    ax = sheet(wide, bottom + LINE * len(lines) + 0.25)
    pen = Pen(ax)
    if drawing.code:
        pen.text(MARGIN, 0.45, drawing.code, 8.5, FAINT, "left", mono=True)
    for title, column, x in zip(drawing.titles, drawing.fitted, starts, strict=False):
        over = TOP - 0.5 + 0.5 * bool(drawing.code)
        pen.text(x + width(column) / 2 - (PITCH - TILE) / 2, over, title, 9, INK, bold=True)
    for r in range(drawing.ranks):
        y = top + drawing.row * r
        chip(ax, 0.55, y + TILE / 2, r)
        pen.text(0.82, y + TILE / 2, f"rank {r}", 9, INK, "left")
        for column, x in zip(drawing.fitted, starts, strict=False):
            for (left, _), tile in zip(places(column[r], x), flat(column[r]), strict=True):
                pen.tile(left, y, tile)
    _arrows(pen, drawing)
    for i, (line, wrong) in enumerate(lines):
        y = bottom + 0.1 + LINE * i
        pen.text(MARGIN, y, line, 8.5 if wrong else 7.5, WRONG if wrong else FAINT, "left", bold=wrong)
    pen.finish()
    return ax


def width(column: Iterable[Groups]) -> float:
    """Return the width of a column: that of its longest row."""

    def length(groups: Groups) -> float:
        return sum(t.width * PITCH for g in groups for t in g) + GAP * max(0, len(groups) - 1)

    return max((length(groups) for groups in column), default=0.0) or PITCH


def places(groups: Groups, x: float) -> list[tuple[float, float]]:
    """Return where each tile of a row begins and ends."""
    found = []
    for group in groups:
        for tile in group:
            found.append((x, x + PITCH * tile.width - (PITCH - TILE)))
            x += PITCH * tile.width
        x += GAP
    return found


def _lanes(spans: Sequence[tuple[int, Span]]) -> dict[tuple[int, Span], int]:
    """Number each span among those of its row, from 0."""
    seen: Counter[int] = Counter()
    numbered = {}
    for r, span in spans:
        numbered[r, span] = seen[r]
        seen[r] += 1
    return numbered


def _arrows(pen: Pen, drawing: Drawing) -> None:
    """Draw arrows from sources to results: whole rows from side to side, parts of them by their lanes."""
    if not drawing.arrows:
        return
    starts = drawing.starts
    column = [places(drawing.fitted[i][r], starts[i]) for i in (0, 1) for r in range(drawing.ranks)]
    sources, results = column[: drawing.ranks], column[drawing.ranks :]
    edge, right = starts[1] - drawing.gutter + 0.05, starts[1] - 0.14

    def y(r: int) -> float:
        return drawing.top + drawing.row * r

    for a in drawing.arrows:
        beside = [b for b in drawing.arrows if (b.result, b.into) == (a.result, a.into)]
        if a.of is None:
            begin = [(sources[a.source][-1][1] + 0.05, y(a.source) + TILE / 2)]
        else:
            x, lane = _middle(sources[a.source], a.of), drawing.leaving[a.source, a.of]
            high = y(a.source) - NEAR - LANE * lane
            begin = [(x, y(a.source)), (x, high)]
        if a.into is None:
            spread = (beside.index(a) - (len(beside) - 1) / 2) * min(0.13, 0.5 / len(beside))
            end = [(right, y(a.result) + TILE / 2 + spread)]
        else:
            x, lane = _middle(results[a.result], a.into), drawing.arriving[a.result, a.into]
            low = y(a.result) + TILE + NEAR + HEAD + LANE * lane
            end = [(right, low), (x, low), (x, y(a.result) + TILE + 0.02)]
        pen.arrow([*begin, (max(edge, begin[-1][0]), begin[-1][1])], end, stroke(a.source), 1.3)


def _middle(places: Sequence[tuple[float, float]], span: Span) -> float:
    return (places[span[0]][0] + places[span[1]][1]) / 2
