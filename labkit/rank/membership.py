"""Let ranks that make different groups at once find out: torch would join them to each other.

A rank counts the groups that it makes, and ranks that come to the same number are joined, whichever ranks each has
named. Where rank 0 makes a group of ranks 0 and 1 while rank 3 makes one of ranks 2 and 3, the two are in one group
from then on, and what they sum is silently wrong.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch.distributed as dist

from labkit.floor.words import alike, ranks
from labkit.rank.board import gathered, look_up
from labkit.rank.frames import leading_here

REMEDY = (
    "Call dist.new_group with the same ranks and in the same order on every rank, also for groups that it is not in."
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
    store.set(_key(name, dist.get_rank()), json.dumps(asdict(mine)))
    everyone = dist.get_world_size() if name.isdigit() else 1  # of one that is named by its ranks, they alone know
    # Of two ranks at least one sees the other, since each puts up its own before it reads. The first one waits a moment
    # for the others, so that all of them find it out, and none has done anything in its group meanwhile.
    up = gathered(lambda: _up(store, name), everyone)
    return _disagreement(up, mine.cell) if any(meant.members != mine.members for meant in up.values()) else ""


def _disagreement(up: Mapping[int, Meant], cell: str) -> str:
    told = alike({r: meant.told(cell) for r, meant in up.items()})
    said = "; ".join(f"{ranks(rs)} {'makes' if len(rs) == 1 else 'make'} {text}" for text, rs in told.items())
    return f"Ranks make different groups: {said}. {REMEDY}"


def _key(name: str, rank: int) -> str:
    return f"labkit-group/{name}/{rank}"


def _up(store: dist.Store, name: str) -> dict[int, Meant]:
    there = look_up(store, {r: _key(name, r) for r in range(dist.get_world_size())})
    return {r: Meant(**json.loads(text)) for r, text in there.items()}


def _place() -> tuple[str, int]:
    """Return the cell that is being run, by a name that all ranks give it, and the line that it is in."""
    cells = leading_here()
    if not cells:
        return "", 0
    code, line = cells[-1]
    return os.path.basename(code.co_filename), line
