"""`lab.histogram`: count how many times each whole number occurs in what ranks have kept. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.faces import arguments
from labkit.floor.errors import LabError
from labkit.floor.words import count
from labkit.show.picture import EachRank
from workbook.tools.histogram import plot

SAID = 12  # values whose counts are said one by one; of more, several are said together


def histogram(lab: Any, *expressions: str, mean: bool = True) -> Histogram:
    """Draw how many times each whole number is in the ranks' lists: a panel per expression, a bar per rank.

    >>> lab.histogram("staleness")
    >>> lab.histogram("free", "bounded")     # on one scale
    >>> lab.histogram("expert", mean=False)  # of numbers that are names: their mean says nothing

    Ranks that lack the list are left out. Raises `LabError` where all do, or where it is not a list of whole numbers.
    """
    arguments.quoted('which numbers to count: lab.histogram("staleness"), where a rank has a list of them', expressions)
    return Histogram({expression: lab._held(expression) for expression in expressions}, mean)


class Histogram(EachRank):
    """Each rank's whole numbers, counted: `counts[name][r][v]` is how many times rank r has the value v.

    `means[name][r]` and `largest[name][r]` are those of rank r, and lack a rank without values. `means` are empty where
    none are wanted.
    """

    what = "How many times each value occurs, a bar for each rank."

    def __init__(self, held: Mapping[str, Mapping[int, Any]], mean: bool = True) -> None:
        kept = {name: {r: _whole(name, r, v) for r, v in ranks.items()} for name, ranks in held.items()}
        self.counts = {
            name: {r: dict(sorted(Counter(v).items())) for r, v in ranks.items()} for name, ranks in kept.items()
        }
        valued = {name: {r: v for r, v in ranks.items() if v and mean} for name, ranks in kept.items()}
        self.means = {name: {r: sum(v) / len(v) for r, v in ranks.items()} for name, ranks in valued.items()}
        self.largest = {name: {r: max(v) for r, v in ranks.items() if v} for name, ranks in kept.items()}

    def _note(self, name: str, r: int) -> str:
        """Say a rank's mean and largest value, or nothing where no mean is wanted."""
        if r not in self.means[name]:
            return "" if self.counts[name][r] else "no values"
        mean = self.means[name][r]
        return f"mean {f'{mean:.3g}' if abs(mean) < 999.5 else f'{mean:,.0f}'}, largest {self.largest[name][r]:,}"

    def _said(self, name: str, r: int) -> str:
        counts = self.counts[name][r]
        if not counts:
            return "no values"
        each = ", ".join(f"{value}: {count(times, 'time')}" for value, times in self._together(counts))
        note = self._note(name, r)
        return f"{note and f'{note}, '}{count(sum(counts.values()), 'value')} ({each})"

    def _together(self, counts: Mapping[int, int]) -> Sequence[tuple[str, int]]:
        """Return each value with its count, as the picture's bars have them, but no more than SAID allows."""
        axis = plot.values(self._panels, SAID if len(counts) > SAID else None)
        return [(axis.said(i), times) for i, times in enumerate(axis.counted(counts)) if times]

    @property
    def says(self) -> dict[str, dict[int, str]]:
        return {name: {r: self._said(name, r) for r in ranks} for name, ranks in self.counts.items()}

    @property
    def _panels(self) -> list[plot.Counts]:
        return [
            plot.Counts(name, ranks, self.means[name], {r: self._note(name, r) for r in ranks})
            for name, ranks in self.counts.items()
        ]

    def _drawn(self) -> Any:
        return plot.draw(self._panels)


def _whole(name: str, rank: int, value: Any) -> list[int]:
    flat = getattr(value, "ndim", 1) == 1 and not isinstance(value, (str, bytes, dict))
    try:
        numbers = [(v, int(v)) for v in value] if flat else None
    except (TypeError, ValueError, OverflowError):
        numbers = None
    if numbers is None or any(isinstance(v, (str, bytes)) or v != whole for v, whole in numbers):
        raise LabError(
            f"{name!r} on rank {rank} is not a list of whole numbers. Append one at a time, such as "
            f"{name if name.isidentifier() else 'staleness'}.append(version - read)."
        )
    return [whole for _, whole in numbers]
