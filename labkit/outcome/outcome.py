"""What became of a cell: the ranks' own parts, and why it was ended if it was. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class RankOutcome:
    """What one rank made of a cell."""

    rank: int
    stdout: str = ""
    stderr: str = ""
    value: str = ""  # the plain text of a trailing expression
    displays: list[dict[str, Any]] = field(default_factory=list)  # rich outputs: figures, HTML
    ename: str = ""
    evalue: str = ""
    traceback: str = ""


@dataclass
class Outcome:
    """What became of a cell: the ranks' reports, and why it was ended if it was."""

    ranks: list[RankOutcome]
    dead: dict[int, str] = field(default_factory=dict)  # rank → "SIGKILL"
    waiting: dict[int, dict[str, Any]] = field(default_factory=dict)  # rank → where it was when it was freed
    elsewhere: dict[int, str] = field(default_factory=dict)  # rank → what it did instead
    stopped: bool = False  # by the learner
    lost: bool = False  # the controller died: nobody knows what the ranks made of the cell

    @property
    def errors(self) -> dict[int, RankOutcome]:
        return {r.rank: r for r in self.ranks if r.ename}

    @property
    def cut_short(self) -> bool:
        """Whether ranks were freed or lost, so that the group must be joined anew."""
        return bool(self.dead or self.waiting or self.stopped or self.lost)
