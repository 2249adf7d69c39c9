"""Why a cell is stuck: which tags differ, who keeps the others waiting, what was exchanged by single calls. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.outcome import text
from labkit.outcome.outcome import Did, Outcome
from labkit.outcome.story import Story
from labkit.theory.log import Op
from labkit.theory.record import Record

FAILED = "DistBackendError"  # what torch raises where NCCL fails


def mistagged(story: Story) -> list[tuple[Op, Op]]:
    """Find sends and receives whose tags differ, and for which a rank waits.

    Neither can come to a later one of the other's. A rank that waits in a collective may have sent with the right tag
    behind it.
    """

    def rests(rank: int) -> bool:
        waiting = story.waiting.get(rank)
        return not waiting.meets if waiting else story.instead[rank].did is Did.FINISHED

    return [
        (send, recv)
        for send, recv in story.record.mistagged
        if {send.rank, recv.rank} & set(story.waiting) and rests(send.rank) and rests(recv.rank)
    ]


def blamed(story: Story) -> list[int]:
    """Find the ranks that keep the others waiting: those that died, else those waited for; all where that is unknown.

    Who died took along what is known of its calls.
    """
    reached = story.reached(story.waiting)
    if dead := [r for r, instead in story.instead.items() if instead.did is Did.DIED]:
        return dead
    return sorted(reached & set(story.instead)) or ([] if reached else sorted(story.instead))


def raised_in(story: Story, rank: int) -> int | None:
    """Find the line of the cell in which a rank raised; None where it did not, or that is not known."""
    if story.outcome is None or story.instead[rank].did is not Did.RAISED or rank not in story.outcome.errors:
        return None
    return next((line for last, line in text.lines(story.outcome.errors[rank].traceback) if last), None)


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
def exchanged_singly(record: Record, outcome: Outcome | None) -> bool:
    """Tell whether this is the end of an exchange by single calls that NCCL could not bring together.

    Ranks failed under way in a send or a receive, while a handle was not waited for, or in a cycle of sends alone (or
    of receives alone); or they wait in such a cycle of `isend` (or `irecv`), which returns at once on Gloo.
    """
    if outcome is None or outcome.dead:
        return False
    single = {r: op for r, ops in enumerate(record.ops) if (op := _single(ops)) is not None}
    inside = {r: op for r, op in single.items() if r in outcome.waiting and op.asynchronous and not op.waited}
    failed = {r: op for r, op in single.items() if r in outcome.errors and op.error == FAILED}
    if failed and {cause.ename for cause in text.root_cause(outcome)[0]} == {FAILED}:
        return any(_kept(record.ops[r], op) or _alike(failed, op) for r, op in failed.items())
    return any(_alike(inside, op) for op in inside.values())


def begins_singly(record: Record) -> bool:
    """Tell the same of an exchange that Gloo has brought together: its first messages are a cycle of single calls."""
    first = {r: next((op for op in ops if op.kind != "collective"), None) for r, ops in enumerate(record.ops)}
    single = {r: op for r, op in first.items() if op is not None and not op.batch}
    return any(_alike(single, op) for op in single.values())


def _single(ops: Sequence[Op]) -> Op | None:
    """Find the send or receive on a GPU, of no batch, that a rank did not get through."""
    last = next((op for op in reversed(ops) if op.error or op.left is None), None)
    return last if last and last.kind != "collective" and last.enqueued and not last.batch else None


def _kept(ops: Sequence[Op], failed: Op) -> bool:
    """Tell whether a rank has the handle of another single send or receive, and has not waited for it."""
    others = (op for op in ops if op is not failed and op.kind != "collective" and op.enqueued and not op.batch)
    return any(op.asynchronous and not op.waited for op in others)


def _alike(calls: dict[int, Op], op: Op) -> bool:
    """Tell whether the way from peer to peer leads back to this call, by sends alone or by receives alone."""
    way = [op.rank]
    while (peer := calls[way[-1]].peer) in calls and calls[peer].kind == op.kind:
        if peer == op.rank:
            return True
        if peer in way:
            return False
        way.append(peer)
    return False
