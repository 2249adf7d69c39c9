"""Show a value on every rank before and after a cell, and where each number came from, for `%%flow`.

Plain data in; the picture is `labkit.plot.flow`'s. No torch, no cluster of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from labkit.floor.errors import LabError
from labkit.plot import flow as picture
from labkit.plot.flow import Drawing
from labkit.plot.tiles import Tile, flat
from labkit.show.alt_text import by_rank, listed, story
from labkit.show.arrows import arrows
from labkit.show.guess import Nothing, Place
from labkit.show.picture import Picture
from labkit.show.tiles import BLOCK, WIDE, coarse, from_part, grouped, short, wanted_tiles
from labkit.theory import mistakes
from labkit.theory.origin import Origin
from labkit.theory.primitives import Means, meant
from labkit.theory.probing import Seen
from labkit.theory.provenance import Part

COMPARED = 4096  # elements up to which a result is held against what was meant


class Flow(Picture):
    """Before → after, one row per rank; it displays itself as a picture with the same told in words.

    `origins[r]` has an `Origin` for each element of rank r's result, or None where rank r has none or they are
    unknown, and `why` says why; `mistakes` says in words what differs from the primitive that was meant.
    """

    def __init__(self, seen: Seen, means: str | Means | None = None, root: int = 0) -> None:
        self.seen, self.means, self.root = seen, means, root
        self._fine = all(stop - start == 1 for _, start, stop in seen.sources)
        self.meant = str(getattr(means, "__name__", means) or "")  # the primitive
        self.why = seen.why
        expected = self._expected(means, root) if means else None
        self._undefined = {r for r, w in enumerate(expected or []) if w is None}
        self._wanted = None if seen.why else expected
        self._spans = [[(a, b, part.origin) for a, b, part in row] for row in seen.parts]
        self._noun = "element" if self._fine else "block"
        self.mistakes = mistakes.mistakes(self._spans, self._wanted, self._noun) if self._wanted else []

    @property
    def origins(self) -> list[list[Origin] | None]:
        """The origin of each element of rank r's result, at index r; None where rank r has no result."""
        return [[o for a, b, o in row for _ in range(b - a)] or None for row in self._spans]

    @property
    def before(self) -> str:
        """The ranks' values before the cell, in a sentence."""
        held = by_rank({r: listed(b, "holds") for r, b in enumerate(self.seen.before)})
        return f"Before, {self.seen.x}: {held}."

    @property
    def places(self) -> list[list[Place]]:
        """The values of rank r in the end, tile by tile, at index r; one tile where it holds nothing."""
        return [
            [
                Place(r, i if a["size"] > 1 else None, Nothing.NONE if v is None else v, r not in self._undefined)
                for i, v in enumerate(a["values"] or [None])
            ]
            for r, a in enumerate(self.seen.after)
        ]

    @property
    def blank(self) -> Drawing:
        """The picture before the ranks' values in the end are known."""
        seen = self.seen
        before = [self._tiles_before(r) for r in range(len(seen.before))]
        after = [
            grouped([Tile("?", kind="empty")] * max(1, a["size"]), a["groups"] if a["size"] else [1])
            for a in seen.after
        ]
        return Drawing([f"{seen.x} before", f"{seen.y} after"], [before, after], code=_call(seen.code))

    # -- how it shows itself --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        drawing = self._drawing()
        lines = [f"{self.seen.x} → {self.seen.y}"]
        for r in range(drawing.ranks):
            sides = [in_words(column[r]) for column in drawing.columns]
            wanted = f"   wanted: {sides[2]}" if len(sides) > 2 and self._wrong(r) else ""
            lines.append(f"rank {r} │ {sides[0]} → {sides[1]}{wanted}")
        return "\n".join([*lines, *(f"✗ {m}" for m in self.mistakes), *self._notes(legend=False)])

    def _drawn(self) -> Any:
        return picture.draw(self._drawing())

    @property
    def small(self) -> Drawing:
        """The tiles before and after, for a small picture: no arrows and no words."""
        return Drawing(["before", "after"], self._drawing().columns[:2])

    @property
    def alt(self) -> str:
        seen = self.seen
        after = by_rank(
            {r: story(self._tiles_after(r), seen.parts[r], a, self._noun) for r, a in enumerate(seen.after)}
        )
        parts = [self.before, f"After, {seen.y}: {after}", *self.mistakes, seen.why]
        return " ".join(f"{p.rstrip('.')}." for p in parts if p)

    # -- the drawing ----------------------------------------------------------------------------------------------

    def _drawing(self) -> Drawing:
        seen = self.seen
        n = len(seen.before)
        before = [self._tiles_before(r) for r in range(n)]
        after = [self._tiles_after(r) for r in range(n)]
        if any(len(flat(row)) > WIDE for row in after):
            after = [coarse(row, seen.parts[r]) for r, row in enumerate(after)]
        titles = [f"{seen.x} before", f"{seen.y} after"]
        columns = [before, after]
        if self._wanted and self.mistakes:
            titles.append(f"as {self.meant} means it")
            columns.append([wanted_tiles(w, a) for w, a in zip(self._wanted, after, strict=True)])
        found, legend = arrows(
            [self._needs(r, len(flat(row))) for r, row in enumerate(after)], [len(flat(b)) for b in before]
        )
        return Drawing(titles, columns, found, [*self._notes(), *legend], _call(seen.code), self.mistakes)

    def _needs(self, r: int, tiles: int) -> list[set[tuple[int, int]]]:
        """Return the sources of each tile of rank r's result; of all together where tiles are joined to blocks."""
        if self._wanted is not None and self._wanted[r] is None:
            return []  # nothing defined arrives
        each = [set(part.origin.counts) for *_, part in self.seen.parts[r]]
        return each if len(each) == tiles else [set().union(*each)]

    def _tiles_before(self, r: int) -> list[list[Tile]]:
        b = self.seen.before[r]
        if not b["size"]:
            return [[_nothing(b)]]
        mine = [(start, stop) for rank, start, stop in self.seen.sources if rank == r]
        tiles = [
            Tile(self._text(b, start, stop), f"{r}·{i}", ((r, 1),), width=1.0 if self._fine else BLOCK)
            for i, (start, stop) in enumerate(mine)
        ]
        return grouped(tiles, b["groups"]) if self._fine else [tiles]

    def _tiles_after(self, r: int) -> list[list[Tile]]:
        a = self.seen.after[r]
        if not a["size"]:
            return [[_nothing(a)]]
        if self.why:
            shown = [Tile(short(v), kind="plain") for v in a["values"][:WIDE]]
            more = [Tile(f"+{a['size'] - WIDE}", kind="empty")] if a["size"] > WIDE else []
            return grouped(shown, a["groups"]) if not more else [shown + more]
        tiles = [self._tile(r, start, stop, part) for start, stop, part in self.seen.parts[r]]
        return grouped(tiles, a["groups"]) if all(t.width == 1 for t in tiles) else [tiles]

    def _tile(self, r: int, start: int, stop: int, part: Part) -> Tile:
        a = self.seen.after[r]
        width = 1.0 if stop - start == 1 else BLOCK
        text = self._text(a, start, stop)
        if a["values"][start : start + 1] == [None]:
            return Tile("None", kind="empty")
        wanted = self._want(r, start)
        if self._wanted and wanted is None:
            return Tile(text, "undefined", kind="empty", width=width)
        tile = from_part(part, text, width)
        if wanted is not None and wanted != part.origin:
            gone = (wanted.counts - part.origin.counts).keys()
            missing = sorted({s for s, _ in gone} - set(part.origin.ranks))
            tile = replace(tile, wrong=True, missing=tuple(missing) if len(wanted.counts) > 1 else ())
        return tile

    def _text(self, told: dict[str, Any], start: int, stop: int) -> str:
        values = told["values"][start:stop]
        if not values:
            return f"{stop - start} values"
        first, last = short(values[0]), short(values[-1])
        return first if first == last else f"{first}…{last}"

    # -- what was meant -------------------------------------------------------------------------------------------

    def _expected(self, means: str | Means, root: int) -> list[list[mistakes.Span] | None] | None:
        """Return what the primitive that was meant leaves, in the same sources that were changed."""
        if sum(b["size"] for b in self.seen.before) > COMPARED:
            return None
        block = {}
        for r, own in groupby(self.seen.sources, lambda s: s[0]):
            for j, (_, start, stop) in enumerate(own):
                block.update({(r, i): (r, j) for i in range(start, stop)})
        out: list[list[mistakes.Span] | None] = []
        for tokens in mistakes.expected(means, [b["groups"] for b in self.seen.before], root):
            if tokens is None:
                out.append(None)
                continue
            coarse = [Origin.of({block[s]: times for s, times in t.counts.items()}) for t in tokens]
            spans: list[mistakes.Span] = []
            for i, o in enumerate(coarse):
                joined = spans and not self._fine and spans[-1][2] == o
                spans[-1:] = [(spans[-1][0], i + 1, o)] if joined else [*spans[-1:], (i, i + 1, o)]
            out.append(spans)
        return out

    def _want(self, r: int, place: int) -> Origin | None:
        row = self._wanted[r] if self._wanted else None
        return next((o for a, b, o in row if a <= place < b), Origin.of({})) if row is not None else None

    def _wrong(self, r: int) -> bool:
        return any(t.wrong for t in flat(self._tiles_after(r)))

    def _notes(self, legend: bool = True) -> list[str]:
        seen, notes = self.seen, []
        if legend and not self.why:
            more = "" if self._fine else "; a block has several elements"
            notes.append(f"1·0 stands for rank 1's {self._noun} 0 before the cell{more}.")
        if self._wanted is None:
            notes += [f"{said[0].upper()}{said[1:]}." for said in mistakes.repeated(self._spans, self._noun)]
        for name, values in {seen.x: seen.before, seen.y: seen.after}.items():
            shapes = [v["shape"] for v in values if v["shape"] is not None and len(v["shape"]) > 1]
            if shapes:
                notes.append(f"{name} has the shape {tuple(shapes[0])} and is drawn row by row.")
        if self.meant and not self.mistakes and not self.why:
            notes.append(f"This is what {self.meant} means." if self._wanted else "Too large to be compared.")
        return [*notes, *[self.why] * bool(self.why)]


def check(means: str | Means | None, root: int, n: int) -> None:
    """Refuse a primitive or a root that does not exist, before the cell runs."""
    if means is not None:
        meant(means)
    if root not in range(n):
        raise LabError(f"root={root!r}: this lab has the ranks 0 to {n - 1}. Choose among them.")


def _nothing(told: dict[str, Any]) -> Tile:
    """Return a tile for a rank that has no number: it lacks the name, holds None, or something empty."""
    return Tile("–" if "error" in told else "[]" if told["groups"] else "None", kind="empty")


def _call(code: str) -> str:
    """Choose the line of the cell that stands over the picture: the last one that communicates, or else the last one.

    Where only indented lines communicate, as under `if rank == 0:`, all of those.
    """
    lines = [line.rstrip() for line in code.splitlines() if line.strip() and line.strip()[0] not in "#)]}"]
    outer = [line for line in lines if line[0] not in " \t"]
    talking = [line for line in lines if "dist." in line or "comms." in line]
    inner = " · ".join(line.strip() for line in talking)
    line = next((line for line in reversed(talking) if line in outer), inner) or (lines or [""])[-1].strip()
    return line if len(line) <= 60 else line[:59] + "…"


def in_words(groups: Sequence[Sequence[Tile]]) -> str:
    """Write a row of tiles as plain text."""

    def one(tile: Tile) -> str:
        marks = f" {tile.badge}" * bool(tile.badge)
        return f"{tile.text} ({tile.label}{marks})" if tile.label and tile.text else tile.text or tile.label

    inner = ["  ".join(map(one, group)) for group in groups]
    return inner[0] if len(inner) == 1 else "  ".join(f"[{g}]" for g in inner)
