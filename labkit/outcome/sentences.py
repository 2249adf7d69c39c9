"""From what became of a cell to one sentence: what went wrong, and for whom; why it is stuck, who waits where."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from labkit.floor.errors import CellError, MismatchError, StoppedError, StuckError
from labkit.floor.words import alike, count, listed, ranks, seconds, sentence
from labkit.outcome import text
from labkit.outcome.counts import Behind
from labkit.outcome.outcome import Did, Instead, Outcome, Waiting
from labkit.outcome.phrases import called, did, freed, how, where
from labkit.outcome.story import Story
from labkit.outcome.why import blamed, exchanged_singly, mistagged, raised_in
from labkit.theory.log import Op
from labkit.theory.record import Record, read

# What torch and Gloo say where a rank sends to itself or receives from itself, and what to say beside it. Only with
# itself is a rank of a Gloo group not connected; as whose address it gives itself then, is chance.
ITSELF = re.compile(r"destination rank should not be the same as the rank|Pair is not connected")
CHOOSE = "no rank can send to itself or receive from itself: choose a different rank, or copy the tensor with x.clone()"
AGAIN = "this process group is gone: run the cell that made it with dist.new_group again"
EVERY = "make each call on every rank of its group, in the same cell"
GONE = "the process group of this {} is gone: run the cell that made it again"
ANYBODY = "any rank"
LEFT = "and the cell has ended there. Run it again, and write c at the prompt where it should go on."
TOLD = 3  # calls without a wait for their handle that are named, and pairs whose tags differ
TOGETHER = "make the transfers of one exchange one dist.batch_isend_irecv call"


def judge(outcome: Outcome, logs: Sequence[dict[str, Any] | None] = ()) -> CellError | None:
    """Return the error that the cell ends with, None where every rank finished; `logs` are what the ranks recorded."""
    if outcome.ended == "lost":
        return CellError("the controller died, and the ranks' answers were lost with it")
    stuck = why(Story(logs, outcome), times=False) if outcome.ended else ""
    if outcome.ended == "stopped":
        return StoppedError(f"You stopped the cell: {stuck}.")
    causes, consequences = text.root_cause(outcome)
    deaths = [_deaths(outcome)] if outcome.dead else []
    if outcome.ended == "left":
        stood = [r for r, instead in outcome.elsewhere.items() if instead.did is Did.STOOD]
        notes = [*map(str, causes), *deaths, *waited(outcome)]
        return StoppedError(f"You left the debugger on {ranks(stood)}, {LEFT}", notes=notes)
    if outcome.misfit:  # which ranks found it, and which waited, is chance
        besides = [str(cause) for cause in causes if cause.ename != MismatchError.__name__]
        return CellError(outcome.misfit.evalue, text.trim(causes[0].traceback) if causes else "", besides + deaths)
    if causes:
        cause = causes[0]
        itself = any(ITSELF.search(error.evalue) for error in outcome.errors.values())
        notes = [*map(str, causes[1:]), *deaths, *[CHOOSE] * itself, *forgotten(outcome), *waited(outcome)]
        notes += [TOGETHER] * exchanged_singly(read(logs), outcome)
        return CellError(str(cause), text.trim(cause.traceback), notes)
    if deaths:
        return CellError(deaths[0], notes=waited(outcome))
    if outcome.ended == "slow":
        return CellError(f"it took too long: {stuck}")
    if outcome.ended == "stuck":
        return StuckError(stuck)
    if outcome.behind:
        return StuckError(_left_open(outcome.behind, read(logs)))
    if consequences:
        notes = [f"{ranks(rs)}: {what}" for what, rs in alike(consequences).items()]
        first = outcome.errors[min(consequences)]
        return CellError(notes[0], text.trim(first.traceback), notes[1:])
    return None


def why(story: Story, times: bool = True) -> str:
    """Say why the ranks wait, without a capital or a full stop; `times` says also for how long.

    "rank 2 is missing: it finished the cell, while ranks 0, 1 wait in all_reduce (line 3)"
    """
    unfit = mistagged(story)
    cycles = [c for c in story.cycles if not any({send.rank, recv.rank} <= set(c) for send, recv in unfit)]
    if unfit or cycles:
        causes = [*_tags(unfit), *[_cycles(story, cycles)] * bool(cycles)]
        found = f"{'; '.join(causes)}: {_waits(story, times, cycles)}"
    elif not story.waiting:
        found = f"no rank waits for another; {_causes(story, list(story.instead), times)}"
    elif guilty := blamed(story):
        found = f"{_causes(story, guilty, times)}, while {_waits(story, times)}"
    else:
        found = _waits(story, times)
    open_too = [] if unfit else handles(story)  # of those of a tag that does not fit all is said
    return "; ".join([found, *open_too, *[TOGETHER] * exchanged_singly(story.record, story.outcome)])


def beside(fate: Mapping[int, Waiting | Instead]) -> str:
    """Say where these ranks are while another one stands at a prompt; "" where they have no part in the cell.

    >>> beside({0: Waiting("all_reduce", 4), 2: Waiting("all_reduce", 4), 3: Instead(Did.FINISHED)})
    'ranks 0, 2 wait in all_reduce (line 4) and rank 3 finished the cell'
    """
    said = alike({r: its for r, its in fate.items() if its != Instead(Did.NEVER_RAN)})
    return listed([f"{ranks(rs)} {_now(its, len(rs))}" for its, rs in said.items()])


def _now(its: Waiting | Instead, many: int) -> str:
    if isinstance(its, Waiting):
        return f"wait{'s' * (many == 1)} {how(its)}"
    return did(replace(its, without=False), many, live=True)


def well(story: Story) -> str:
    """Say of a cell that ended well how long its longest wait was, and which handles were not waited for."""
    longest = f"{_longest(story)}." if story.long else "No rank waited for another."
    return " ".join(["Nothing was stuck.", longest, *(sentence([h]) for h in handles(story))])


def graph(story: Story) -> list[str]:
    """Say who waits for whom, what the others do, and which ranks wait in a cycle."""
    if not story.waiting:
        return ["No rank waited for another."]
    said, wait = alike({r: _for(w) for r, w in story.waiting.items()}), "waited" if story.long else "wait{}"
    lines = [f"{ranks(rs)} {wait.format('s' * (len(rs) == 1))} {what}" for what, rs in said.items()]
    lines += [f"{ranks(rs)} {did(what, len(rs), story.live)}" for what, rs in alike(story.instead).items()]
    return [sentence([line]) for line in lines] + circles(story)


def circles(story: Story) -> list[str]:
    """Say which ranks wait in a cycle, and which behind it."""
    lines = []
    for cycle in story.cycles:
        inside = set(cycle)
        behind = [r for r in story.waiting if r not in inside and inside & story.reached([r])]
        rest = "no rank can go on" if len(inside) == story.record.n else "none of these ranks can go on"
        if behind:
            rest += f", nor can {ranks(behind)}, which wait{'s' * (len(behind) == 1)} for them"
        lines.append(f"{_circle(cycle)} is a cycle: {rest}.")
    return lines


def title(story: Story) -> str:
    """Say which moment is shown."""
    if not story.waiting:
        return f"No rank wait{'s' if story.live else 'ed'} for another"
    if story.live:
        return "Who waits for whom now"
    return _longest(story) if story.long else "Who waits for whom when the cell is cut short"


def _longest(story: Story) -> str:
    shared = f" ({story.record.shared})" if story.record.shared else ""
    return f"The longest wait: {seconds(story.long)}{shared}"


def _for(w: Waiting) -> str:
    whom = f"for {ranks(w.whom)} " if w.whom else f"for {ANYBODY} " if w.anybody else ""
    return f"{whom}in {called(w)}{where(w)}"


def _circle(cycle: list[int]) -> str:
    return " → ".join(map(str, [*cycle, cycle[0]]))


def handles(story: Story) -> list[str]:
    """Name calls that return a handle, and whose handle was not waited for."""
    calls = alike({i: call for i, (_, call) in enumerate(story.handles)})
    had = "had not waited" if story.cut else "did not wait"
    lines = [
        f"{ranks(story.handles[i][0] for i in which)} {had} for the handle of {call.call}{where(call)}"
        + f", and {ranks(call.whom)} never came to it" * bool(call.whom)
        for call, which in calls.items()
    ]
    if (rest := len(lines) - TOLD) > 0:
        lines[TOLD:] = [f"{count(rest, 'more handle')} {'was' if rest == 1 else 'were'} not waited for"]
    return lines


def _tags(pairs: Sequence[tuple[Op, Op]]) -> list[str]:
    """Say in which tags sends and receives differ."""
    lines = [
        f"rank {send.rank} sends to rank {recv.rank} with tag {send.tag}, and rank {recv.rank} receives from "
        f"{ANYBODY if recv.peer is None else f'rank {send.rank}'} with tag {recv.tag}"
        for send, recv in pairs[:TOLD]
    ]
    if (rest := len(pairs) - TOLD) > 0:
        lines.append(f"tags differ in {count(rest, 'more pair')}")
    return lines


def _cycles(story: Story, cycles: list[list[int]]) -> str:
    """Say which ranks wait for one another: in collectives called in different orders, or in a cycle of other calls."""
    inside = [r for cycle in cycles for r in cycle]
    calls = [story.waiting[r] for r in inside]
    if all(call.meets for call in calls):
        apart = len({call.group for call in calls}) == 1 < len({call.name for call in calls})
        ways = "of different groups that have the same ranks" if apart else "in different orders"
        return f"{ranks(r for r in story.waiting if r in story.reached([r]))} call collectives {ways}"
    ways = listed([*map(_circle, cycles)])
    return f"{ranks(inside)} wait for one another in {'a cycle' if len(cycles) == 1 else 'cycles'}, {ways}"


def _causes(story: Story, which: list[int], times: bool) -> str:
    """Say what these ranks do instead of coming."""
    same = alike({r: story.instead[r] for r in which})
    if story.waiting and len(same) == 1 and {i.did for i in same} <= {Did.FINISHED, Did.NEVER_RAN}:
        missing = "is missing: it" if len(which) == 1 else "are missing: they"
        return f"{ranks(which)} {missing} {_did(story, which, times)}"
    return listed([f"{ranks(rs)} {_did(story, rs, times)}" for rs in same.values()])


def _did(story: Story, which: list[int], times: bool) -> str:
    """Say what ranks do that do not come: for how long they have computed, in which line they raised."""
    instead, line = story.instead[which[0]], raised_in(story, which[0])
    instead = replace(instead, without=False, line=line or instead.line)
    return did(instead, len(which), story.live, _long(story, which, times))


def _long(story: Story, which: Sequence[int], times: bool) -> str:
    """Say for how long these ranks have waited, or computed; "" where that is not known or not asked for."""
    long = [story.seconds[r] for r in which if times and r in story.seconds]
    return seconds(max(long)) if long else ""


def _waits(story: Story, times: bool, cycles: Sequence[Sequence[int]] = ()) -> str:
    """Say who waits where, and for how long; `cycles` have been told."""
    places = alike({r: how(w) for r, w in story.waiting.items()})
    if len(places) == 1 and {r for c in cycles for r in c} == set(story.waiting):
        place, rs = next(iter(places.items()))
        return f"each {_wait(story, rs, times, 1)} {place}"
    return listed([f"{ranks(rs)} {_wait(story, rs, times, len(rs))} {place}" for place, rs in places.items()])


def _wait(story: Story, which: list[int], times: bool, many: int) -> str:
    if not (long := _long(story, which, times)):
        return "waits" if many == 1 else "wait"
    return f"{('has ' if many == 1 else 'have ') * story.live}waited {long}"


def _left_open(behind: Behind, record: Record) -> str:
    """Say which ranks began a collective to which others never came; without the record, how many each began."""
    late = set(behind.ranks)
    for meeting in record.meetings:
        begun = {op.rank: f"{op.op}{op.at}" for op in meeting.ops}
        if meeting.group == behind.group and (absent := late - set(begun)):
            return f"{_begun(begun)}, and {ranks(absent)} never came to it: {EVERY}"
    begun = {r: count(n, "collective") for r, n in behind.begun.items()}
    return f"{_begun(begun)} of one group, and the cell is over: {EVERY}"


def _begun(calls: dict[int, str]) -> str:
    who = alike(calls).items()
    return listed([f"{ranks(rs)} {'has' if len(rs) == 1 else 'have'} begun {call}" for call, rs in who])


def forgotten(outcome: Outcome) -> list[str]:
    """Say what to do about something whose process group is gone: the lab joins a new one when it heals."""
    used = dict.fromkeys(error.forgotten for error in outcome.errors.values() if error.forgotten)
    return [AGAIN if what == "ProcessGroup" else GONE.format(what) for what in used]


def _deaths(outcome: Outcome) -> str:
    """Say how ranks ended: by themselves, or by us because they would neither answer nor leave their cell."""
    instead = {r: Instead(Did.DIED, signal) for r, signal in outcome.dead.items()}
    instead |= {r: what for r, what in outcome.elsewhere.items() if r in instead and what.did is not Did.DIED}
    last = alike({r: outcome.waiting.get(r) or what for r, what in instead.items()})
    return ", ".join(f"{ranks(rs)} {_death(what, rs)}" for what, rs in last.items())


def _death(last: Waiting | Instead, which: list[int]) -> str:
    if isinstance(last, Waiting):
        return f"could not be freed from {freed(last)} and {_was(which)} ended"
    return f"{did(last)}{f' and {_was(which)} ended' * (last.did is not Did.DIED)}"


def waited(outcome: Outcome) -> list[str]:
    """Say who waited where until it was freed."""
    places = alike({r: freed(w) for r, w in outcome.waiting.items() if r not in outcome.dead})
    return [f"{ranks(rs)} waited in {place} and {_was(rs)} freed" for place, rs in places.items()]


def _was(which: list[int]) -> str:
    return "was" if len(which) == 1 else "were"
