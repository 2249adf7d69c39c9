"""Make tiles of what a probe found: what each one says, which stand together, which become one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from labkit.floor.words import spans
from labkit.plot.tiles import Tile, flat
from labkit.show.compare import number
from labkit.theory.mistakes import Span
from labkit.theory.provenance import Part

WIDE = 16  # tiles in a row; more are drawn as blocks of like origin
BLOCK = 1.7  # width of a block, in tiles
SIGNS = {"sum": "Σ", "mean": "avg", "product": "Π", "mix": "ƒ"}  # max, min, and, or, xor are their own


def from_part(part: Part, text: str, width: float = 1.0) -> Tile:
    """Return a tile for what a part is made of."""
    counts = part.origin.counts
    shares = {r: max(t for (s, _), t in counts.items() if s == r) for r in part.origin.ranks}
    most = max(shares.values(), default=1)
    return Tile(text, label(part), tuple(shares.items()), badge=f"{most}×" if most > 1 else "", width=width)


def label(part: Part) -> str:
    """Say where a value came from, in short: "2·1", "Σ 0–3·1".

    >>> from labkit.theory.origin import Origin
    >>> label(Part("sum", Origin(0, 1) + Origin(1, 1)))
    'Σ 0,1·1'
    """
    places = {i for _, i in part.origin.counts}
    return _whose(part) + (f"·{places.pop()}" if len(places) == 1 else "")


def _whose(part: Part) -> str:
    """Say from which ranks a value came: "2", "Σ 0–3"."""
    who = spans(part.origin.ranks)
    return who if part.kind == "copy" or not who else f"{SIGNS.get(part.kind, part.kind)} {who}"


def short(value: Any) -> str:
    """Write a value in as few characters as a tile has room for.

    >>> short(2.0), short(0.123456), short(True)
    ('2', '0.123', 'True')
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    return str(value) if isinstance(value, str) else number(value, 3)


def grouped(tiles: list[Tile], sizes: Sequence[int]) -> list[list[Tile]]:
    """Put tiles in groups of these sizes, as the entries of a list stand together."""
    groups, at = [], 0
    for size in sizes:
        groups.append(tiles[at : at + size])
        at += size
    return [g for g in groups if g] or [tiles]


def coarse(groups: list[list[Tile]], parts: Sequence[tuple[int, int, Part]]) -> list[list[Tile]]:
    """Join neighbours of one origin to a block; where these are still too many, neighbours from the same ranks."""
    pairs = [(tile, part) for tile, (_, _, part) in zip(flat(groups), parts, strict=False)]
    if len(pairs) < len(parts):
        return groups
    row = [_block(list(run)) for _, run in groupby(pairs, lambda p: (p[0].label, p[0].wrong))]
    if len(row) > WIDE:
        row = [_block(list(run)) for _, run in groupby(pairs, lambda p: (p[0].shares, p[1].kind, p[0].wrong))]
    return [row]


def _block(run: list[tuple[Tile, Part]]) -> Tile:
    """Join tiles side by side to one: its first and last value, and where all of it came from."""
    first, last = run[0][0], run[-1][0]
    if len(run) == 1:
        return first
    values = f"{first.text.split('…')[0]}…{last.text.split('…')[-1]}"
    places = sorted({i for _, part in run for _, i in part.origin.counts})
    span = "·" + (f"{places[0]}–{places[-1]}" if len(places) > 1 else str(places[0])) if places else ""
    text = first.text if first.text == last.text else values
    return replace(first, text=text, label=_whose(run[0][1]) + span, width=BLOCK)


def wanted_tiles(wanted: Sequence[Span] | None, after: list[list[Tile]]) -> list[list[Tile]]:
    """Return tiles of what should have come; the values are not known, only the origins."""
    if wanted is None:
        return [[Tile("", kind="empty")]]
    tiles = [from_part(Part("copy" if len(o.counts) == 1 else "sum", o), "") for _, _, o in wanted if o is not None]
    sizes = [len(g) for g in after]
    return grouped(tiles, sizes) if sum(sizes) == len(tiles) else [tiles]
