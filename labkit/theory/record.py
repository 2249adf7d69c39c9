"""What the ranks' records say together: which send met which receive, who waited for whom, what came before what.

Pure: plain data in, plain data out; neither torch nor a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any

from labkit.floor import timestamps
from labkit.floor.words import count, ranks
from labkit.theory import gpu_sharing
from labkit.theory.primitives import Primitive, find


@cache
def is_cell(file: str) -> bool:
    """Whether a file's name is one that IPython gives to a cell."""
    return "ipykernel_" in file or file.startswith("<ipython-input")


@dataclass(slots=True)
class View:
    """Where an operation's tensor lies: `count` elements of a small buffer, from `offset` on.

    `since` and `until` are places in the rank's journal: what had changed before the call, and what a receive left.
    """

    buffer: int
    offset: int
    count: int
    since: int = 0
    until: int | None = None


@dataclass(slots=True)
class Op:
    """One call of one rank. A rank makes it when the call begins and fills it in; a `Record` changes none.

    Times are seconds of the rank's own clock; in a `Record`, since the cell's first operation. `left` is None while
    the call runs. `kind` is "send", "recv" or "collective"; `peer` the other rank, or the root; `nth` counts a group's
    collectives. `waited` is (entered, left, line) of the `.wait()` that ended an asynchronous one,
    and `wait_in` the learner's function that it stands in, as `function` is that of the call.
    `issued` and `done` order the rank's own calls: positions in its program, `done` None where nobody waited.
    `witnessed`: only the process group's own record has it, which notes when a call begins, not when it ends.
    `shared`: how many times one tensor stands in the list that the results go into; 0 where all are different.
    `there`: when the data of an asynchronous collective was there, where that was noted: only if spans are used.
    `enqueued`: it is on a GPU, and the call returns before the data has moved. `ran`: from when to when the GPU was at
    it, or stood in the `.wait()` for it, by CUDA events; in a `Record`, these are its times.
    `asked`: the learner has asked for its end otherwise than by `.wait()`, by its future or by `is_completed()`.
    `group`: torch's name for its group, the same on all its ranks; two groups may have the same ranks.
    """

    rank: int
    issued: float
    op: str
    kind: str
    ranks: tuple[int, ...]
    peer: int | None = None
    tag: int = 0
    nth: int = 0
    reduce: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    bytes: int | None = None
    line: int | None = None
    function: tuple[str, int] | None = None
    asynchronous: bool = False
    batch: bool = False
    enqueued: bool = False
    witnessed: bool = False
    entered: float = 0.0
    left: float | None = None
    waited: tuple[float, float, int | None] | None = None
    done: float | None = None
    error: str = ""
    shared: int = 0
    there: float | None = None
    group: str = ""
    ran: tuple[float, float] | None = None
    wait_in: tuple[str, int] | None = None
    asked: bool = False
    view: View | None = None

    @property
    def ended(self) -> float | None:
        """When its data was there: at the end of its `.wait()`, or of the call itself."""
        return self.waited[1] if self.waited else None if self.asynchronous else self.left

    @property
    def arrived(self) -> float | None:
        """When its data was there, as exactly as anybody noted; `ended` where nobody noted more."""
        return self.ended if self.there is None else min(self.there, self.ended or self.there)

    @property
    def within(self) -> tuple[tuple[int, ...], str]:
        """Its group: the ranks, and torch's name for it."""
        return self.ranks, self.group

    @property
    def name(self) -> str:
        """The operation without the module that it was called from."""
        return self.op.rpartition(".")[2]

    @property
    def called(self) -> str:
        """The operation as a learner calls it: "dist.all_reduce", "comms.send", "ProcessGroup.broadcast"."""
        return self.op if "." in self.op else f"dist.{self.op}"

    @property
    def place(self) -> str:
        """Where in the cell: "line 2", "line 4 of ring, called in line 9"; "" where that is not known."""
        return place(self.line, self.function)

    @property
    def wait_place(self) -> str:
        """Where its `.wait()` stands: "line 9", "line 14 of ring"; who called that is told where it is another line."""
        line = self.waited and self.waited[2]
        return place(line, self.wait_in, called=not (self.function and line == self.line))

    @property
    def primitive(self) -> Primitive | None:
        """Which primitive it is, whatever it is called."""
        return find(self.op)


def place(line: int | None, function: tuple[str, int] | None, called: bool = True, short: bool = False) -> str:
    """Say where in the cell: "line 4 of ring, called in line 9"; without the caller, or in `short` "ring line 4"."""
    if function:
        name, inner = function
        return f"{name} line {inner}" if short else f"line {inner} of {name}{f', called in line {line}' * called}"
    return f"line {line}" if line else ""


@dataclass(slots=True)
class Span:
    """A named piece of what a rank computes, from `entered` to `left`, which is None while it runs.

    `of` is "forward" or "backward" where it is of such a pass, else "". `error` names the exception that left it.
    `ran` is an operation's: from when to when the GPU was at it.
    """

    rank: int
    name: str
    of: str
    entered: float
    left: float | None = None
    error: str = ""
    ran: tuple[float, float] | None = None


@dataclass(slots=True)
class Buffer:
    """A small piece of memory of a rank: its name, elements, and the first call (kind and line) that used it.

    `gone` is the place in the journal where it had been let go.
    """

    name: str
    size: int
    line: int | None
    first: str
    gone: int | None = None


@dataclass
class Log:
    """What one rank kept of one cell: its calls in their order, and what its small buffers held.

    `journal` has (buffer, values), one for each change. `began`, `ended` are the cell's own times, each a timestamp
    of the `clock`. `gpu` is the one of its host that the rank uses, "" where it uses none; ranks that share it compute
    `together` under MPS, else by turns. `dropped` calls are too many to be kept; `unnamed` ones were counted by a
    process group and noted by nobody. `sent` are the bytes on the wire to other ranks meanwhile, None where nobody
    counts them.
    `spans` are in the order in which they began, `cut` earlier ones are not kept. `stood` has (from, to) for each
    backward pass: from when its graph was computed until what waits for other ranks behind it was done.
    `made` has the ranks of each group that this rank has begun to make, of those that all ranks have to make.
    """

    ops: list[Op] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    journal: list[tuple[int, list[Any]]] = field(default_factory=list)
    began: float = 0.0
    ended: float | None = None
    clock: tuple[str, float] = ("", 0.0)
    host: str = ""
    gpu: str = ""
    together: bool = False
    dropped: int = 0
    unnamed: int = 0
    sent: int | None = None
    spans: list[Span] = field(default_factory=list)
    cut: int = 0
    stood: list[tuple[float, float]] = field(default_factory=list)
    made: list[tuple[int, ...]] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """As JSON carries it; `Log.of` reads it back."""
        rows = [[*_row(op)[:-1], op.view and _row(op.view)] for op in self.ops]
        rest = {"buffers": [_row(b) for b in self.buffers], "spans": [_row(s) for s in self.spans]}
        return {**vars(self), "ops": rows, **rest}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Log:
        """What `plain` made."""
        ops = [Op(*row) for row in plain["ops"]]
        for op in ops:
            op.ranks = tuple(op.ranks)
            op.shape = None if op.shape is None else tuple(op.shape)
            op.function, op.wait_in = op.function and (*op.function,), op.wait_in and (*op.wait_in,)
            op.waited = None if op.waited is None else (op.waited[0], op.waited[1], op.waited[2])
            op.view = None if op.view is None else View(*op.view)  # type: ignore[misc]  # a row until here
        spans, stood = [Span(*row) for row in plain["spans"]], [(a, b) for a, b in plain["stood"]]
        buffers, made = [Buffer(*row) for row in plain["buffers"]], [tuple(ranks) for ranks in plain["made"]]
        return cls(**{**plain, "ops": ops, "buffers": buffers, "spans": spans, "stood": stood, "made": made})


_NAMES = {cls: [f.name for f in fields(cls)] for cls in (Op, View, Buffer, Span)}


def _row(value: Op | View | Buffer | Span) -> list[Any]:
    return [getattr(value, name) for name in _NAMES[type(value)]]


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
    group: str
    nth: int
    ops: tuple[Op, ...]

    @property
    def names(self) -> list[str]:
        """What its ranks call it."""
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
        """How long."""
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
    def shared(self) -> str:
        """In words, whether ranks share a GPU, where one has worked in this cell."""
        worked = any(op.enqueued for mine in self.ops for op in mine) or any(s.ran for mine in self.spans for s in mine)
        together = any(log.together for log in self.logs)
        return gpu_sharing.said([(log.host, log.gpu) for log in self.logs if log.gpu], together) if worked else ""

    @cached_property
    def spans(self) -> tuple[tuple[Span, ...], ...]:
        """What each rank computed, by the names that it gave, in the order in which it began: `spans[r]`."""
        return tuple(tuple(sorted(log.spans, key=lambda s: s.entered)) for log in self.logs)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Sends matched with receives: the k-th from a to b under a tag with the k-th that b takes from a."""
        return tuple(_messages(self.ops))

    @cached_property
    def mistagged(self) -> tuple[tuple[Op, Op], ...]:
        """Sends that nobody took, each with a receive that nobody sent to and that wants another tag of this rank's."""
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
        for op in (op for mine in self.ops for op in mine if op.kind == "collective"):
            found.setdefault((*op.within, op.nth), []).append(op)
        meetings = [Meeting(*which, tuple(ops)) for which, ops in found.items()]
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


def read(logs: Sequence[dict[str, Any] | None]) -> Record:
    """The ranks' logs, as `labkit.rank.recorder.records` sends them, as one record.

    `logs[r]` is {} where rank r did not run the cell, None where it does not answer.
    """
    kept = [Log.of(plain) if plain else Log() for plain in logs]
    notes = []
    several = len({log.host for log, plain in zip(kept, logs, strict=True) if plain}) > 1
    if several:
        notes.append("times of different hosts are compared by the hosts' own clocks, which may be milliseconds apart")
    first = next((log.clock for log, plain in zip(kept, logs, strict=True) if plain), Log.clock)
    shift = [timestamps.apart(log.clock, first) for log in kept]
    begun = [op.entered + shift[r] for r, log in enumerate(kept) for op in log.ops]
    begun += [span.entered + shift[r] for r, log in enumerate(kept) for span in log.spans]
    start = min(begun, default=0.0)
    for log, since in zip(kept, shift, strict=True):
        _shift(log, since - start)
        _by_the_gpu(log)
    known = [op.ran is not None for log in kept for op in log.ops if op.enqueued]
    known += [True for log in kept for span in log.spans if span.ran]
    if any(known):
        notes.append("times on a GPU are the GPU's: from when it came to a call until the data had moved (CUDA events)")
    if not all(known):
        notes.append("calls on a GPU return when they are enqueued: some bars end before the data has moved")
    if missing := [r for r, plain in enumerate(logs) if plain is None]:
        notes.append(f"no record of {ranks(missing)}")
    if dropped := max((log.dropped for log in kept), default=0):
        notes.append(f"only the last operations are kept: up to {dropped} earlier ones a rank are not shown")
    if cut := max((log.cut for log in kept), default=0):
        notes.append(f"only the last spans are kept: up to {cut} earlier ones a rank are not shown")
    if unnamed := max((log.unnamed for log in kept), default=0):
        notes.append(f"a process group counted {count(unnamed, 'more call')} a rank, and nobody noted which")
    record = Record(tuple(tuple(log.ops) for log in kept), tuple(kept), tuple(notes))
    more = f"{record.shared}: the times say nothing about GPUs that are not shared"
    return replace(record, notes=(*notes, more)) if record.shared else record


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


def _messages(ops: Sequence[Sequence[Op]]) -> Iterable[Message]:
    takers: dict[tuple[Any, ...], list[Op]] = {}
    for op in (op for mine in ops for op in mine if op.kind == "recv"):
        takers.setdefault((op.within, op.peer, op.rank, op.tag, _family(op)), []).append(op)
    for op in (op for mine in ops for op in mine if op.kind == "send"):
        waiting = takers.get((op.within, op.rank, op.peer, op.tag, _family(op)))
        yield Message(op, waiting.pop(0) if waiting else None)
    for op in (op for left in takers.values() for op in left):
        yield Message(None, op)


def _family(op: Op) -> str:
    """Only calls of one kind meet: a tensor's, an object list's, those of comms."""
    primitive = op.primitive
    return "comms" if op.op.startswith("comms.") else "objects" if primitive and primitive.objects else ""


def _waits(op: Op, meeting: Meeting) -> list[Wait]:
    """The waits of one rank in a collective, one after the other."""
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
