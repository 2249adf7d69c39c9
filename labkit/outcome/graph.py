"""A wait-for graph: where each rank waits and for whom, who waits for one another in a cycle. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from labkit.outcome.outcome import Instead, Waiting


@dataclass
class Graph:
    """Each rank is in one of two: `waiting` in a call, or doing something `instead`."""

    waiting: dict[int, Waiting] = field(default_factory=dict)
    instead: dict[int, Instead] = field(default_factory=dict)

    @property
    def arrows(self) -> list[tuple[int, int]]:
        """Every wait, as (the rank that waits, the rank that it waits for)."""
        return [(r, other) for r, w in sorted(self.waiting.items()) for other in w.whom]

    @property
    def cycles(self) -> list[list[int]]:
        """Ranks that wait for one another in a cycle: the shortest through the lowest rank, then among those left."""
        found: list[list[int]] = []
        for r in sorted(self.waiting):
            path = self._back_to(r)
            if path and not any(set(path) & set(cycle) for cycle in found):
                found.append(path)
        return found

    def _back_to(self, start: int) -> list[int]:
        """Find the shortest way from a rank along the arrows back to it; none is []."""
        paths, seen = [[start]], {start}
        while paths:
            longer = []
            for path in paths:
                for other in self.waiting[path[-1]].whom if path[-1] in self.waiting else ():
                    if other == start:
                        return path
                    if other not in seen:
                        seen.add(other)
                        longer.append([*path, other])
            paths = longer
        return []

    def reached(self, ranks: Iterable[int]) -> set[int]:
        """Find all ranks that these ones wait for, also through others."""
        found: set[int] = set()
        new = set(ranks)
        while new:
            new = {o for r in new if r in self.waiting for o in self.waiting[r].whom} - found
            found |= new
        return found
