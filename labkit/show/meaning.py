"""Draw what a function should do to an input, as tiles: each result with its value and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.floor.words import alike, ranks
from labkit.grading import judge, tracing
from labkit.grading.inputs import Case, arrays
from labkit.plot.tiles import Tile
from labkit.show.tiles import from_part, grouped, short
from labkit.theory.origin import Origin
from labkit.theory.provenance import Part
from labkit.theory.values import leaves

MOST = 9  # tiles in a row
NOTHING = Tile("[]", kind="empty")

Values = dict[tuple[int, int], Any]  # (rank, index) → what rank brought
Rows = list[list[list[Tile]]]  # a rank, a group, a tile
Means = Callable[..., Sequence[Any]]
Look = Callable[[int, Any, str], Tile]  # the tile of an element: of its index, itself, its words


def before(case: Case) -> Rows:
    """Return what every rank brings, in its colour."""

    def own(r: int) -> Look:
        return lambda i, _, text: from_part(Part("copy", Origin(r, i)), text)

    return [row(x, own(r)) for r, x in enumerate(case.xs)]


def after(means: Means, case: Case, wants: Sequence[Any], beside: Sequence[Any] | None = None) -> Rows:
    """Return what every rank should end with; coloured by origin where tokens can be fed through the meaning.

    `beside` is what ranks ended with: what differs from it has digits enough to show that.
    """
    origins = tracing.origins(means, case, wants)
    values = {(r, i): v for r, x in enumerate(case.xs) for i, v in enumerate(leaves(x))}
    rows = []
    for r, want in enumerate(wants):
        its = (origins[r] if origins is not None else None) or []

        def look(i: int, value: Any, text: str, its: Sequence[Origin] = its) -> Tile:
            return from_part(Part(_kind(value, its[i], values), its[i]), text) if its else Tile(text, kind="plain")

        theirs = None if beside is None else beside[r]
        rows.append(row(want, look, beside=theirs) if want is not None else [[Tile("any", kind="empty")]])
    return rows


def sources(means: Means, case: Case, wants: Sequence[Any]) -> list[list[set[tuple[int, int]]]]:
    """Return the inputs' numbers that each drawn tile of a result depends on, a row per rank; none where unknown."""
    origins = tracing.origins(means, case, wants) or []
    return [[set(o.counts) for o in (row or [])[:MOST]] for row in origins]


def row(
    value: Any, look: Look, start: int = 0, nothing: Tile = NOTHING, beside: Any = None, wrong: bool = False
) -> list[list[Tile]]:
    """Return the tiles of one rank from an element on; entries of a list stand apart, where all of them are drawn.

    What differs from its like in `beside` has digits enough to show that; `nothing` stands for an empty value, `wrong`
    outlines one that is none.
    """
    if value is None or isinstance(value, judge.Sentinel):
        return [[Tile(words(value), kind="empty", wrong=wrong)]]
    flat = leaves(value)
    if not flat:
        return [[nothing]]
    theirs = others(flat, leaves(beside))
    tiles = [look(i, flat[i], words(flat[i], theirs[i])) for i in range(start, min(start + MOST, len(flat)))]
    if len(flat) > start + MOST:
        return [[*tiles, Tile(f"+{len(flat) - start - MOST}", kind="empty")]]
    return [tiles] if start else grouped(tiles, parts(value))


def parts(value: Any) -> list[int]:
    """Return how many elements stand together: those of a list's entry, of a matrix's row.

    >>> parts([np.ones(2), np.ones((2, 3))]), parts([1, 2])
    ([2, 3, 3], [2])
    """
    entries = list(value.values()) if isinstance(value, dict) else value
    matrix = isinstance(entries, np.ndarray) and entries.ndim > 1
    if not (matrix or isinstance(entries, (list, tuple))) or all(judge.size(e) <= 1 for e in entries):
        return [judge.size(value)]
    return [size for entry in entries for size in parts(entry)]


def shapes(xs: Sequence[Any]) -> list[str]:
    """Return a note on the inputs' shapes, where some have several dimensions: a row of tiles does not show them."""
    each = [arrays(x) for x in xs]
    if all(a.ndim < 2 for mine in each for a in mine):
        return []
    texts = alike({r: ", ".join(str(a.shape) for a in mine) for r, mine in enumerate(each)})
    return [f"Shapes of the input: {'; '.join(f'{shape} on {ranks(rs)}' for shape, rs in texts.items())}."]


def _kind(value: Any, origin: Origin, values: Values) -> str:
    """Tell by the numbers how the sources were put together."""
    if len(origin.counts) == 1 and set(origin.counts.values()) == {1}:
        return "copy"
    if not isinstance(value, (int, float)):
        return "sum"
    terms = [values[s] for s, times in origin.counts.items() for _ in range(times)]
    for kind, combine in (("sum", sum), ("mean", np.mean), ("product", np.prod), ("max", max), ("min", min)):
        if abs(float(combine(terms)) - value) <= 1e-5 * max(1.0, abs(value)):
            return kind
    return "mix"


def others(value: Any, beside: Any) -> Sequence[Any]:
    """Return for each entry of a value the one in its place of another, None where they are not equally long."""
    row = hasattr(beside, "__len__") and not isinstance(beside, (str, dict)) and getattr(beside, "shape", None) != ()
    return list(beside) if row and len(beside) == len(value) else [None] * len(value)


def words(value: Any, beside: Any = None) -> str:
    """Write a value in as few characters as a tile has room for; in more where it looks like another, and differs.

    >>> words(100000000.0), words(2.0), words("ring"), words(judge.ANY), words(2.95e10, 3e10)
    ('1e+08', '2', 'ring', 'any', '2.95e+10')
    """
    told = _words(value)
    floats = type(value) is type(beside) is float
    if floats and told == _words(beside) and judge.first_difference(value, beside, judge.SAME):
        return next(t for digits in range(3, 18) if (t := f"{value:.{digits}g}") != f"{beside:.{digits}g}")
    return told


def _words(value: Any) -> str:
    if isinstance(value, judge.Sentinel):
        return "any" if value is judge.ANY else "None" if value is judge.NOTHING else "large"
    if isinstance(value, str):
        return value if len(value) <= 12 else f"{value[:11]}…"
    if isinstance(value, float) and len(short(value)) > 6:
        return f"{value:.2g}"
    return short(value)
