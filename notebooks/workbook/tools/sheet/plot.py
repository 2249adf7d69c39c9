"""Before → after as tiles alone, in rows that stand close together: for a page that many pictures share."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.axes import Axes

from labkit.plot.flow import Drawing, places, width
from labkit.plot.sheet import chip, extent, on, sheet
from labkit.plot.svg import FAINT
from labkit.plot.tiles import PITCH, TILE, Pen, Tile, flat

LEFT, TOP, GUTTER = 0.6, 0.6, 0.55
WORDS = {"None": "–", "undefined": "?"}  # what empty tiles say


def draw(drawing: Drawing) -> Axes:
    """Draw the tiles alone, without arrows and words."""

    def plain(tile: Tile) -> Tile:
        word = WORDS.get(tile.label or tile.text) if tile.kind == "empty" else None
        return replace(tile, text=word or tile.text, label="")

    columns = [[[[plain(t) for t in g] for g in row] for row in column] for column in drawing.columns]
    bare = Drawing(drawing.titles, columns)
    starts = [LEFT]
    for title, column in zip(bare.titles, bare.fitted, strict=True):
        starts.append(starts[-1] + max(width(column), extent(title, 9)) + GUTTER)
    ax = sheet(starts[-1] - GUTTER, TOP + PITCH * bare.ranks)
    pen = Pen(ax)
    for title, column, x in zip(bare.titles, bare.fitted, starts, strict=False):
        pen.text(x, TOP / 2, title, 9, FAINT, "left")
        for r, groups in enumerate(column):
            for (left, _), tile in zip(places(groups, x), flat(groups), strict=True):
                pen.tile(left, TOP + PITCH * r, tile)
    for r in range(bare.ranks):
        y = TOP + PITCH * r + TILE / 2
        chip(ax, 0.25, y, r, radius=0.22)
        pen.text(0.25, y, str(r), 9, on(r), bold=True)
    pen.finish()
    return ax
