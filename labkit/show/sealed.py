"""Seal the end of a flow until the learner has said what each rank holds, for `%%flow x --predict`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate
from typing import Any

import ipywidgets

from labkit.floor.errors import LabError
from labkit.floor.words import count
from labkit.plot import flow as picture
from labkit.plot import svg
from labkit.plot.sheet import color, on
from labkit.plot.tiles import Tile, flat
from labkit.show.alt_text import by_rank
from labkit.show.box import Box
from labkit.show.flow import Flow, in_words
from labkit.show.guess import HOW, Held, Nothing, Place, hold
from labkit.show.keys import ENTER_GOES_ON
from labkit.show.table import cell, row, table

MOST = 48  # tiles that one fills in
FIELD = 68  # pixels that a field is wide, with the room before it
BOX = "display: inline-block; min-width: 30px; padding: 3px 5px; margin: 2px 3px 2px 0; border-radius: 5px; "
BOX += "text-align: center; vertical-align: middle; line-height: 1.25"
SMALL = "font-size: 10px; font-weight: normal"


class SealedFlow(Box):
    """A flow before the learner knows how it ends: fill in what every rank holds, then compare it with the ranks.

    Without a mouse: `sealed.fill([[6, 10], [6, 10]])`, one row per rank; `...` leaves a tile, or a whole row, empty.

    The cell has run, and nothing here asks the ranks again. `flow` is what would have been shown without `--predict`.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._places = flow.places
        tiles = sum(map(len, self._places))
        if tiles > MOST:
            raise LabError(
                f"The cell has run and left {count(tiles, 'number')}, more than the {MOST} that you can predict. "
                "Use a smaller tensor."
            )
        blank = flow.blank
        before, after = blank.columns
        look = {
            "style": {"description_width": "0px"},  # a field's name is there for screen readers, and takes no room
            "layout": {"width": f"{FIELD}px", "margin": "2px 0"},
            "continuous_update": False,
        }
        self._fields = [[ipywidgets.Text(description=p.name, **look) for p in row] for row in self._places]
        for fields, groups in zip(self._fields, after, strict=True):
            for start in list(accumulate(map(len, groups)))[:-1]:
                fields[start].layout.margin = "2px 0 2px 12px"  # where another entry of a list begins
        self._button = ipywidgets.Button(description="Compare with the ranks", layout={"width": "max-content"})
        self._same = ipywidgets.Button(
            description="Same on every rank",
            tooltip="Copies what you typed in a column to the ranks whose tile there is still empty",
            layout={"width": "max-content", "display": None if self._columns else "none"},
        )
        self._same.on_click(lambda _: self._fill_columns())
        self._said = ipywidgets.HTML()
        self._button.on_click(lambda _: self.attempt(self._compare, self._said))
        wide = f"{100 + max(sum(16 + max(30, 9 * len(tile.text)) for tile in flat(row)) for row in before)}px"
        rows = [
            ipywidgets.HBox(
                [ipywidgets.HTML(f"{_rank(r)} {_boxes(before[r])} →", layout={"min_width": wide}), *fields],
                layout={"align_items": "center", "flex_flow": "row wrap"},
            )
            for r, fields in enumerate(self._fields)
        ]
        x, y = map(escape, blank.titles)
        asked = f"<b>{x}</b> → <b>{y}</b>: what does each rank hold? {HOW}{ENTER_GOES_ON}"
        super().__init__([ipywidgets.HTML(asked), *rows, ipywidgets.HBox([self._button, self._same, self._said])])

    @property
    def _columns(self) -> list[tuple[ipywidgets.Text, ...]]:
        """The fields place by place, where several ranks have as many; else none."""
        alike = len({len(fields) for fields in self._fields}) == 1 < len(self._fields)
        return list(zip(*self._fields, strict=True)) if alike else []

    def _fill_columns(self) -> None:
        """Copy the first value typed in each column to the fields that are empty in it."""
        for column in self._columns:
            typed = next((field.value for field in column if field.value.strip()), "")
            for field in column:
                field.value = field.value or typed

    def fill(self, rows: Sequence[Any]) -> Compared:
        """Compare `rows`, one per rank, with the ranks, like the button: a number, None, "?" or ... for each tile."""
        compared = Compared(hold(self._places, rows, self.flow.meant), self.flow, self.fill)
        self.children = [ipywidgets.HTML(compared._repr_html_())]
        return compared

    def _compare(self) -> None:
        self.fill([[field.value for field in fields] for fields in self._fields])

    # -- how it shows itself --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        blank = self.flow.blank
        before, after = blank.titles
        rows = zip(*blank.columns, strict=True)
        lines = [f"rank {r} │ {in_words(x)} → {in_words(y)}" for r, (x, y) in enumerate(rows)]
        return "\n".join([f"{before} → {after}: what does each rank hold?", *lines])

    def _repr_html_(self) -> str:
        folded = f"<details><summary>What the ranks hold</summary>{self.flow._repr_html_()}</details>"
        return svg.img(self.svg, self.alt) + folded

    @property
    def svg(self) -> bytes:
        """The picture with blanks."""
        return svg.svg(picture.draw(self.flow.blank))

    @property
    def alt(self) -> str:
        """The picture with blanks in words."""
        after = self.flow.blank.titles[1]
        blanks = by_rank({p[0].rank: f"holds {count(len(p), 'value')} to fill in" for p in self._places})
        return f"{self.flow.before} {after}: {blanks}."


class Compared:
    """A learner's tiles beside the ranks', then the flow; `held` has it as plain data, `fill` compares other tiles."""

    def __init__(self, held: Held, flow: Flow, fill: Callable[[Sequence[Any]], Compared]) -> None:
        self.held = held
        self.flow = flow
        self.fill = fill

    def __repr__(self) -> str:
        rows = ["  ".join(_judged(*tile)[0] for tile in row) for row in self.held.rows]
        lines = [f"rank {r} │ {row}" for r, row in enumerate(rows)]
        return "\n".join([*self.held.sentences, *lines, "", repr(self.flow)])

    def _repr_html_(self) -> str:
        blank = self.flow.blank
        rows = [
            row(
                _rank(r),
                [cell(_boxes(blank.columns[0][r]), "tiles"), cell("".join(_judged(*t)[1] for t in tiles), "tiles")],
            )
            for r, tiles in enumerate(self.held.rows)
        ]
        said = "".join(f"<div>{escape(sentence)}</div>" for sentence in self.held.sentences)
        titles = ["", *map(escape, blank.titles)]
        return f"<div role='status'>{said}</div>{table('held', '', titles, rows)}{self.flow._repr_html_()}"


def _rank(r: int) -> str:
    chip = "display: inline-block; width: 11px; height: 11px; border-radius: 6px; border: 1px solid"
    return f"<span style='white-space: nowrap'><span style='{chip}; background: {color(r)}'></span> rank {r}</span>"


def _boxes(groups: Sequence[Sequence[Tile]]) -> str:
    return "".join(_box(tile) for tile in flat(groups))


def _box(tile: Tile) -> str:
    """Return a tile as the pictures have it, in HTML: fields can stand beside it."""
    text = f"<b>{escape(tile.text)}</b><br><span style='{SMALL}'>{escape(tile.label)}</span>"
    if not tile.shares:
        return f"<span style='{BOX}; border: 1px dashed'>{escape(tile.text)}</span>"
    ((r, _),) = tile.shares
    return f"<span style='{BOX}; border: 1px solid; background: {color(r)}; color: {on(r)}'>{text}</span>"


def _judged(place: Place, typed: str, said: Any) -> tuple[str, str]:
    """Return what was typed, with a border and a sign for right or wrong, and what the rank holds, as text and HTML."""
    truth = place.text if place.defined else "undefined"
    if said is Nothing.EMPTY:
        return truth, f"<span style='{BOX}; border: 1px dashed'>{escape(truth)}</span>"
    look, mark = ("solid #009E73", "✓") if place.holds(said) else ("dashed #D55E00", f"✗ {truth}")
    html = f"<span style='{BOX}; border: 2px {look}'><b>{escape(typed)}</b><br>{escape(mark)}</span>"
    return f"{typed} {mark}", html
