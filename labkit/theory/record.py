"""What the ranks' records say together: which send met which receive, who waited for whom, what came before what.

Pure: plain data in, plain data out; neither torch nor a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from labkit.theory.primitives import find


@dataclass(frozen=True)
class Op:
    """One call of one rank. Times are seconds since the cell's first operation; `left` is None while it runs.

    `kind` is "send", "recv" or "collective"; `peer` the other rank, or the root; `nth` counts a group's collectives.
    `waited` is (entered, left, line) of the `.wait()` that ended an asynchronous one.
    `issued` and `done` order the rank's own calls: positions in its program, `done` None where nobody waited.
    """

    rank: int
    issued: int
    op: str
    kind: str
    ranks: tuple[int, ...]
    peer: int | None
    tag: int
    nth: int
    reduce: str | None
    dtype: str | None
    shape: tuple[int, ...] | None
    bytes: int | None
    line: int | None
    function: str | None
    asynchronous: bool
    batch: bool
    enqueued: bool
    entered: float
    left: float | None
    waited: tuple[float, float, int | None] | None
    done: int | None
    error: str
    view: dict[str, Any] | None = None

    @property
    def ended(self) -> float | None:
        """When its data was there: at the end of its `.wait()`, or of the call itself."""
        return self.waited[1] if self.waited else None if self.asynchronous else self.left

    @property
    def name(self) -> str:
        """The operation without the module that it was called from."""
        return self.op.removeprefix("comms.")


@dataclass(frozen=True)
class Message:
    """A send and the receive that took it; `recv` is None where nobody took it, `send` where nobody sent."""

    send: Op | None
    recv: Op | None

    @property
    def src(self) -> int | None:
        """The rank that sent."""
        return self.send.rank if self.send else self.recv.peer if self.recv else None

    @property
    def dst(self) -> int | None:
        """The rank that received."""
        return self.recv.rank if self.recv else self.send.peer if self.send else None


@dataclass(frozen=True)
class Meeting:
    """One collective: what each of its ranks calls, in the order of its group's calls. Ranks may be missing."""

    ranks: tuple[int, ...]
    nth: int
    ops: tuple[Op, ...]

    @property
    def names(self) -> list[str]:
        """What it is called; two names where ranks disagree."""
        return sorted({o.op for o in self.ops})


@dataclass(frozen=True)
class Wait:
    """A rank stood in an operation from `start` to `until`, when rank `for_` entered it.

    `kind` is "waited" where it needs that rank's data, "stayed" where it does not and yet left only afterwards, and
    "never" where that rank did not come until the operation ended.
    """

    op: Op
    start: float
    until: float
    for_: int
    kind: str = "waited"

    @property
    def seconds(self) -> float:
        """How long."""
        return self.until - self.start


@dataclass(frozen=True)
class Record:
    """All ranks' operations of one cell: `ops[r]` in program order. `told[r]` is rank r's own record."""

    ops: tuple[tuple[Op, ...], ...]
    told: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """The number of ranks."""
        return len(self.ops)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Sends matched with receives: the k-th from a to b under a tag with the k-th that b takes from a."""
        return tuple(_messages(self.ops))

    @cached_property
    def meetings(self) -> tuple[Meeting, ...]:
        """Collectives, in the order in which their first rank came."""
        found: dict[tuple[tuple[int, ...], int], list[Op]] = {}
        for op in (op for mine in self.ops for op in mine if op.kind == "collective"):
            found.setdefault((op.ranks, op.nth), []).append(op)
        meetings = [Meeting(ranks, nth, tuple(ops)) for (ranks, nth), ops in found.items()]
        return tuple(sorted(meetings, key=lambda m: min(o.entered for o in m.ops)))

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """Who stood where until whom, the longest first: read from the record, supposed nowhere.

        A rank waited for another whose data it needs, which entered after it and before it left. A rank that left
        before the other came has not waited for it.
        """
        found = [w for meeting in self.meetings for op in meeting.ops for w in _waits(op, meeting)]
        for m in self.messages:
            pairs = ((m.send, m.recv), (m.recv, m.send))
            found += [w for a, b in pairs if a and b for w in _wait(a, [b])]
            found += [w for a, b in pairs if a and not b and a.peer is not None for w in _vain(a, [a.peer])]
        return tuple(sorted(found, key=lambda w: -w.seconds))


def read(told: Sequence[dict[str, Any] | None]) -> Record:
    """The ranks' records, as `labkit.rank.recorder.records` has them, as one.

    `told[r]` is {} where rank r did not run the cell, None where it does not answer.
    """
    n = len(told)
    present = [t for t in told if t]
    notes = []
    several = len({t["host"] for t in present}) > 1
    if several:
        notes.append("times of different hosts are compared by the hosts' own clocks, which may be milliseconds apart")
    shift = [t["wall"] if t and several else 0 for t in told]
    entries = [o["entered"] + shift[r] for r, t in enumerate(told) if t for o in t["ops"]]
    start = min(entries, default=0)
    ops = tuple(tuple(_op(r, o, start - shift[r]) for o in t["ops"]) if t else () for r, t in enumerate(told))
    if any(o.enqueued for mine in ops for o in mine):
        notes.append("calls on a GPU return when they are enqueued: their bars end before the data has moved")
    missing = [r for r, t in enumerate(told) if t is None]
    if missing:
        notes.append(f"no record of rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}")
    if dropped := max((t["dropped"] for t in present), default=0):
        notes.append(f"only the last operations are kept: up to {dropped} earlier ones a rank are not shown")
    return Record(ops, tuple(t or {"buffers": [], "journal": []} for t in told) if n else (), tuple(notes))


def _op(rank: int, told: dict[str, Any], zero: int) -> Op:
    def seconds(ns: int | None) -> float | None:
        return None if ns is None else (ns - zero) / 1e9

    own = {f.name for f in fields(Op)}
    waited = told["waited"]
    return Op(
        **{k: v for k, v in told.items() if k in own}
        | {
            "rank": rank,
            "issued": told["sequence"],
            "asynchronous": told["async"],
            "ranks": tuple(told["ranks"]),
            "shape": None if told["shape"] is None else tuple(told["shape"]),
            "entered": seconds(told["entered"]),
            "left": seconds(told["left"]),
            "waited": (seconds(waited[0]), seconds(waited[1]), waited[2]) if waited else None,
        }
    )


def _messages(ops: Sequence[Sequence[Op]]) -> Iterable[Message]:
    takers: dict[tuple[Any, ...], list[Op]] = {}
    for op in (op for mine in ops for op in mine if op.kind == "recv"):
        takers.setdefault((op.ranks, op.peer, op.rank, op.tag, _family(op)), []).append(op)
    for op in (op for mine in ops for op in mine if op.kind == "send"):
        waiting = takers.get((op.ranks, op.rank, op.peer, op.tag, _family(op)))
        yield Message(op, waiting.pop(0) if waiting else None)
    for op in (op for left in takers.values() for op in left):
        yield Message(None, op)


def _family(op: Op) -> str:
    """Only calls of one kind meet: a tensor's, an object list's, those of comms."""
    primitive = find(op.op)
    return "comms" if op.op.startswith("comms.") else "objects" if primitive and primitive.objects else ""


def _waits(op: Op, meeting: Meeting) -> list[Wait]:
    """The waits of one rank in a collective, one after the other."""
    primitive = find(op.op)
    needed = primitive.needs(op.rank, op.peer, op.ranks) if primitive else set(op.ranks) - {op.rank}
    others = {o.rank: o for o in meeting.ops if o.rank != op.rank}
    if absent := needed - set(others):
        return _vain(op, absent)
    waits = _wait(op, [others[r] for r in needed])
    start, end = _stay(op)
    begun = max([start, *(w.until for w in waits)])
    for stayed in _wait(op, [others[r] for r in set(others) - needed]):
        # it left soon after the last one came: that is what it stood there for, whatever the reason
        if stayed.until > begun and end is not None and end - stayed.until < stayed.until - begun:
            waits.append(Wait(op, begun, stayed.until, stayed.for_, "stayed"))
    return waits


def _stay(op: Op) -> tuple[float, float | None]:
    """From when to when a rank stands in an operation, or in the `.wait()` for it."""
    return (op.waited[0], op.waited[1]) if op.waited else (op.entered, op.left)


def _wait(op: Op, needed: Sequence[Op]) -> list[Wait]:
    """The wait of one call for the last of others, if it waited."""
    start, end = _stay(op)
    if op.asynchronous and not op.waited:
        return []
    came = [o for o in needed if o.entered > start and (end is None or o.entered <= end)]
    last = max(came, key=lambda o: o.entered, default=None)
    return [Wait(op, start, last.entered, last.rank)] if last else []


def _vain(op: Op, absent: Iterable[int]) -> list[Wait]:
    """The wait of a call for ranks that never came."""
    start, end = _stay(op)
    waited = end is not None and not (op.asynchronous and not op.waited)
    return [Wait(op, start, end or start, min(absent), "never")] if waited else []


def rounds(record: Record) -> dict[int, int]:
    """The logical round of every message, by its place in `record.messages`, counted from 1; by order, not by time.

    A message is in round k + 1 if the last thing that its sender or its receiver had finished before calling it was
    in round k. So a ring's n messages at once are one round, and a root that receives one after another takes n - 1.
    A collective is no round; what comes after it is in a later round than all that its ranks did before.
    """
    events = []
    for mine in record.ops:
        moments = [(op.issued, False, op) for op in mine] + [(op.done, True, op) for op in mine if op.done is not None]
        events.append(sorted(moments, key=lambda e: e[:2]))
    found = dict.fromkeys(range(len(record.messages)), 1)
    reached = {id(op): 0 for mine in record.ops for op in mine}
    before = dict(reached)  # the latest round that a rank had finished when it made a call
    for _ in range(len(found) + len(record.meetings)):  # enough, also where ranks called in a circle
        for moments in events:
            latest = 0
            for _, done, op in moments:
                if done:
                    latest = max(latest, reached[id(op)])
                else:
                    before[id(op)] = latest
        old = dict(reached)
        for i, m in enumerate(record.messages):
            ends = [op for op in (m.send, m.recv) if op is not None]
            found[i] = 1 + max(before[id(op)] for op in ends)
            reached.update(dict.fromkeys(map(id, ends), found[i]))
        for meeting in record.meetings:
            latest = max(before[id(op)] for op in meeting.ops)
            reached.update((id(op), latest) for op in meeting.ops)
        if reached == old:
            break
    return found
