"""From what became of a cell to one sentence: what went wrong, and for whom."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from labkit.errors import CellError, MismatchError, StoppedError, StuckError
from labkit.outcome import text
from labkit.outcome.counts import Behind
from labkit.outcome.outcome import Outcome
from labkit.outcome.story import Story
from labkit.outcome.why import together, why
from labkit.theory.record import Record, read
from labkit.words import alike, count, listed, ranks

# What torch and Gloo say where a rank sends to itself or receives from itself, and what to say beside it. Only with
# itself is a rank of a Gloo group not connected; as whose address it gives itself then, is chance.
ITSELF = re.compile(r"destination rank should not be the same as the rank|Pair is not connected")
CHOOSE = "no rank can send to itself or receive from itself: choose a different rank, or copy the tensor with x.clone()"
AGAIN = "this process group is gone: run the cell that made it with dist.new_group again"
EVERY = "make each call on every rank of its group, in the same cell"
GONE = "the process group of this {} is gone: run the cell that made it again"
WAS = "<was>"  # stands for "was" or "were" until it is known of how many ranks


def judge(outcome: Outcome, logs: Sequence[dict[str, Any] | None] = ()) -> CellError | None:
    """The error that the cell ends with, or None where every rank finished; `logs` are what the ranks recorded."""
    if outcome.ended == "lost":
        return CellError("the controller died, and with it what the ranks answered")
    stuck = why(Story(logs, outcome), times=False) if outcome.ended else ""
    if outcome.ended == "stopped":
        return StoppedError(f"You stopped the cell: {stuck}.")
    causes, consequences = text.root_cause(outcome)
    deaths = [_deaths(outcome)] if outcome.dead else []
    if outcome.mismatch:  # which ranks found it, and which waited, is chance
        besides = [str(cause) for cause in causes if cause.ename != MismatchError.__name__]
        return CellError(outcome.mismatch, text.trim(causes[0].traceback) if causes else "", besides + deaths)
    if causes:
        cause = causes[0]
        itself = any(ITSELF.search(error.evalue) for error in outcome.errors.values())
        notes = [*map(str, causes[1:]), *deaths, *[CHOOSE] * itself, *forgotten(outcome), *waited(outcome)]
        notes += together(read(logs), outcome)
        return CellError(str(cause), text.trim(cause.traceback), notes)
    if deaths:
        return CellError(deaths[0], notes=waited(outcome))
    if outcome.ended == "slow":
        return CellError(f"it took longer than it may: {stuck}")
    if outcome.ended == "stuck":
        return StuckError(stuck)
    if outcome.behind:
        return StuckError(_left_open(outcome.behind, read(logs)))
    if consequences:
        notes = [f"{ranks(rs)}: {what}" for what, rs in alike(consequences).items()]
        first = outcome.errors[min(consequences)]
        return CellError(notes[0], text.trim(first.traceback), notes[1:])
    return None


def _left_open(behind: Behind, record: Record) -> str:
    """Who has begun a collective to which others never came; without the record, how many each has begun."""
    late = set(behind.ranks)
    for meeting in record.meetings:
        begun = {op.rank: f"{op.op}{f' ({op.place})' * bool(op.place)}" for op in meeting.ops}
        if meeting.group == behind.group and (absent := late - set(begun)):
            calls = listed([f"{ranks(rs)} {_have(rs)} begun {call}" for call, rs in alike(begun).items()])
            return f"{calls}, and {ranks(absent)} never came to it: {EVERY}"
    many = alike({r: f"begun {count(n, 'collective')}" for r, n in behind.begun.items()})
    calls = listed([f"{ranks(rs)} {_have(rs)} {what}" for what, rs in many.items()])
    return f"{calls} of one group, and the cell is over: {EVERY}"


def forgotten(outcome: Outcome) -> list[str]:
    """What to do about something whose process group is gone: the lab joins a new one when it heals."""
    used = dict.fromkeys(error.forgotten for error in outcome.errors.values() if error.forgotten)
    return [AGAIN if what == "ProcessGroup" else GONE.format(what) for what in used]


def _deaths(outcome: Outcome) -> str:
    """How ranks ended: by themselves, or by us because they would neither answer nor leave their cell."""

    def death(rank: int) -> str:
        if rank in outcome.waiting:
            return f"could not be freed from {_place(outcome.waiting[rank])} and {WAS} ended"
        instead = outcome.elsewhere.get(rank, "died")
        return f"died ({outcome.dead[rank]})" if instead.startswith("died") else f"{instead} and {WAS} ended"

    deaths = alike({r: death(r) for r in outcome.dead})
    return ", ".join(f"{ranks(rs)} {how.replace(WAS, _was(rs))}" for how, rs in deaths.items())


def waited(outcome: Outcome) -> list[str]:
    """Who waited where until it was freed, in sentences."""
    freed = _places(outcome, set(outcome.waiting) - set(outcome.dead))
    return [f"{ranks(rs)} waited in {place} and {_was(rs)} freed" for place, rs in freed.items()]


def _places(outcome: Outcome, which: Iterable[int]) -> dict[str, list[int]]:
    """Where these ranks waited, with the ranks that waited there."""
    return alike({r: _place(outcome.waiting[r]) for r in which})


def _place(where: dict[str, object]) -> str:
    function = f", in {where['function']}" if where.get("function") else ""
    seen = f", seen in {where['seen']}" if where.get("seen") else ""
    return f"{where['op']} (line {where['line']}{function}){seen}"


def _have(which: list[int]) -> str:
    return "has" if len(which) == 1 else "have"


def _was(which: list[int]) -> str:
    return "was" if len(which) == 1 else "were"
