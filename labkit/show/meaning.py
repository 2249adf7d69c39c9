"""What a function should do to an input, as tiles: each result with its value and where it comes from."""

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

Values = dict[tuple[int, int], Any]  # (rank, index) → what rank brought
Rows = list[list[list[Tile]]]  # a rank, a group, a tile
Means = Callable[..., Sequence[Any]]


def before(case: Case) -> Rows:
    """What every rank brings, in its colour."""
    return [_row(x, [Origin(r, i) for i in range(judge.size(x))]) for r, x in enumerate(case.xs)]


def after(means: Means, case: Case, wants: Sequence[Any], beside: Sequence[Any] | None = None) -> Rows:
    """What every rank should end with; coloured by origin where tokens can be fed through the meaning.

    `beside` is what ranks ended with: what differs from it has digits enough to show that.
    """
    origins = tracing.origins(means, case, wants)
    values = {(r, i): v for r, x in enumerate(case.xs) for i, v in enumerate(leaves(x))}
    return [
        _row(want, None if origins is None else origins[r], values, None if beside is None else beside[r])
        if want is not None
        else [[Tile("any", kind="empty")]]
        for r, want in enumerate(wants)
    ]


def sources(means: Means, case: Case, wants: Sequence[Any]) -> list[list[set[tuple[int, int]]]]:
    """Which of the inputs' numbers each drawn tile of a result depends on, a row a rank; none where nobody knows."""
    origins = tracing.origins(means, case, wants) or []
    return [[set(o.counts) for o in (row or [])[:MOST]] for row in origins]


def _row(
    value: Any, origins: Sequence[Origin] | None, values: Values | None = None, beside: Any = None
) -> list[list[Tile]]:
    """The tiles of one rank; the entries of a list stand apart."""
    if value is None or isinstance(value, judge.Sentinel):
        return [[Tile(words(value), kind="empty")]]
    flat = leaves(value)
    if not flat:
        return [[Tile("[]", kind="empty")]]
    theirs = others(flat, leaves(beside))
    tiles = [_tile(v, origins[i] if origins else None, values, theirs[i]) for i, v in enumerate(flat[:MOST])]
    if len(flat) > MOST:
        return [[*tiles, Tile(f"+{len(flat) - MOST}", kind="empty")]]
    return grouped(tiles, parts(value))


def parts(value: Any) -> list[int]:
    """How many elements stand together: those of a list's entry, of a matrix's row.

    >>> parts([np.ones(2), np.ones((2, 3))]), parts([1, 2])
    ([2, 3, 3], [2])
    """
    entries = list(value.values()) if isinstance(value, dict) else value
    matrix = isinstance(entries, np.ndarray) and entries.ndim > 1
    if not (matrix or isinstance(entries, (list, tuple))) or all(judge.size(e) <= 1 for e in entries):
        return [judge.size(value)]
    return [size for entry in entries for size in parts(entry)]


def shapes(xs: Sequence[Any]) -> list[str]:
    """A note on the inputs' shapes, where some have more than one dimension: a row of tiles does not show them."""
    each = [arrays(x) for x in xs]
    if all(a.ndim < 2 for mine in each for a in mine):
        return []
    texts = alike({r: ", ".join(str(a.shape) for a in mine) for r, mine in enumerate(each)})
    return [f"Shapes of the input: {'; '.join(f'{shape} on {ranks(rs)}' for shape, rs in texts.items())}."]


def _tile(value: Any, origin: Origin | None, values: Values | None, beside: Any) -> Tile:
    if origin is None:
        return Tile(words(value, beside), kind="plain")
    return from_part(Part(_kind(value, origin, values), origin), words(value, beside))


def _kind(value: Any, origin: Origin, values: Values | None) -> str:
    """How the sources were put together, told by the numbers."""
    if len(origin.counts) == 1 and set(origin.counts.values()) == {1}:
        return "copy"
    if values is None or not isinstance(value, (int, float)):
        return "sum"
    terms = [values[s] for s, times in origin.counts.items() for _ in range(times)]
    for kind, combine in (("sum", sum), ("mean", np.mean), ("product", np.prod), ("max", max), ("min", min)):
        if abs(float(combine(terms)) - value) <= 1e-5 * max(1.0, abs(value)):
            return kind
    return "mix"


def others(value: Any, beside: Any) -> Sequence[Any]:
    """For each entry of a value the one in its place of another, None where they are not equally long."""
    alike = hasattr(beside, "__len__") and not isinstance(beside, (str, dict)) and getattr(beside, "shape", None) != ()
    return list(beside) if alike and len(beside) == len(value) else [None] * len(value)


def words(value: Any, beside: Any = None) -> str:
    """A value in as few characters as a tile has room for; in more where it looks like another one, and differs.

    >>> words(100000000.0), words(2.0), words("ring"), words(judge.ANY), words(2.95e10, 3e10)
    ('1e+08', '2', 'ring', 'any', '2.95e+10')
    """
    told = _words(value)
    if (
        type(value) is type(beside) is float
        and told == _words(beside)
        and judge.first_difference(value, beside, judge.SAME)
    ):
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
