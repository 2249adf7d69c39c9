"""Keep what has become of a lab's ranks, as far as the lab knows: one value, and all that changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto


class Condition(Enum):
    """How the ranks stand to each other."""

    PARTED = auto()  # no group joins them: they have not joined yet, or could not
    WELL = auto()  # joined, and what the last cell left has been looked at
    APART = auto()  # the last cell ended well, and left a rank without the lab's group
    UNHEALED = auto()  # ranks may be in a cell still, or what it broke has not been mended
    STOPPED = auto()  # the lab was stopped, and has no ranks


@dataclass
class State:
    """The condition of all ranks, and which of them have ended or were started anew."""

    condition: Condition = Condition.PARTED
    ended: dict[int, str] = field(default_factory=dict)  # rank → how: "SIGKILL", "exit code 1"
    replaced: set[int] = field(default_factory=set)  # since the lab began: what they had is lost
    fresh: set[int] = field(default_factory=set)  # those of them that have not joined the others yet

    @property
    def stopped(self) -> bool:
        """Whether the lab was stopped."""
        return self.condition is Condition.STOPPED

    def stop(self) -> None:
        """Note that all ranks are ended, for good."""
        self.condition = Condition.STOPPED

    def in_cell(self) -> None:
        """Note that ranks are in a cell: unless it is seen to its end, they must be healed before the next one."""
        self.condition = Condition.UNHEALED

    def settled(self, apart: bool = False) -> None:
        """Note that no rank is in a cell, and nothing is broken; with `apart`, a rank may have left the group."""
        self.condition = Condition.APART if apart else Condition.WELL

    def parted(self) -> None:
        """Note that the ranks leave their group; one that may be in a cell still, is so until all are healed."""
        if self.condition is not Condition.UNHEALED:
            self.condition = Condition.PARTED

    def joined(self) -> None:
        """Note that all ranks have joined a new group."""
        if self.condition is Condition.PARTED:
            self.condition = Condition.WELL
        self.fresh = set()

    def started_anew(self, rank: int) -> None:
        """Note that a rank that had ended has a new process, with nothing of what the old one had."""
        self.ended.pop(rank, None)
        self.replaced.add(rank)
        self.fresh.add(rank)

    def left_out(self, kept: Sequence[int]) -> None:
        """Note that those of the ranks that had ended have no place any more, and the others new numbers."""
        self.ended = {}
        self.replaced, self.fresh = ({i for i, r in enumerate(kept) if r in its} for its in (self.replaced, self.fresh))
