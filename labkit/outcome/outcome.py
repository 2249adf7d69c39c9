"""What became of a cell, or of a function run on the ranks: the ranks' own parts, and why it was ended if it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.errors import MismatchError
from labkit.outcome.counts import Behind, behind

WITHOUT = "finished the cell without it"  # what a rank did that the others still wait for


@dataclass
class RankOutcome:
    """What one rank made of a cell, or answered to a call."""

    rank: int
    stdout: str = ""
    stderr: str = ""
    value: str = ""  # the plain text of a trailing expression
    displays: list[dict[str, Any]] = field(default_factory=list)  # rich outputs: figures, HTML
    answer: Any = None  # what the function returned
    ename: str = ""
    evalue: str = ""
    traceback: str = ""
    raised: str = ""  # by the "learner", in an "operation" that failed under way, or by the "lab" that freed the rank
    at: float = 0.0  # when: a `moment` of the notebook's clock
    forgotten: str = ""  # what was used in vain, since its process group is gone: "DeviceMesh"
    groups: dict[str, Any] = field(default_factory=dict)  # `labkit.rank.agent.groups`, where the cell ended well

    @property
    def apart(self) -> bool:
        """Whether it ended well, and outside of the lab's process group."""
        return self.groups.get("joined") is False


@dataclass
class Outcome:
    """What became of a cell or a call.

    `ended` says why the lab ended it, or "" where it ended by itself: "stuck" (ranks waited for others that could not
    come), "stopped" (by the learner), "slow" (it took longer than it may) or "lost" (the controller died, so that
    nobody knows what the ranks made of it). It is "runs" of a cell that was only looked at.
    """

    ranks: list[RankOutcome]
    ended: str = ""
    dead: dict[int, str] = field(default_factory=dict)  # rank → "SIGKILL"
    waiting: dict[int, dict[str, Any]] = field(default_factory=dict)  # rank → where it was when it was freed
    elsewhere: dict[int, str] = field(default_factory=dict)  # rank → what it did instead
    stacks: dict[int, list[list[Any]]] = field(default_factory=dict)  # rank → where it did that: function, line, source
    at: float = 0.0  # when the lab saw all this, a `moment` of its `clock`; 0 where times are not to be told
    clock: tuple[str, float] = ("", 0.0)

    @property
    def errors(self) -> dict[int, RankOutcome]:
        return {r.rank: r for r in self.ranks if r.ename}

    @property
    def answers(self) -> dict[int, Any]:
        """What the ranks that ended well have returned."""
        return {r.rank: r.answer for r in self.ranks if not r.ename and r.rank not in self.dead}

    @property
    def mismatch(self) -> str:
        """In what the ranks' calls do not fit, as those say that have found it; "" where they fit."""
        return next((r.evalue for r in self.ranks if r.ename == MismatchError.__name__), "")

    @property
    def cut_short(self) -> bool:
        """Whether ranks were freed or have died, or make calls that do not fit: the group must be joined anew."""
        return bool(self.dead or self.ended or self.mismatch)

    @property
    def behind(self) -> Behind | None:
        """A group in which ranks have ended the cell well and will not come to a collective that others have begun."""
        if self.cut_short or self.errors:
            return None
        return behind({r.rank: r.groups for r in self.ranks})

    @property
    def well(self) -> bool:
        """Whether every rank has done what it was asked, and what the others count on."""
        return not (self.cut_short or self.errors or self.behind)
