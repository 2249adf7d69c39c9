"""What became of a cell, or of a function run on the ranks, as values: `phrases` and `sentences` have the words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from labkit.floor.errors import MismatchError
from labkit.outcome.counts import Behind, behind


@dataclass(frozen=True)
class Waiting:
    """A rank that waits: in which call ("send", or "isend" where it waits for its `handle`), where, for which ranks.

    `whom` is empty where that is unknown; `group` has the ranks of a collective's group where these are not all, `name`
    is torch's for it.
    """

    call: str
    line: int | None = None
    function: tuple[str, int] | None = None  # that the line of the cell led to, and its own line
    whom: tuple[int, ...] = ()
    anybody: bool = False  # a receive from any rank
    handle: bool = False
    meets: bool = False  # it is a collective
    group: tuple[int, ...] = ()
    name: str = ""
    seen: str = ""  # the call that waits for the GPU, and so for this one: "synchronize (line 4)"
    source: str = ""  # the learner's line that it is in


class Did(Enum):
    """What a rank did that does not wait."""

    FINISHED = auto()  # it has run the whole cell
    LEFT = auto()  # the call that others wait in, and finished the cell
    NEVER_RAN = auto()  # it was not among the ranks of the cell
    DIED = auto()
    RAISED = auto()
    SILENT = auto()  # it did not answer
    STOPPED = auto()  # its process was sent SIGSTOP
    STOOD = auto()  # at the debugger's prompt
    WENT_ON = auto()  # it computed in the learner's code
    COMPUTES = auto()  # it computes, as far as its record tells
    COMPUTED = auto()  # it did so in the moment that is told of
    INSIDE = auto()  # it was in a call then
    NOT_YET = auto()  # it had not arrived yet then


@dataclass(frozen=True)
class Instead:
    """What a rank did instead of waiting: its signal or error type where it died or raised, its line where known."""

    did: Did
    what: str = ""  # "SIGKILL", "ValueError"
    line: int | None = None
    function: tuple[str, int] | None = None
    call: Waiting | None = None  # that it was in, or has left
    without: bool = False  # it has finished, and had no part in what others wait in
    ran: str = "cell"  # or "function"


DEEDS = {"silent": Did.SILENT, "stopped": Did.STOPPED, "prompt": Did.STOOD}  # where that is not to compute


def fate_of(told: Mapping[str, Any]) -> Waiting | Instead:
    """Read what an agent says of its rank (`labkit.rank.agent.where`), or what stands for it where it says nothing."""
    line, function = told.get("line"), told.get("function")
    place = line, function and (function[0], function[1])
    if told["state"] == "collective":
        return Waiting(told["op"], *place, seen=told.get("seen", ""), source=told.get("source", ""))
    return Instead(DEEDS.get(told["state"], Did.WENT_ON), "", *place)


class Healed(Enum):
    """What was done to bring the ranks back, or why it had to be."""

    CONTROLLER = auto()  # it had died, and was started anew
    DAEMON = auto()  # the one of MPS had died, and the ranks were ended with it
    FAULT = auto()  # of one rank on a GPU that is shared under MPS: all were ended
    LOST_GPU = auto()  # ranks had lost theirs, and were ended
    TURNS = auto()  # ranks take turns on the GPU from now on
    ANEW = auto()  # ranks were started again
    JOINED = auto()  # the process group was, once more
    SHRUNK = auto()  # it was joined without ranks that had ended: `ranks` are the others, as they were numbered
    SUBGROUPS = auto()  # they went with the old group


@dataclass(frozen=True)
class Note:
    """One thing that was done. `ranks` are those concerned, or keep their variables in a group that is joined again."""

    what: Healed
    ranks: tuple[int, ...] = ()
    of: int = 0  # so many in all
    back: tuple[str, ...] = ()  # functions and classes that ranks which were started anew have again
    lost: tuple[str, ...] = ()  # variables
    why: str = ""  # ranks take turns


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
    at: float = 0.0  # when: a timestamp of the notebook's clock
    forgotten: str = ""  # what was used in vain, since its process group is gone: "DeviceMesh"
    differs: str = ""  # in what the ranks' calls do not fit, where that was raised: see `theory.fingerprint`
    groups: dict[str, Any] = field(default_factory=dict)  # `labkit.rank.agent.groups`, where the cell ended well

    @property
    def apart(self) -> bool:
        """Whether it ended well, and outside of the lab's process group."""
        return self.groups.get("joined") is False


@dataclass
class Outcome:
    """What became of a cell or a call.

    `ended` says why the lab ended it, or "" where it ended by itself: "stuck" (ranks waited for others that could not
    come), "stopped" (by the learner), "left" (by the learner, at the debugger's prompt), "slow" (it took too long) or
    "lost" (the controller died, so that it is unknown what the ranks made of it). It is "runs" of a cell that was only
    looked at.
    """

    ranks: list[RankOutcome]
    ended: str = ""
    dead: dict[int, str] = field(default_factory=dict)  # rank → "SIGKILL"
    waiting: dict[int, Waiting] = field(default_factory=dict)  # rank → where it was when it was freed
    elsewhere: dict[int, Instead] = field(default_factory=dict)  # rank → what it did instead
    stacks: dict[int, list[list[Any]]] = field(default_factory=dict)  # rank → where it did that: function, line, source
    at: float = 0.0  # when the lab saw all this, a timestamp of its `clock`; 0 where times are not to be told
    clock: tuple[str, float] = ("", 0.0)

    @property
    def errors(self) -> dict[int, RankOutcome]:
        return {r.rank: r for r in self.ranks if r.ename}

    @property
    def answers(self) -> dict[int, Any]:
        """The values that the ranks which ended well have returned."""
        return {r.rank: r.answer for r in self.ranks if not r.ename and r.rank not in self.dead}

    @property
    def misfit(self) -> RankOutcome | None:
        """A rank that has found that the ranks' calls do not fit: `evalue` says in what."""
        return next((r for r in self.ranks if r.ename == MismatchError.__name__), None)

    @property
    def cut_short(self) -> bool:
        """Whether ranks were freed or have died, or make calls that do not fit: the group must be joined anew."""
        return bool(self.dead or self.ended or self.misfit)

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
