"""How many collectives the ranks of a group have begun, held against one another. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Behind:
    """A group in which a cell has ended well and ranks have begun fewer collectives than others.

    `begun` says how many each of its ranks has begun in this cell.
    """

    group: str
    begun: dict[int, int]

    @property
    def ranks(self) -> list[int]:
        """The ranks that have not come to what others have begun."""
        return [r for r, n in self.begun.items() if n < max(self.begun.values())]


def behind(told: Mapping[int, dict[str, Any]]) -> Behind | None:
    """Find a group whose ranks have all ended the same cell, and in which some have begun fewer collectives for good.

    `told` is what each rank said at the cell's end (`labkit.rank.agent.groups`). What a rank lacks it may have begun
    in an earlier cell, and code of the learner's that still runs beside the cell may come to it. Where the lab's own
    group works no more, torch has raised already.
    """
    if not all(its.get("joined") for its in told.values()):
        return None
    for name, (members, _, _) in next(iter(told.values()), {}).get("compared", {}).items():
        its = {r: told[r]["compared"][name] for r in members if name in told.get(r, {}).get("compared", {})}
        if len(its) < len(members) or any(ranks != members for ranks, _, _ in its.values()):
            continue
        begun, ever = ({r: its[r][i] for r in members} for i in (1, 2))
        last = [r for r in members if ever[r] < max(ever.values())]
        found = Behind(name, begun)
        if last and found.ranks and not any(told[r]["beside"] for r in last):
            return found
    return None


def differ(told: Sequence[dict[str, Any]]) -> bool:
    """Tell whether ranks of one group have begun different numbers of its operations: one has missed a call."""
    begun = [its["steps"] | {(name,): n for name, (_, n, _) in its["compared"].items()} for its in told]
    return any(len({its[name] for its in begun if name in its}) > 1 for name in {n for its in begun for n in its})
