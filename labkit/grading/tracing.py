"""Where a function's results come from: tokens through its meaning, probe numbers through the function itself.

Both number what a rank brings alike: all numbers in its input, in order. Neither torch nor a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from labkit.grading import judge
from labkit.grading.inputs import Case
from labkit.theory import mistakes
from labkit.theory.origin import INT64, Origin, merge, passes
from labkit.theory.values import atoms, leaves, mapped

BITS = {"int64": INT64, "float64": 53, "int32": 30, "float32": 24}  # that a sum may take and stay exact
RUNS = 8  # of the function, at most

Means = Callable[..., Sequence[Any]]
Row = list[Origin]


def origins(means: Means, case: Case, wants: Sequence[Any]) -> list[Row] | None:
    """Find where each element of each expected result comes from; None where a meaning does more than move and add."""
    try:
        filled = [_filled(x, iter([Origin(r, i) for i in range(judge.size(x))])) for r, x in enumerate(case.xs)]
        rows = [leaves(out) if out is not None else [] for out in means(filled, **case.options)]
    except Exception:  # a meaning that takes logarithms has no tokens for an answer
        return None
    fits = all(len(row) == judge.size(want) for row, want in zip(rows, wants, strict=True) if want is not None)
    return rows if fits and all(isinstance(o, Origin) for row in rows for o in row) else None


def probes(case: Case) -> list[Case]:
    """Put probe numbers into an input, one case a run; none where it cannot be probed in a few runs."""
    sizes = [judge.size(x) for x in case.xs]
    dtypes = {str(a.dtype) if isinstance(a, np.ndarray) else "" for x in case.xs for a in atoms(x)}
    if len(dtypes) != 1 or case.dtype or not max(sizes):
        return []
    dtype = dtypes.pop()
    runs = passes(case.n, max(sizes), BITS[dtype]) if dtype in BITS else []
    if len(runs) > RUNS:
        return []
    return [
        replace(case, xs=[_filled(x, iter(np.array(run[r], dtype=dtype))) for r, x in enumerate(case.xs)])
        for run in runs
    ]


def decoded(case: Case, outs: Sequence[Sequence[Any]]) -> list[Row] | None:
    """Read where each element of each result came from, `outs[run][r]`; None where probe numbers do not tell.

    They tell where they also give the numbers that the function returned for the real input: `explains`.
    """
    dtype = next(str(a.dtype) for x in case.xs for a in atoms(x))
    size = max(judge.size(x) for x in case.xs)
    rows = []
    for r in range(case.n):
        flat = [leaves(run[r]) for run in outs]
        if len({len(row) for row in flat}) != 1:
            return None
        try:
            rows.append([merge(values, case.n, size, BITS[dtype]) for values in zip(*flat, strict=True)])
        except (LabError, TypeError, ValueError, OverflowError):
            return None
    return rows


def explains(case: Case, rows: Sequence[Row], outs: Sequence[Any]) -> bool:
    """Tell whether the sums of these sources are the results."""
    values = {(r, i): v for r, x in enumerate(case.xs) for i, v in enumerate(leaves(x))}
    for row, out in zip(rows, outs, strict=True):
        if out is None or not row:
            continue
        sums = [sum(times * values.get(s, 0) for s, times in o.counts.items()) for o in row]
        if judge.first_difference(sums, leaves(out), 1e-5):
            return False
    return True


def in_words(came: Sequence[Row], wanted: Sequence[Row | None]) -> list[str]:
    """Put each mistake into words: "rank 0 counts rank 1's element 2 twice"; see `theory.mistakes`.

    >>> in_words([[Origin(1, 0), Origin(1, 1)]], [[Origin(0, 0), Origin(0, 1)]])
    ["rank 0 holds rank 1's numbers where rank 0's belong"]
    """
    rest: list[list[mistakes.Span] | None] = []
    swaps = []
    for r, (row, want) in enumerate(zip(came, wanted, strict=True)):
        swap = _swap(row, want) if want else None
        if swap:
            swaps.append(f"rank {r} holds rank {swap[0]}'s numbers where rank {swap[1]}'s belong")
        rest.append(None if want is None or swap else _spans(want))
    return [*swaps, *mistakes.mistakes([_spans(row) for row in came], rest)]


def _spans(row: Row) -> list[mistakes.Span]:
    return [(i, i + 1, origin) for i, origin in enumerate(row)]


def _swap(row: Row, want: Row) -> tuple[int, int] | None:
    """Return (whose numbers came, whose belong there) where one rank's stand for another's, each in its place."""
    pairs = [(list(a.counts.elements()), list(b.counts.elements())) for a, b in zip(row, want, strict=True)]
    if not all(len(a) == len(b) == 1 and a[0][1] == b[0][1] for a, b in pairs):
        return None
    ranks = {(a[0][0], b[0][0]) for a, b in pairs}
    (swap,) = ranks if len(ranks) == 1 else [(0, 0)]
    return swap if swap[0] != swap[1] else None


def _filled(x: Any, numbers: Iterator[Any]) -> Any:
    """Put other numbers into a value, the next ones each time, and keep its structure."""

    def filled(old: Any) -> Any:
        if not isinstance(old, np.ndarray):
            return next(numbers)
        new = list(islice(numbers, old.size))
        flat = np.empty(old.size, dtype=object if new and isinstance(new[0], Origin) else old.dtype)
        flat[:] = new
        return flat.reshape(old.shape)

    return mapped(filled, x)
