"""Let ranks that make different groups at once find out: torch would join them to each other.

A rank counts the groups that it makes, and ranks that come to the same number are joined, whichever ranks each has
named. Where rank 0 makes a group of ranks 0 and 1 while rank 3 makes one of ranks 2 and 3, the two are in one group
from then on, and what they sum is silently wrong.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch.distributed as dist

from labkit.floor.words import alike, ranks
from labkit.rank.board import gathered, put_up
from labkit.rank.frames import leading_here

REMEDY = (
    "Call dist.new_group with the same ranks and in the same order on every rank, even if the rank is not in the group."
)


@dataclass(frozen=True)
class Meant:
    """A group as one rank makes it: of these ranks of the world, in a line of a cell ("" and 0 where in none)."""

    members: list[int]
    cell: str
    line: int

    def told(self, cell: str) -> str:
        """Say what is made and where, to a rank that is in another cell now, or in the same."""
        where = f" (line {self.line}{'' if self.cell == cell else ' of another cell'})" if self.cell else ""
        in_order = self.members == sorted(self.members)  # else with sort_ranks=False
        who = ranks(self.members) if in_order else f"ranks {', '.join(map(str, self.members))} in this order"
        return f"one of {who}{where}"


def compare(store: dist.Store, name: str, members: Sequence[int]) -> str:
    """Say in what the ranks disagree that have come to a group's name: which ranks they mean by it; "" for nothing."""
    mine = Meant(list(members), *_place())
    keys = {r: f"labkit-group/{name}/{r}" for r in range(dist.get_world_size())}
    look = put_up(store, keys, dist.get_rank(), asdict(mine))
    everyone = len(keys) if name.isdigit() else 1  # of one that is named by its ranks, they alone know
    # The first rank waits a moment for the others, so that all of them find it out, and none has done anything in its
    # group meanwhile.
    up = {r: Meant(**meant) for r, meant in gathered(look, everyone).items()}
    return _disagreement(up, mine.cell) if any(meant.members != mine.members for meant in up.values()) else ""


def _disagreement(up: Mapping[int, Meant], cell: str) -> str:
    told = alike({r: meant.told(cell) for r, meant in up.items()})
    said = "; ".join(f"{ranks(rs)} {'makes' if len(rs) == 1 else 'make'} {text}" for text, rs in told.items())
    return f"Ranks make different groups: {said}. {REMEDY}"


def _place() -> tuple[str, int]:
    """Return the cell that is being run, by a name that all ranks give it, and the line that it is in."""
    cells = leading_here()
    if not cells:
        return "", 0
    code, line = cells[-1]
    return os.path.basename(code.co_filename), line
