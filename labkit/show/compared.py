"""Hold a learner's tiles beside the ranks', and say what a page needs to ask for them. No widgets, torch or cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate
from typing import Any

from labkit.plot.sheet import color, on
from labkit.plot.tiles import Tile, flat
from labkit.show.flow import Flow
from labkit.show.guess import HOW, NONE, Held, Nothing, Place
from labkit.show.table import cell, row, table
from labkit.theory.origin import Origin
from labkit.theory.probing import Seen
from labkit.theory.provenance import Part

BOX = "display: inline-block; min-width: 30px; padding: 3px 5px; margin: 2px 3px 2px 0; border-radius: 5px; "
BOX += "text-align: center; vertical-align: middle; line-height: 1.25"
SMALL = "font-size: 10px; font-weight: normal"


def tiles(flow: Flow) -> dict[str, Any]:
    """Return what a page asks of a flow's end: nothing in it depends on what the ranks hold."""
    places, blank = flow.places, flow.blank
    before, after = blank.columns
    x, y = map(escape, blank.titles)
    rows = [
        {
            "rank": _rank(r),
            "before": _boxes(before[r]),
            "names": [place.name for place in mine],
            "groups": list(accumulate(map(len, after[r])))[:-1],  # where another entry of a list begins
        }
        for r, mine in enumerate(places)
    ]
    return {"question": f"<b>{x}</b> → <b>{y}</b>: what does each rank hold? {HOW}", "rows": rows}


def answers(flow: Flow) -> dict[str, Any]:
    """Return what a page without a kernel needs beside it: what the ranks hold, and the flow."""
    held = [[{"text": p.text, "defined": p.defined, **_plain(p.value)} for p in mine] for mine in flow.places]
    return {"held": held, "means": flow.meant, "how": HOW, "none": NONE, "flow": flow._repr_html_()}


def _plain(value: Any) -> dict[str, Any]:
    """Return a value as JSON has it: a word, or a number's digits, which may be inf; neither where there is none."""
    if isinstance(value, Nothing):
        return {}
    return {"word": value} if isinstance(value, str) else {"number": repr(float(value))}


def kept(flow: Flow) -> dict[str, Any] | None:
    """Return a flow as a notebook keeps it, for `again`; None where what was meant is a function."""
    if flow.means is not None and not isinstance(flow.means, str):
        return None
    seen = {**vars(flow.seen), "parts": [[[a, b, p.kind, *_counted(p)] for a, b, p in r] for r in flow.seen.parts]}
    return {"seen": json.dumps(seen, ensure_ascii=False, separators=(",", ":")), "means": flow.means, "root": flow.root}


def _counted(part: Part) -> list[list[int]]:
    return [[r, i, times] for (r, i), times in part.origin.counts.items()]


def again(meta: dict[str, Any]) -> Flow:
    """Return the flow that was `kept`."""
    seen = json.loads(meta["seen"])
    parts = [
        [(a, b, Part(kind, Origin.of({(r, i): times for r, i, times in counts}))) for a, b, kind, *counts in row]
        for row in seen["parts"]
    ]
    sources = [(r, start, stop) for r, start, stop in seen["sources"]]
    return Flow(Seen(**{**seen, "parts": parts, "sources": sources}), meta["means"], meta["root"])


class Compared:
    """A learner's tiles beside the ranks', then the flow; `held` has it as plain data, `fill` compares other tiles."""

    def __init__(self, held: Held, flow: Flow, fill: Callable[[Sequence[Any]], Compared]) -> None:
        self.held = held
        self.flow = flow
        self.fill = fill

    def __repr__(self) -> str:
        rows = ["  ".join(judged(*tile)[0] for tile in row) for row in self.held.rows]
        lines = [f"rank {r} │ {row}" for r, row in enumerate(rows)]
        return "\n".join([*self.held.sentences, *lines, "", repr(self.flow)])

    def _repr_html_(self) -> str:
        blank = self.flow.blank
        rows = [
            row(
                _rank(r),
                [cell(_boxes(blank.columns[0][r]), "tiles"), cell("".join(judged(*t)[1] for t in tiles), "tiles")],
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


def judged(place: Place, typed: str, said: Any) -> tuple[str, str]:
    """Return what was typed, with a border and a sign for right or wrong, and what the rank holds, as text and HTML."""
    truth = place.text if place.defined else "undefined"
    if said is Nothing.EMPTY:
        return truth, f"<span style='{BOX}; border: 1px dashed'>{escape(truth)}</span>"
    look, mark = ("solid #009E73", "✓") if place.holds(said) else ("dashed #D55E00", f"✗ {truth}")
    html = f"<span style='{BOX}; border: 2px {look}'><b>{escape(typed)}</b><br>{escape(mark)}</span>"
    return f"{typed} {mark}", html
