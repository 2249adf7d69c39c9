"""Where a result came from, read from how it responds when one element at a time is changed.

A probe runs a function with the same number everywhere, then again with one source changed, for every source.
Three such families tell the operations apart: 0 → 1 moves what adds, copies or takes the largest; 1 → 0
moves what takes the smallest or multiplies; 1 → 2 says how often a factor is in a product.
Imports neither torch nor a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_, xor

from labkit.theory.origin import Origin

Source = tuple[int, int]  # (rank, element), or (rank, block) where whole blocks are changed at once
ADD, SHRINK, GROW = (0, 1), (1, 0), (1, 2)  # the families: what all hold, what one source is changed to
FAMILIES = (ADD, SHRINK, GROW)


@dataclass(frozen=True)
class Response:
    """How one result cell answers one family: its value at rest, and its change for each source and for all at once."""

    rest: float
    changes: Mapping[Source, float]
    together: float


@dataclass(frozen=True)
class Part:
    """What one result cell is made of: `kind` says how its origins are combined.

    `kind` is "copy", "sum", "mean", "max", "min", "product", "and", "or", "xor"; "mix" where it is none of
    these, and "own" where the cell depends on no source.
    """

    kind: str
    origin: Origin = field(default_factory=lambda: Origin.of({}))


OWN = Part("own")


def read(
    responses: Mapping[tuple[int, int], Response],
    n: int,
    value: float | None = None,
    sources: Mapping[Source, float] | None = None,
) -> Part | None:
    """Tell what a cell is made of; None where the families given do not tell yet.

    `value` is what the cell held in the real run, `sources` what the sources held before it. With these a
    function that only looks like a sum on zeros and ones (a square, a softmax) is told apart.

    >>> read({ADD: Response(0, {(0, 0): 1, (1, 0): 1}, 2)}, n=2).origin
    r0[0] + r1[0]
    """
    known = sources if value is not None else None
    add = responses[ADD]
    moved = _moved(add)
    if moved:
        part = _linear(add, moved, n, value, known) or _extreme(add, moved, value, known)
        if part is not None:
            return part
    if len(responses) < len(FAMILIES):
        return None
    shrink, grow = responses[SHRINK], responses[GROW]
    if not moved and _moved(shrink) and _same(shrink.together, -1):
        return _smallest_or_product(shrink, grow)
    anyone = {**moved, **_moved(shrink), **_moved(grow)}
    return Part("mix", Origin.of(anyone.keys())) if anyone else OWN


def _linear(
    add: Response, moved: dict[Source, float], n: int, value: float | None, sources: Mapping[Source, float] | None
) -> Part | None:
    """Recognise a copy, a sum or a mean: the changes add up, and the value is the weighted sum of the sources."""
    if not _same(sum(moved.values()), add.together):
        return None
    if value is not None and sources is not None:
        made = add.rest + sum(weight * sources[s] for s, weight in moved.items())
        if math.isfinite(made) and not _same(made, value):
            return None
    for unit, kind in ((1, "sum"), (n, "mean")):
        counts = {s: round(weight * unit) for s, weight in moved.items()}
        if all(c > 0 and _same(c, weight * unit) for c, weight in zip(counts.values(), moved.values(), strict=True)):
            kind = "copy" if kind == "sum" and list(counts.values()) == [1] else kind
            return Part(kind, Origin.of(counts))
    return Part("mix", Origin.of(moved.keys()))


def _extreme(
    add: Response, moved: dict[Source, float], value: float | None, sources: Mapping[Source, float] | None
) -> Part | None:
    """Recognise a maximum, or two bits combined: each source alone moves the cell by 1, all together no further."""
    if any(not _same(change, 1) for change in moved.values()):
        return None
    ways: list[tuple[str, float, Callable[[Sequence[float]], float]]] = [
        ("max", 1, max),
        ("or", 1, partial(_bitwise, or_)),
        ("xor", len(moved) % 2, partial(_bitwise, xor)),
    ]
    for kind, together, combined in ways:
        if not _same(add.together, together):
            continue
        if value is None or sources is None or _same(combined([sources[s] for s in moved]), value):
            return Part(kind, Origin.of(moved.keys()))
    return None


def _smallest_or_product(shrink: Response, grow: Response) -> Part:
    """Tell apart what a zero makes zero: growing one source leaves a minimum, doubles a product, empties an AND."""
    everyone = _moved(shrink)
    grown = _moved(grow)
    if not grown:
        return Part("min", Origin.of(everyone.keys()))
    if all(change > 0 for change in grown.values()):
        counts = {s: max(1, round(math.log2(1 + grown.get(s, 0)))) for s in everyone}
        return Part("product", Origin.of(counts))
    return Part("and", Origin.of(everyone.keys()))


def _moved(response: Response) -> dict[Source, float]:
    return {s: change for s, change in response.changes.items() if not _same(change, 0)}


def _bitwise(combine: Callable[[int, int], int], values: Sequence[float]) -> float:
    whole = all(math.isfinite(v) and v == int(v) for v in values)
    return reduce(combine, map(int, values)) if whole else math.nan


def _same(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=2e-3, abs_tol=1e-4)  # half precision has three digits
