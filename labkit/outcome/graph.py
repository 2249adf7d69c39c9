"""A wait-for graph: where each rank waits and for whom, who waits for one another in a cycle. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from labkit.words import ranks


@dataclass(frozen=True)
class Waiting:
    """A rank that waits: in which call ("send", or "isend" where it waits for its `handle`), where, for which ranks.

    `whom` is empty where nobody knows; `group` has the ranks of a group that is not everybody's, `name` is torch's
    for it.
    """

    call: str
    place: str = ""  # "line 7", "line 4 of ring, called in line 9"
    whom: tuple[int, ...] = ()
    anybody: bool = False  # a receive that takes whatever comes
    handle: bool = False
    meets: bool = False  # it is a collective
    group: tuple[int, ...] = ()
    name: str = ""
    seen: str = ""  # the call that waits for the GPU, and so for this one: "synchronize (line 4)"

    @property
    def what(self) -> str:
        """What it waits in: "send", "the wait for isend", "all_reduce among ranks 0, 1"."""
        called = f"the wait for {self.call}" if self.handle else self.call
        return f"{called} among {ranks(self.group)}" if self.meets and self.group else called

    @property
    def how(self) -> str:
        """How it waits: "in send", "for the handle of isend", "in recv from any rank"."""
        how = self.what.replace("the wait for", "for the handle of") if self.handle else f"in {self.what}"
        return how + " from any rank" * self.anybody

    @property
    def label(self) -> str:
        """The same with its place: "send, line 7"."""
        return ", ".join(filter(None, [self.what, self.place]))


@dataclass
class Graph:
    """`waiting` and `others` say where each rank is: in a call that waits, or elsewhere."""

    waiting: dict[int, Waiting] = field(default_factory=dict)
    others: dict[int, str] = field(default_factory=dict)

    @property
    def arrows(self) -> list[tuple[int, int]]:
        """Each as (who waits, for whom)."""
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
        """The shortest way from a rank along the arrows back to it, or nothing."""
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
        """All ranks that these ones wait for, also through others."""
        found: set[int] = set()
        new = set(ranks)
        while new:
            new = {o for r in new if r in self.waiting for o in self.waiting[r].whom} - found
            found |= new
        return found
