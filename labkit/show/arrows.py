"""Choose the arrows that a picture of a flow has room for, and say what they are. Plain data in and out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby

from labkit.plot.flow import Arrow, Span

LANES = 8  # parts of a row that have arrows of their own
LEGEND = "Arrows show what a result depends on, not messages."

Source = tuple[int, int]  # a rank and the tile among those that it brings


def arrows(needs: Sequence[Sequence[Collection[Source]]], sizes: Sequence[int]) -> tuple[list[Arrow], list[str]]:
    """Return the arrows where `needs[r][j]` are the sources of tile j of rank r's result, and what to say of them.

    `sizes[r]` says how many tiles rank r brings. Where every result depends on every rank, the arrows of all of them
    would be a tangle that says nothing: one rank's are drawn.

    >>> arrows([[{(0, 0)}], [{(0, 1)}]], [2, 1])[0]
    [Arrow(source=0, result=0, of=(0, 0), into=None), Arrow(source=0, result=1, of=(1, 1), into=None)]
    """
    n = len(needs)
    ranks = [{s for sources in row for s, _ in sources} for row in needs]
    shown, notes = range(n), [LEGEND]
    if not any(ranks):
        return [], []
    if sum(map(len, ranks)) > 2 * n:
        one = next(r for r in (*range(1, n), 0) if len(ranks[r]) == max(map(len, ranks)))
        shown = range(one, one + 1)
        everyone = all(len(those) == n for those in ranks)
        others = "every rank's result depends on all ranks" if everyone else "the labels tell the others"
        notes.append(f"They are drawn for rank {one} only: {others}.")
    found = [arrow for r in shown for arrow in _into(r, needs[r], sizes)]
    leaving = {s: {a.of for a in found if a.source == s} for s in range(n)}
    whole = {s for s, spans in leaving.items() if len(spans) > LANES}
    return [replace(a, of=None) if a.source in whole else a for a in found], notes


def _into(r: int, row: Sequence[Collection[Source]], sizes: Sequence[int]) -> list[Arrow]:
    """Return the arrows to one rank's result: neighbours that depend on the same ranks get one together."""
    runs = [list(run) for _, run in groupby(range(len(row)), lambda j: {s for s, _ in row[j]})]
    if len(runs) > LANES:
        runs = [list(range(len(row)))]
    found = []
    for run in runs:
        places: dict[int, set[int]] = {}
        for j in run:
            for s, i in row[j]:
                places.setdefault(s, set()).add(i)
        into = (run[0], run[-1]) if len(runs) > 1 else None
        found += [Arrow(s, r, _span(mine, sizes[s]), into) for s, mine in sorted(places.items())]
    return found


def _span(places: Collection[int], size: int) -> Span | None:
    """Return these tiles' span, if they are some of a row's and stand side by side."""
    first, last = min(places), max(places)
    return (first, last) if last - first + 1 == len(places) < size and last < size else None
