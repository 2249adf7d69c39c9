"""What all ranks do at one moment of a cell, and what their small tensors hold then: read from the record. Pure.

A moment follows an event: a rank calls an operation, comes to the `.wait()` for it, or leaves it; or it ends the cell.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit.theory.record import Op, Record

MOST = 400  # moments; of more, the last ones


@dataclass(frozen=True)
class Event:
    """What a rank did: `what` is "calls", "waits", "leaves", "fails" or "ends"; the last has no operation."""

    at: float
    rank: int
    what: str
    op: Op | None = None


@dataclass(frozen=True)
class Value:
    """What a tensor of a rank held last. `was` are its values before, where an operation has changed them.

    `open` where an operation that is under way may be writing to it.
    """

    name: str
    shape: tuple[int, ...]
    values: list[Any]
    was: list[Any] | None = None
    open: bool = False


@dataclass(frozen=True)
class Doing:
    """What a rank does at a moment.

    `op` is the call that it stands in, None where it computes; `waits` whether that is the `.wait()` for it; `whom` are
    the ranks that have not come to it yet, and whose data it needs. `under_way` are asynchronous operations behind it,
    `spans` the names of what it computes, `done` and `of` count its operations, `over` says that it has ended the cell.
    """

    op: Op | None = None
    since: float = 0.0
    waits: bool = False
    whom: tuple[int, ...] = ()
    under_way: tuple[Op, ...] = ()
    spans: tuple[str, ...] = ()
    done: int = 0
    of: int = 0
    over: bool = False


class Moments:
    """The moments of a record, in their order: `events[i]` has just happened at moment i; at moment 0, nothing has.

    `freed` are ranks that the lab freed from where they stood: what came of that is no moment of theirs.
    `left_out` moments are too many, and came before the first one.
    """

    def __init__(self, record: Record, freed: Collection[int] = (), most: int = MOST) -> None:
        self.record = record
        self.all = [Event(0.0, -1, "begins"), *sorted(_events(record, freed), key=lambda e: e.at)]
        self.left_out = max(0, len(self.all) - most)
        self.events = self.all[self.left_out :]
        self._at = {(id(e.op), e.what): i for i, e in enumerate(self.all) if e.op}
        self._over = {e.rank: i for i, e in enumerate(self.all) if e.what == "ends"}

    def __len__(self) -> int:
        return len(self.events)

    def doing(self, moment: int, rank: int) -> Doing:
        """What a rank does at a moment."""
        now, mine = moment + self.left_out, self.record.ops[rank]
        time = self.all[now].at
        called = [op for op in mine if self._begun(op) <= now]
        going = [op for op in called if not self.ended(op, moment)]
        inside = next((op for op in reversed(going) if self._stands(op, now)), None)
        waits = inside is not None and inside.asynchronous
        since = 0.0 if inside is None else self.all[self._at[id(inside), "waits" if waits else "calls"]].at
        return Doing(
            op=inside,
            since=time - since,
            waits=waits,
            whom=() if inside is None else tuple(sorted(self._lacking(inside, now))),
            under_way=tuple(op for op in going if op is not inside),
            spans=tuple(s.name for s in self.record.spans[rank] if s.entered <= time and not (s.left or time) < time),
            done=len(called) - len(going) + self.record.logs[rank].dropped,
            of=len(mine) + self.record.logs[rank].dropped,
            over=self._over.get(rank, now + 1) <= now,
        )

    def ended(self, op: Op, moment: int) -> bool:
        """Whether an operation is over at a moment."""
        now = moment + self.left_out
        return any(self._at.get((id(op), what), now + 1) <= now for what in ("leaves", "fails"))

    def places(self, op: Op) -> tuple[int, int, int]:
        """The moments at which an operation begins, at which its rank comes to stand in it, and at which it is over.

        What never comes to pass is after the last moment.
        """
        never = len(self.all)
        begun = self._begun(op)
        stands = self._at.get((id(op), "waits"), never) if op.asynchronous else begun
        over = min(self._at.get((id(op), what), never) for what in ("leaves", "fails"))
        return begun - self.left_out, stands - self.left_out, over - self.left_out

    def values(self, moment: int, rank: int) -> list[Value]:
        """The small tensors that a rank's operations have used so far, in the order of their last use."""
        now = moment + self.left_out
        found: dict[str, Value] = {}
        for event in self.all[: now + 1]:
            if event.rank != rank or event.op is None or event.what == "waits":
                continue
            over = event.what in ("leaves", "fails")
            for held in event.op.held:
                values = held.after if over else held.before
                if values is not None:
                    was = held.before if over and held.before != values else None
                    found.pop(held.name, None)
                    found[held.name] = Value(held.name, held.shape, values, was, not over)
        return list(found.values())

    def _begun(self, op: Op) -> int:
        return self._at[id(op), "calls"]

    def _stands(self, op: Op, now: int) -> bool:
        """Whether a rank stands in an operation that is not over: in the call itself, or in the `.wait()` for it."""
        return not op.asynchronous or self._at.get((id(op), "waits"), now + 1) <= now

    def _lacking(self, op: Op, now: int) -> set[int]:
        """The ranks whose part an operation needs, and that have not come yet."""
        if op.kind == "collective":
            primitive = op.primitive
            needed = primitive.needs(op.rank, op.peer, op.ranks) if primitive else set(op.ranks) - {op.rank}
            there = self._there.get((op.within, op.nth), {})
            return {r for r in needed if r not in there or self._begun(there[r]) > now}
        partner = self._partners.get(id(op))
        if partner is not None and self._begun(partner) <= now:
            return set()
        return {op.peer} if op.peer is not None and op.peer != op.rank else set()

    @cached_property
    def _there(self) -> dict[tuple[tuple[tuple[int, ...], str], int], dict[int, Op]]:
        return {((m.ranks, m.group), m.nth): {op.rank: op for op in m.ops} for m in self.record.meetings}

    @cached_property
    def _partners(self) -> dict[int, Op]:
        pairs = [(m.send, m.recv) for m in self.record.messages if m.send and m.recv]
        return {id(a): b for s, r in pairs for a, b in ((s, r), (r, s))}


def _events(record: Record, freed: Collection[int]) -> list[Event]:
    events = []
    for r, mine in enumerate(record.ops):
        for op in mine:
            events.append(Event(op.entered, r, "calls", op))
            if op.waited:
                events.append(Event(op.waited[0], r, "waits", op))
            end = op.waited[1] if op.waited else op.there if op.asynchronous and not op.error else op.left
            if end is not None and not (op.error and r in freed):
                events.append(Event(end, r, "fails" if op.error else "leaves", op))
        over = record.logs[r].ended
        if over is not None and r not in freed:
            events.append(Event(over, r, "ends"))
    return events
