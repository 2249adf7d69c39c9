"""Ranks that make different groups at once find out: torch would join them to each other.

A rank counts the groups that it makes, and whoever comes to the same number is joined, whatever ranks each has named.
Where rank 0 makes a group of ranks 0 and 1 while rank 3 makes one of ranks 2 and 3, the two are in one group from then
on, and what they sum is silently wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import FrameType

import torch.distributed as dist

from labkit.errors import MismatchError
from labkit.lines import line
from labkit.theory.record import is_cell
from labkit.words import ranks

REMEDY = (
    "Call dist.new_group with the same ranks and in the same order on every rank, also for groups that it is not in."
)


def compare(store: dist.Store, name: str, members: Sequence[int]) -> None:
    """Raise where the first rank that came to a group's name means other ranks by it; nobody waits for anybody."""
    me, key = dist.get_rank(), f"labkit-group/{name}"
    if store.add(f"{key}/came", 1) == 1:
        store.set(key, json.dumps([me, list(members), _place()]))
        return
    first, meant, where = json.loads(store.get(key))
    if list(members) != meant:
        raise MismatchError(
            f"Ranks make different groups: rank {first} one of {ranks(meant)}{where}, rank {me} one of "
            f"{ranks(members)}{_place()}. {REMEDY}"
        )


def _place() -> str:
    """ " (line 3)": the line of the cell that is being run; "" where there is none."""
    frame: FrameType | None = sys._getframe(1)
    found = ""
    while frame is not None:
        if is_cell(frame.f_code.co_filename):
            found = f" (line {line(frame)})"
        frame = frame.f_back
    return found
