"""What the ranks' records say together: which send met which receive, who waited for whom, what came before what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from labkit.floor import timestamps
from labkit.floor.words import count, ranks
from labkit.theory import gpu_sharing
from labkit.theory.log import Log, Op, Span


@dataclass(frozen=True)
class Message:
    """A send and the receive that took it; one of them is None where the other met nothing."""

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

    @property
    def ends(self) -> list[Op]:
        """Its send and its receive, as far as there are any."""
        return [op for op in (self.send, self.recv) if op is not None]


@dataclass(frozen=True)
class Meeting:
    """One collective: what each of its ranks calls, in the order of its group's calls. Ranks may be missing."""

    ranks: tuple[int, ...]
    group: str
    nth: int
    ops: tuple[Op, ...]

    @property
    def names(self) -> list[str]:
        """The names that its ranks call it by."""
        return sorted({o.op for o in self.ops})

    @property
    def mixed(self) -> bool:
        """Whether ranks call different things: other primitives, or comms' functions and torch's."""
        return len({(o.primitive.name if o.primitive else o.op, o.op.startswith("comms.")) for o in self.ops}) > 1


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
        """Its length."""
        return self.until - self.start


@dataclass(frozen=True)
class Record:
    """All ranks' operations of one cell: `ops[r]` in program order, with times that compare; `logs[r]` has the rest."""

    ops: tuple[tuple[Op, ...], ...]
    logs: tuple[Log, ...]
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """The number of ranks."""
        return len(self.ops)

    @property
    def calls(self) -> Iterator[Op]:
        """All operations, rank by rank."""
        return (op for mine in self.ops for op in mine)

    @property
    def shared(self) -> str:
        """In words, how ranks share a GPU, where they do and one has worked in this cell."""
        worked = any(op.enqueued for op in self.calls) or any(s.ran for mine in self.spans for s in mine)
        together = any(log.together for log in self.logs)
        return gpu_sharing.said([(log.host, log.gpu) for log in self.logs if log.gpu], together) if worked else ""

    @cached_property
    def spans(self) -> tuple[tuple[Span, ...], ...]:
        """The pieces that each rank computed, `spans[r]`, in the order in which they began."""
        return tuple(tuple(sorted(log.spans, key=lambda s: s.entered)) for log in self.logs)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Sends matched with receives: the k-th from a to b under a tag with the k-th that b takes from a."""
        return tuple(_messages(list(self.calls)))

    @cached_property
    def mistagged(self) -> tuple[tuple[Op, Op], ...]:
        """Sends that no receive took, each with a receive that waits in vain for another tag of this rank."""
        left = [m.recv for m in self.messages if m.send is None and m.recv is not None]
        found = []
        for send in (m.send for m in self.messages if m.send is not None and m.recv is None):
            theirs = (
                r for r in left if r.rank == send.peer and r.peer in (None, send.rank) and r.within == send.within
            )
            recv = next((r for r in theirs if _family(r) == _family(send)), None)
            if recv is not None and recv.tag != send.tag and not send.enqueued:  # NCCL knows no tags
                left = [r for r in left if r is not recv]
                found.append((send, recv))
        return tuple(found)

    @cached_property
    def meetings(self) -> tuple[Meeting, ...]:
        """Collectives, in the order in which their first rank came."""
        found: dict[tuple[tuple[int, ...], str, int], list[Op]] = {}
        for op in (op for op in self.calls if op.kind == "collective"):
            found.setdefault((*op.within, op.nth), []).append(op)
        meetings = [Meeting(*which, tuple(ops)) for which, ops in found.items()]
        return tuple(sorted(meetings, key=lambda m: min(o.entered for o in m.ops)))

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """The waits of ranks for one another, the longest first: read from the record, never guessed.

        A rank waited for another whose data it needs, which entered after it and before it left. A rank that left
        before the other came has not waited for it.
        """
        found = [w for meeting in self.meetings for op in meeting.ops for w in _waits(op, meeting)]
        for m in self.messages:
            pairs = ((m.send, m.recv), (m.recv, m.send))
            found += [w for a, b in pairs if a and b for w in _wait(a, [b])]
            found += [w for a, b in pairs if a and not b and a.peer is not None for w in _vain(a, [a.peer])]
        flags = (op for op in self.calls if op.kind == "flag" and op.peer is not None)
        found += [w for op in flags for w in _vain(op, [op.peer or 0])]
        return tuple(sorted(found, key=lambda w: -w.seconds))


def read(logs: Sequence[dict[str, Any] | None]) -> Record:
    """Read the ranks' logs, as `labkit.rank.recorder.records` sends them, as one record.

    `logs[r]` is {} where rank r did not run the cell, None where it does not answer.
    """
    kept = [Log.of(plain) if plain else Log() for plain in logs]
    ran = [log for log, plain in zip(kept, logs, strict=True) if plain]
    shift = [timestamps.apart(log.clock, ran[0].clock if ran else Log.clock) for log in kept]
    begun = [op.entered + since for log, since in zip(kept, shift, strict=True) for op in log.ops]
    begun += [span.entered + since for log, since in zip(kept, shift, strict=True) for span in log.spans]
    start = min(begun, default=0.0)
    for log, since in zip(kept, shift, strict=True):
        _shift(log, since - start)
        _by_the_gpu(log)
    record = Record(tuple(tuple(log.ops) for log in kept), tuple(kept))
    hosts = len({log.host for log in ran})
    return replace(record, notes=tuple(_notes(record, hosts, [r for r, plain in enumerate(logs) if plain is None])))


def _notes(record: Record, hosts: int, missing: list[int]) -> Iterator[str]:
    """Say what the times do not tell, and what the record lacks."""
    if hosts > 1:
        yield "times of different hosts are compared by the hosts' own clocks, which may be milliseconds apart"
    known = [op.ran is not None for op in record.calls if op.enqueued]
    known += [True for log in record.logs for span in log.spans if span.ran]
    if any(known):
        yield "times on a GPU are the GPU's: from when it came to a call until the data had moved (CUDA events)"
    if not all(known):
        yield "calls on a GPU return when they are enqueued: some bars end before the data has moved"
    if missing:
        yield f"no record of {ranks(missing)}"
    if dropped := max((log.dropped for log in record.logs), default=0):
        yield f"only the last operations are kept: up to {dropped} earlier ones per rank are not shown"
    if cut := max((log.cut for log in record.logs), default=0):
        yield f"only the last spans are kept: up to {cut} earlier ones per rank are not shown"
    if unnamed := max((log.unnamed for log in record.logs), default=0):
        yield f"a process group counted {count(unnamed, 'more call')} per rank, of which nothing else is known"
    if record.shared:
        yield f"{record.shared}: the times say nothing about GPUs that are not shared"


def _shift(log: Log, seconds: float) -> None:
    """Move all times of a log that has just been read."""
    log.ended = None if log.ended is None else log.ended + seconds
    for op in log.ops:
        op.entered += seconds
        op.left = None if op.left is None else op.left + seconds
        op.waited = op.waited and (op.waited[0] + seconds, op.waited[1] + seconds, op.waited[2])
        op.there = None if op.there is None else op.there + seconds
        op.ran = op.ran and (op.ran[0] + seconds, op.ran[1] + seconds)
    for span in log.spans:
        span.ran = span.ran and (span.ran[0] + seconds, span.ran[1] + seconds)
        span.entered += seconds
        span.left = None if span.left is None else span.left + seconds
    log.stood = [(a + seconds, b + seconds) for a, b in log.stood]


def _by_the_gpu(log: Log) -> None:
    """Give what a GPU did the GPU's times, in place of those of the calls that enqueued it."""
    for op in log.ops:
        if op.ran and op.waited:
            op.waited = (*op.ran, op.waited[2])
        elif op.ran and not op.asynchronous:
            op.entered, op.left = op.ran
    for span in log.spans:
        if span.ran:
            span.entered, span.left = span.ran
    if log.ended is not None:
        ran = [op.ran for op in log.ops] + [span.ran for span in log.spans]
        log.ended = max([log.ended, *(until for _, until in filter(None, ran))])


def _messages(ops: Sequence[Op]) -> Iterator[Message]:
    takers: dict[tuple[Any, ...], list[Op]] = {}
    for op in (op for op in ops if op.kind == "recv"):
        takers.setdefault((op.within, op.peer, op.rank, op.tag, _family(op)), []).append(op)
    for op in (op for op in ops if op.kind == "send"):
        waiting = takers.get((op.within, op.rank, op.peer, op.tag, _family(op)))
        yield Message(op, waiting.pop(0) if waiting else None)
    for op in (op for left in takers.values() for op in left):
        yield Message(None, op)


def _family(op: Op) -> str:
    """Name the kind of a call, since only those of one meet: a tensor's, an object list's, those of comms."""
    primitive = op.primitive
    return "comms" if op.op.startswith("comms.") else "objects" if primitive and primitive.objects else ""


def _waits(op: Op, meeting: Meeting) -> list[Wait]:
    """Find the waits of one rank in a collective, one after the other."""
    primitive = op.primitive
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
    """Return from when to when a rank stands in an operation, or in the `.wait()` for it."""
    return (op.waited[0], op.waited[1]) if op.waited else (op.entered, op.left)


def _wait(op: Op, needed: Sequence[Op]) -> list[Wait]:
    """Find the wait of one call for the last of others, if it waited."""
    start, end = _stay(op)
    if op.asynchronous and not op.waited:
        return []
    came = [o for o in needed if o.entered > start and (end is None or o.entered <= end)]
    last = max(came, key=lambda o: o.entered, default=None)
    return [Wait(op, start, last.entered, last.rank)] if last else []


def _vain(op: Op, absent: Iterable[int]) -> list[Wait]:
    """Find the wait of a call for ranks that never came."""
    start, end = _stay(op)
    waited = end is not None and not (op.asynchronous and not op.waited)
    return [Wait(op, start, end or start, min(absent), "never")] if waited else []


def rounds(record: Record) -> dict[int, int]:
    """Number the logical round of every message, by its place in `record.messages`: from 1, by order, not by time.

    A message is in round k + 1 if the last thing that its sender or its receiver had finished before calling it was
    in round k. So a ring's n messages at once are one round, and a root that receives one after another takes n - 1.
    A collective is not a round; what comes after it is in a later round than all that its ranks did before.
    """
    events = []
    for mine in record.ops:
        moments = [(op.issued, False, op) for op in mine] + [(op.done, True, op) for op in mine if op.done is not None]
        events.append(sorted(moments, key=lambda e: e[:2]))
    found = dict.fromkeys(range(len(record.messages)), 1)
    reached = {id(op): 0 for op in record.calls}
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
            found[i] = 1 + max(before[id(op)] for op in m.ends)
            reached.update((id(op), found[i]) for op in m.ends)
        for meeting in record.meetings:
            latest = max(before[id(op)] for op in meeting.ops)
            reached.update((id(op), latest) for op in meeting.ops)
        if reached == old:
            break
    return found
