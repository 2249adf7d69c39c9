"""The ranks' small buffers, round by round: what they hold, and whose contributions are proved to be in it.

Contents come from the record. An origin is told only where contents prove it: a received chunk lies where it was
received, or a chunk's new numbers are its old ones with a received one added (multiplied, …). Neither torch nor a
cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.theory.log import Log, Op
from labkit.theory.origin import Origin
from labkit.theory.record import Message, Record, rounds

WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "copy": lambda a, b: b,
    "product": lambda a, b: a * b,
    "max": max,
    "min": min,
}
Place = tuple[int, int, int]  # of a chunk: buffer, offset, count
COARSE = {"float16": 1e-2, "bfloat16": 3e-2}  # how far apart equal numbers may be after an addition


@dataclass(frozen=True)
class Element:
    """One element of a buffer: its value, and where it came from; None where nothing was written, or it is unknown."""

    value: Any = None
    origin: Origin | None = None


@dataclass(frozen=True)
class Slot:
    """A place that a rank's buffer has in a picture; buffers that one line makes one after the other share it."""

    name: str
    size: int
    buffers: tuple[int, ...]


class Ledger:
    """Follow one rank's record from its beginning to its end."""

    def __init__(self, rank: int, log: Log, coarse: float) -> None:
        self.rank = rank
        self.buffers = log.buffers
        self.journal = log.journal
        self.coarse = coarse
        self.at = 0
        self.held: dict[int, list[Element]] = {}
        self.raw: dict[int, Sequence[Any]] = {}  # what the journal said last, garbage too
        self.states: list[dict[int, list[Element]]] = [{}]
        self.began: dict[int, int] = {}  # operation → the state in which it began
        self.fresh: list[tuple[int, int, list[Element]]] = []  # received beside the data, not yet used
        self.came = False  # whether anything has been received
        self.pending: dict[int, Place] = {}  # receives that have begun
        self.sends = 0  # that have begun
        self.placed: list[tuple[Place, int]] = []  # where received chunks were added, after how many sends
        self.silent: list[tuple[int, list[Element]]] = []  # received zeros: adding them would leave no trace

    def advance(self, until: int) -> None:
        """Read the journal up to a position: what the rank itself has computed since."""
        for buffer, values in self.journal[self.at : until]:
            old = self.held.get(buffer)
            known = old is not None and buffer in self.raw
            self.held[buffer] = self._changed(buffer, old or [], values) if known else self._first(buffer, values)
            self.raw[buffer] = values
        self.at = max(self.at, until)
        self.note()

    def add_zeros(self, buffer: int, offset: int, count: int) -> None:
        """Add received zeros to the origins here, though no number shows it."""
        for source, came in [s for s in self.silent if len(s[1]) == count and s[0] != buffer]:
            if held := self.held.get(buffer):
                for i, e in enumerate(came, offset):
                    held[i] = Element(held[i].value, _added([held[i], e]))
                self.note()
                self.silent.remove((source, came))

    def note(self) -> None:
        """Remember the state at this position; what a running receive writes to is unknown until it ends."""
        seen = {b: list(elements) for b, elements in self.held.items()}
        for buffer, offset, count in self.pending.values():
            if buffer in seen:
                seen[buffer][offset : offset + count] = [Element()] * count
        self.states.append(seen)

    def landed(self, buffer: int, offset: int, values: Sequence[Any], origins: Sequence[Origin | None]) -> None:
        """Note that a receive has ended."""
        elements = [Element(v, o) for v, o in zip(values, origins, strict=True)]
        held = self.held.setdefault(buffer, [Element()] * self.buffers[buffer].size)
        held[offset : offset + len(elements)] = elements
        self.came = True
        self.fresh = [f for f in self.fresh if f[:2] != (buffer, offset)] + [(buffer, offset, elements)]
        if not any(values) and self.buffers[buffer].first == "recv":
            self.silent.append((buffer, elements))
        self.note()

    def _first(self, buffer: int, values: Sequence[Any]) -> list[Element]:
        if self.buffers[buffer].first == "recv":
            return [Element()] * len(values)
        if self.came and self.buffers[buffer].first:  # made after something came: a copy, or unknown
            found: dict[tuple[Origin | None, ...], list[Element]] = {}
            for elements in self.held.values():
                for start in range(len(elements) - len(values) + 1):
                    part = elements[start : start + len(values)]
                    if all(e.value == v for e, v in zip(part, values, strict=True)):
                        found[tuple(e.origin for e in part)] = part
            return list(next(iter(found.values()))) if len(found) == 1 else [Element(v) for v in values]
        return [Element(v, Origin(self.rank, i)) for i, v in enumerate(values)]

    def _changed(self, buffer: int, old: list[Element], values: Sequence[Any]) -> list[Element]:
        hidden = {i for b, offset, count in self.pending.values() if b == buffer for i in range(offset, offset + count)}
        before = self.raw[buffer]
        moved = [i for i, v in enumerate(values) if v != before[i] and i not in hidden]
        new = list(old)
        for i in moved:
            own = Origin(self.rank, i) if old[i].value is None and not self.fresh else old[i].origin
            new[i] = Element(values[i], own)
        if not moved:
            return new
        for source in reversed(self.fresh):
            for start in self._windows(source, buffer, moved, len(values)):
                for way in WAYS:
                    if self._explains(way, old, values, start, source[2]):
                        for i, e in enumerate(source[2], start):
                            new[i] = Element(values[i], _mixed(way, old[i], e, values[i]))
                        self.fresh.remove(source)
                        self.placed.append(((buffer, start, len(source[2])), self.sends))
                        return new
        together = [f for f in self.fresh if len(f[2]) == len(values) and f[0] != buffer]
        sums = [sum((f[2][i].value for f in together), old[i].value or 0) for i in range(len(values))]
        if len(together) > 1 and all(self._near(a, b) for a, b in zip(sums, values, strict=True)):
            for i in range(len(values)):
                new[i] = Element(values[i], _added([old[i], *(f[2][i] for f in together)]))
            self.fresh = [f for f in self.fresh if f not in together]
        return new

    @staticmethod
    def _windows(source: tuple[int, int, list[Element]], buffer: int, moved: list[int], size: int) -> Iterator[int]:
        """Yield where in a buffer a received chunk may have been added so that all that changed is covered."""
        count = len(source[2])
        starts = range(max(0, moved[-1] - count + 1), min(moved[0], size - count) + 1)
        for start in sorted(starts, key=lambda s: s % count != 0):
            if source[0] != buffer or start != source[1]:
                yield start

    def _explains(self, way: str, old: list[Element], new: Sequence[Any], start: int, came: list[Element]) -> bool:
        pairs = [(old[start + i].value, e.value, new[start + i]) for i, e in enumerate(came)]
        if any(not isinstance(v, (int, float)) for _, b, c in pairs for v in (b, c)):
            return False
        if way == "copy":
            return all(self._near(b, c) for _, b, c in pairs)
        return all(isinstance(a, (int, float)) and self._near(WAYS[way](a, b), c) for a, b, c in pairs)

    def _near(self, a: Any, b: Any) -> bool:
        return math.isclose(a, b, rel_tol=self.coarse, abs_tol=1e-30)


def _mixed(way: str, old: Element, came: Element, value: Any) -> Origin | None:
    if way == "copy" or (way in ("max", "min") and came.value == value):
        return came.origin
    return old.origin if way in ("max", "min") else _added([old, came])


def _added(elements: Sequence[Element]) -> Origin | None:
    origins = [e.origin for e in elements if e.origin is not None]
    return sum(origins[1:], origins[0]) if len(origins) == len(elements) else None


class Replay:
    """A record's rounds: `steps[k]` the messages of round k + 1, and every slot's contents before and after it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        places = rounds(record)
        self.steps = [
            tuple(m for i, m in enumerate(record.messages) if places[i] == k + 1)
            for k in range(max(places.values(), default=0))
        ]
        self._round = {id(op): places[i] for i, m in enumerate(record.messages) for op in m.ends}
        families = {f for log in record.logs for f in _families(log)}
        self.slots = [_slots(log, families) for log in record.logs]
        self._forward = False  # whether received chunks are added to what is sent next
        self._habits: list[set[Place]] = [set() for _ in record.ops]  # where else they are added
        self._carried: dict[int, list[Element]] = {}
        self._ledgers = self._read()
        self.known = True
        if any(ledger.silent for ledger in self._ledgers) and any(ledger.placed for ledger in self._ledgers):
            self._settle()

    def carried(self, message: Message) -> list[Element]:
        """Return what a message carried, element by element; nothing where it was not recorded."""
        return self._shown(self._carried.get(id(message.send), []))

    def contents(self, rank: int, slot: int, step: int) -> list[Element]:
        """Return what a slot holds when a rank begins with a step (counted from 0); at last, what the cell has left."""
        ledger, place = self._ledgers[rank], self.slots[rank][slot]
        later = (ledger.began[id(o)] for o in self.record.ops[rank] if o.view and self._round.get(id(o), 0) > step)
        state = ledger.states[next(later, -1)]
        seen = next((state[b] for b in reversed(place.buffers) if b in state), [Element()] * place.size)
        return self._shown(seen)

    def place(self, op: Op | None) -> tuple[int, int, int] | None:
        """Return (slot, first element, how many) of an operation's tensor in its rank's row."""
        if op is None or not op.view:
            return None
        for i, slot in enumerate(self.slots[op.rank]):
            if op.view.buffer in slot.buffers:
                return i, op.view.offset, op.view.count
        return None

    def _shown(self, elements: list[Element]) -> list[Element]:
        return elements if self.known else [Element(e.value) for e in elements]

    def _settle(self) -> None:
        """Zeros came: suppose that they were added where other chunks were, if those all went to one place."""
        nexts = [self._sent_next(r, *at) for r, ledger in enumerate(self._ledgers) for at in ledger.placed]
        self._forward = True in nexts and False not in nexts
        self._habits = [{place for place, _ in ledger.placed} for ledger in self._ledgers]
        self._ledgers = self._read()
        self.known = not any(ledger.silent for ledger in self._ledgers)

    def _sent_next(self, rank: int, place: Place, sends: int) -> bool | None:
        """Tell whether the chunk that a rank has added to is what it sends next; None where it sends nothing more."""
        sent = [o.view for o in self.record.ops[rank] if o.kind == "send" and o.view][sends:]
        return (sent[0].buffer, sent[0].offset, sent[0].count) == place if sent else None

    def _read(self) -> list[Ledger]:
        record = self.record
        self._carried.clear()
        dtypes = {o.dtype for o in record.calls if o.view}
        coarse = max((COARSE.get(d or "", 1e-6) for d in dtypes), default=1e-6)
        ledgers = [Ledger(r, log, coarse) for r, log in enumerate(record.logs)]
        sender = {id(m.recv): m.send for m in record.messages if m.send and m.recv}
        queues = []
        for mine in record.ops:
            moments = [(o.issued, False, o) for o in mine if o.view]
            moments += [(o.done, True, o) for o in mine if o.view and o.kind == "recv" and o.done is not None]
            queues.append(sorted(moments, key=lambda m: m[:2]))
        going = True
        while going:
            going = False
            for ledger, queue in zip(ledgers, queues, strict=True):
                while queue and self._take(ledger, queue[0][1], queue[0][2], sender.get(id(queue[0][2]))):
                    queue.pop(0)
                    going = True
        for ledger in ledgers:
            ledger.advance(len(ledger.journal))
        return ledgers

    def _take(self, ledger: Ledger, ended: bool, op: Op, send: Op | None) -> bool:
        """Read the beginning or the end of one operation; False where its message has not been sent yet."""
        assert op.view is not None
        buffer, offset, count = where = op.view.buffer, op.view.offset, op.view.count
        if ended:
            if send is not None and send.view and id(send) not in self._carried:
                return False
            until = op.view.until
            assert until is not None, "a receive that is done has been looked at"
            ledger.advance(until)
            ledger.pending.pop(id(op), None)
            values = _held(ledger.journal, buffer, until)[offset : offset + count]
            carried = self._carried.get(id(send), [])
            alike = len(carried) == len(values)
            ledger.landed(buffer, offset, values, [e.origin for e in carried] if alike else [None] * len(values))
            if not self._forward and len(habits := self._habits[ledger.rank]) == 1:
                ledger.add_zeros(*next(iter(habits)))
            return True
        ledger.advance(op.view.since)
        if op.kind == "send":
            if self._forward:
                ledger.add_zeros(*where)
            ledger.sends += 1
            held = ledger.held.get(buffer, [])[offset : offset + count]
            values = _held(ledger.journal, buffer, op.view.since)[offset : offset + count]
            self._carried[id(op)] = [
                e if e.value is not None else Element(v, Origin(ledger.rank, i))
                for i, (e, v) in enumerate(zip(held, values, strict=False), offset)
            ]
        ledger.began[id(op)] = len(ledger.states) - 1
        if op.kind == "recv":
            ledger.pending[id(op)] = where
            ledger.note()
        return True


def _held(journal: Sequence[tuple[int, list[Any]]], buffer: int, at: int) -> list[Any]:
    """Return what a buffer held at a position of the journal."""
    return next((list(values) for b, values in reversed(journal[:at]) if b == buffer), [])


def _families(log: Log) -> set[str]:
    """Find the names of buffers, or of lists of them, that a rank sends, receives or changes."""
    return {log.buffers[b].name.split("[")[0] for b in _used(log)} - {""}


def _used(log: Log) -> set[int]:
    changes = [b for b, _ in log.journal]
    return {o.view.buffer for o in log.ops if o.view} | {b for b in changes if changes.count(b) > 1}


def _slots(log: Log, families: set[str]) -> list[Slot]:
    """List the buffers of a picture; temporary ones that followed one another, made by one line, share a slot."""
    kinds: dict[int, set[str]] = {}
    ready: dict[int, float] = {}  # when the first message of a buffer was there
    for kind, view in ((o.kind, o.view) for o in log.ops if o.view):
        kinds.setdefault(view.buffer, set()).add(kind)
        ready.setdefault(view.buffer, math.inf if kind == "send" or view.until is None else view.until)
    used = _used(log)
    found: list[tuple[Any, list[int]]] = []
    for b, buffer in enumerate(log.buffers):
        if b not in used and buffer.name.split("[")[0] not in families:
            continue
        what = (buffer.name, buffer.line, buffer.size, frozenset(kinds.get(b, ())))
        for other, buffers in found:
            gone = log.buffers[buffers[-1]].gone
            if what == other and not buffer.name and gone is not None and gone <= ready.get(b, 0):
                buffers.append(b)
                break
        else:
            found.append((what, [b]))
    names = {frozenset({"recv"}): "inbox", frozenset({"send"}): "outbox"}
    return [Slot(what[0] or names.get(what[3], "buffer"), what[2], tuple(buffers)) for what, buffers in found]
