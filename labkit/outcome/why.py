"""Why a cell is stuck, in one sentence that begins with the cause: who is absent, or who waits for one another."""

from __future__ import annotations

import re
from collections.abc import Sequence

from labkit.outcome import text
from labkit.outcome.graph import Waiting
from labkit.outcome.outcome import Outcome
from labkit.outcome.story import COMPUTING, Handle, Story
from labkit.theory.record import Op, Record
from labkit.words import alike, count, listed, ranks, seconds

MISSING = ("finished the cell", "never ran the cell")
FAILED = "DistBackendError"  # what torch raises where NCCL fails
RAISED = re.compile(r"^This cell, line (\d+)", re.MULTILINE)
TOLD = 3  # calls without a wait for their handle that are named, and pairs whose tags differ

# NCCL sets up the way from one rank to another within the first call that uses it (`ncclTransportP2pSetup`): a first
# `isend` returns when the other rank is in a first receive from this one, and the other way round. What blocking calls
# would get through is safe: a chain, or a ring in which one rank receives first. Not safe are ranks that all begin with
# a send, or all with a receive: each waits in its call for the next. Two of them whose numbers differ by half of the
# group's size take the other's first send for the answer to their own, since both ways bear one tag: the address is
# garbage. These are any two in a group of two, so also where each pair has a communicator of its own (without
# `device_id`, or "nccl-lazy"). Later, a rank's single calls on one communicator run one after the other on its stream,
# also between collectives. A send is over once NCCL's buffer holds the message; a longer one holds up all that follow
# until it is received. In a batch, if both sides make one, all ways are set up at once and all messages move in one
# kernel: its order does not matter.
TOGETHER = "make the transfers of one exchange one dist.batch_isend_irecv call"


def why(story: Story, times: bool = True) -> str:
    """Why the ranks wait, without a capital or a full stop; `times` says also for how long.

    "rank 2 is missing: it finished the cell, while ranks 0, 1 wait in all_reduce (line 3)"
    """
    unfit = _mistagged(story)
    cycles = [c for c in story.cycles if not any({send.rank, recv.rank} <= set(c) for send, recv in unfit)]
    if unfit or cycles:
        causes = [*_tags(unfit), *[_cycles(story, cycles)] * bool(cycles)]
        found = f"{'; '.join(causes)}: {_waits(story, times, cycles)}"
    elif story.waiting:
        cause = _causes({r: story.others[r] for r in _blamed(story)}, story, times)
        found = f"{cause}, while {_waits(story, times)}" if cause else _waits(story, times)
    else:
        found = f"no rank waits for another; {_causes(story.others, story, times, False)}"
    open_too = [] if unfit else handles(story)  # of those of a tag that does not fit all is said
    return "; ".join([found, *open_too, *together(story.record, story.outcome)])


def together(record: Record, outcome: Outcome | None) -> list[str]:
    """What to do about an exchange by single calls that NCCL could not bring together; nothing about any other end.

    Ranks failed under way in a send or a receive, while a handle was not waited for, or in a cycle of sends alone (or
    of receives alone); or they wait in such a cycle of `isend` (or `irecv`), which returns at once on Gloo.
    """
    if outcome is None or outcome.dead:
        return []
    single = {r: op for r, ops in enumerate(record.ops) if (op := _single(ops)) is not None}
    inside = {r: op for r, op in single.items() if r in outcome.waiting and op.asynchronous and not op.waited}
    failed = {r: op for r, op in single.items() if r in outcome.errors and op.error == FAILED}
    if failed and {cause.ename for cause in text.root_cause(outcome)[0]} == {FAILED}:
        exchanged = any(_kept(record.ops[r], op) or _alike(failed, op) for r, op in failed.items())
    else:
        exchanged = any(_alike(inside, op) for op in inside.values())
    return [TOGETHER] * exchanged


def singly(record: Record) -> list[str]:
    """The same of an exchange that Gloo has brought together: where the first messages are a cycle of single calls."""
    first = {r: next((op for op in ops if op.kind != "collective"), None) for r, ops in enumerate(record.ops)}
    single = {r: op for r, op in first.items() if op is not None and not op.batch}
    return [f"with NCCL, {TOGETHER}"] * any(_alike(single, op) for op in single.values())


def _single(ops: Sequence[Op]) -> Op | None:
    """The send or receive on a GPU, of no batch, that a rank did not get through."""
    last = next((op for op in reversed(ops) if op.error or op.left is None), None)
    return last if last and last.kind != "collective" and last.enqueued and not last.batch else None


def _kept(ops: Sequence[Op], failed: Op) -> bool:
    """Whether a rank has the handle of another single send or receive, and has not waited for it."""
    others = (op for op in ops if op is not failed and op.kind != "collective" and op.enqueued and not op.batch)
    return any(op.asynchronous and not op.waited for op in others)


def _alike(calls: dict[int, Op], op: Op) -> bool:
    """Whether the way from peer to peer leads back to this call, by sends alone or by receives alone."""
    way = [op.rank]
    while (peer := calls[way[-1]].peer) in calls and calls[peer].kind == op.kind:
        if peer == op.rank:
            return True
        if peer in way:
            return False
        way.append(peer)
    return False


def handles(story: Story) -> list[str]:
    """What to say of calls that return a handle, and for whose handle nobody waited."""
    said = alike({i: _handle(story, h) for i, h in enumerate(story.handles)})
    lines = [f"{ranks(story.handles[i].rank for i in which)} {what}" for what, which in said.items()]
    if (rest := len(lines) - TOLD) > 0:
        lines[TOLD:] = [f"{count(rest, 'more handle')} {'was' if rest == 1 else 'were'} not waited for"]
    return lines


def _handle(story: Story, handle: Handle) -> str:
    where = f" ({handle.place})" if handle.place else ""
    never = f", and {ranks(handle.missing)} never came to it" if handle.missing else ""
    return f"{'had not waited' if story.cut else 'did not wait'} for the handle of {handle.call}{where}{never}"


def _mistagged(story: Story) -> list[tuple[Op, Op]]:
    """Sends and receives whose tags differ, and for which a rank waits: neither can come to a later one of the other's.

    A rank that waits in a collective may have sent with the right tag behind it.
    """

    def rests(rank: int) -> bool:
        waiting = story.waiting.get(rank)
        return not waiting.meets if waiting else story.others[rank].startswith("finished the cell")

    return [
        (send, recv)
        for send, recv in story.record.mistagged
        if {send.rank, recv.rank} & set(story.waiting) and rests(send.rank) and rests(recv.rank)
    ]


def _tags(pairs: Sequence[tuple[Op, Op]]) -> list[str]:
    """In which tags sends and receives differ."""
    lines = [
        f"rank {send.rank} sends to rank {recv.rank} with tag {send.tag}, and rank {recv.rank} receives from "
        f"{'any rank' if recv.peer is None else f'rank {send.rank}'} with tag {recv.tag}"
        for send, recv in pairs[:TOLD]
    ]
    if (rest := len(pairs) - TOLD) > 0:
        lines.append(f"tags differ in {count(rest, 'more pair')}")
    return lines


def _cycles(story: Story, cycles: list[list[int]]) -> str:
    """Who waits for one another: in collectives that are called in different orders, or in a cycle of other calls."""
    inside = [r for cycle in cycles for r in cycle]
    calls = [story.waiting[r] for r in inside]
    if all(call.meets for call in calls):
        apart = len({call.group for call in calls}) == 1 < len({call.name for call in calls})
        how = "of different groups that have the same ranks" if apart else "in different orders"
        return f"{ranks(r for r in story.waiting if r in story.reached([r]))} call collectives {how}"
    ways = listed([" → ".join(map(str, [*cycle, cycle[0]])) for cycle in cycles])
    return f"{ranks(inside)} wait for one another in {'a cycle' if len(cycles) == 1 else 'cycles'}, {ways}"


def _blamed(story: Story) -> list[int]:
    """The ranks that keep the others waiting: those that died, else those that are waited for; all where nobody knows.

    Who died took along what is known of its calls.
    """
    reached = story.reached(story.waiting)
    if dead := [r for r, what in story.others.items() if what.startswith("died")]:
        return dead
    return sorted(reached & set(story.others)) or ([] if reached else sorted(story.others))


def _causes(others: dict[int, str], story: Story, times: bool, missing: bool = True) -> str:
    """What these ranks do instead of coming."""
    said = alike(others)
    if missing and len(said) == 1 and (what := next(iter(said))).startswith(MISSING):
        many = len(others) > 1
        return f"{ranks(others)} {'are' if many else 'is'} missing: {'they' if many else 'it'} {_bare(what)}"
    return listed([f"{ranks(rs)} {plural(_did(what, rs, story, times), len(rs))}" for what, rs in said.items()])


def _bare(what: str) -> str:
    return what.removesuffix(" without it")


def _did(what: str, which: list[int], story: Story, times: bool) -> str:
    """What a rank does that does not come: for how long it has computed, in which line it raised."""
    long = [story.seconds[r] for r in which if r in story.seconds]
    if times and long:
        for computes, lasted in COMPUTING.items():
            what = what.replace(computes, f"{lasted} for {seconds(max(long))}")
    raised = story.outcome.errors.get(which[0]) if story.outcome and what.startswith("raised") else None
    line = RAISED.search(text.trim(raised.traceback)) if raised else None
    return f"{_bare(what)} (line {line[1]})" if line else _bare(what)


def _waits(story: Story, times: bool, cycles: Sequence[Sequence[int]] = ()) -> str:
    """Who waits where, and for how long; `cycles` have been told."""
    places = alike({r: _where(w) for r, w in story.waiting.items()})
    if len(places) == 1 and {r for c in cycles for r in c} == set(story.waiting):
        place, rs = next(iter(places.items()))
        return f"each {_wait(story, rs, times, 1)} {place}"
    return listed([f"{ranks(rs)} {_wait(story, rs, times, len(rs))} {place}" for place, rs in places.items()])


def _where(waiting: Waiting) -> str:
    place = f" ({waiting.place})" * bool(waiting.place)
    return f"{waiting.how}{place}{f', seen in {waiting.seen}' * bool(waiting.seen)}"


def _wait(story: Story, which: list[int], times: bool, many: int) -> str:
    long = [story.seconds[r] for r in which if r in story.seconds]
    if not (times and long):
        return "waits" if many == 1 else "wait"
    return f"{('has ' if many == 1 else 'have ') * story.live}waited {seconds(max(long))}"


def plural(what: str, many: int) -> str:
    """What one rank did, said of so many: "was in barrier" of two is "were in barrier"."""
    verb, _, rest = what.partition(" ")
    plurals = {"has": "have", "was": "were", "is": "are", "computes": "compute", "stands": "stand", "does": "do"}
    return what if many == 1 else " ".join(filter(None, [plurals.get(verb, verb), rest]))
