"""Show the operations of the last cell in space and time, for `lab.last.timeline`. No torch, no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from labkit.floor.words import alike, count, ranks, seconds
from labkit.outcome.text import merge
from labkit.plot import lanes, timeline
from labkit.show import gantt
from labkit.show.picture import Picture
from labkit.theory.log import Op, Span
from labkit.theory.overlap import Overlap, overlaps
from labkit.theory.record import Meeting, Record, Wait, read

TOLD = 8  # waits in words; the picture shows the others
NOTABLE = 0.02  # of the whole time; shorter waits are not told


class Timeline(Picture):
    """The recorded operations of a cell, a line for each rank; it displays itself as a space–time diagram.

    Where the cell has spans (`with span("backward"): …`), each rank has two lanes: what it computed, and below that its
    operations, from the call until the data was there; `overlap` says how much of them was hidden behind computing.

    Its text says first what is the same in every run (which operations, in which order, between whom), then the times.
    `record` has all of it: `record.ops[r]`, `record.messages`, `record.meetings`, `record.waits` (seconds).
    """

    def __init__(self, logs: Sequence[dict[str, Any] | None]) -> None:
        self.record: Record = read(logs)
        self._spans = any(self.record.spans)

    @cached_property
    def overlap(self) -> tuple[Overlap, ...]:
        """The seconds that each rank computed, communicated, and did both at once: `overlap[r].hidden`.

        >>> [o.hidden / o.communicating for o in lab.last.timeline().overlap]

        A rank computes while it is in its spans. See `labkit.theory.overlap.Overlap` for what counts as what.
        """
        return overlaps(self.record)

    @cached_property
    def gantt(self) -> gantt.Gantt:
        """The spans alone, a lane for each rank, and the part of the time in which nothing was computed: the bubble.

        >>> lab.last.timeline().gantt.bubble

        A span named `forward 3` or `backward 3` is drawn as F3 or B3. Time counts only while the rank is neither in
        a call that communicates nor waiting.
        """
        return gantt.of_record(self.record)

    @cached_property
    def facts(self) -> str:
        """The operations of each rank, in its order: the same in every run."""
        each = {
            r: "\n".join([*computed(self.record.spans[r]), *(described(op, self.record.n) for op in mine)]) or "nothing"
            for r, mine in enumerate(self.record.ops)
        }
        return "\n".join([*merge(each).splitlines(), *self._oddities()])

    @cached_property
    def times(self) -> str:
        """The time that it took, and which rank waited for which, the longest wait first."""
        ends = self._ends
        lines = [f"{seconds(max(ends, default=0.0))} from the first operation's start to the last one's end"]
        if self._spans:
            ends += [t for mine in self.record.spans for s in mine for t in (s.entered, s.left) if t is not None]
            lines = [f"{seconds(max(ends))} from the first span's or operation's start to the last one's end"]
            lines += [
                told(r, o, bool(self.record.spans[r])) for r, o in enumerate(self.overlap) if self.record.logs[r].host
            ]
        waits = self._notable()
        lines += [_waited(same) for same in waits]
        return "\n".join(lines if waits else [*lines, "no rank waited for another for long"])

    @property
    def _ends(self) -> list[float]:
        return [t for mine in self.record.ops for o in mine for t in (o.left, o.ended) if t is not None]

    def _notable(self) -> list[list[Wait]]:
        """Choose the waits worth telling, those in one collective for one rank together."""
        last = max(self._ends, default=0)
        groups: dict[Any, list[Wait]] = {}
        for i, w in enumerate(self.record.waits):
            if w.seconds > NOTABLE * last:
                together = (w.op.within, w.op.nth, w.for_, w.kind) if w.op.kind == "collective" else i
                groups.setdefault(together, []).append(w)
        return list(groups.values())[:TOLD]

    def _oddities(self) -> list[str]:
        """Tell which messages lack a sender or a receiver, and which collectives lack a rank or were mixed."""
        lines = []
        for m in self.record.messages:
            if m.send and not m.recv:
                lines.append(f"no rank received what rank {m.send.rank} sent to rank {m.send.peer} ({m.send.place})")
            if m.recv and not m.send:
                sent = "no rank sent anything" if m.recv.peer is None else f"rank {m.recv.peer} sent nothing"
                lines.append(f"{sent} that rank {m.recv.rank} could receive ({m.recv.place})")
        for meeting in self.record.meetings:
            absent = set(meeting.ranks) - {o.rank for o in meeting.ops}
            if absent:
                lines.append(f"{ranks(absent)} never came to {_calls(meeting)}")
            elif meeting.mixed:
                lines.append(f"ranks called different operations: {_calls(meeting)}")
        return lines

    @cached_property
    def alt(self) -> str:
        """The picture in words."""
        parts = [f"Space–time diagram of {self.record.n} ranks.", *self.facts.splitlines(), *self.times.splitlines()]
        return ". ".join(p.rstrip(".") for p in parts) + "."

    def _drawn(self) -> Any:
        return lanes.draw(self.record) if self._spans else timeline.draw(self.record)

    def __repr__(self) -> str:
        return f"{self.facts}\n\ntimes of this run:\n{self.times}" + "".join(f"\nnote: {n}" for n in self.record.notes)


def computed(spans: Sequence[Span]) -> list[str]:
    """Return a rank's spans in a line for each pass, in the order in which they began."""
    lines = []
    for of, what in (("", "spans"), ("forward", "forward spans"), ("backward", "backward spans")):
        names = [f"{s.name} (ended with {s.error})" if s.error else s.name for s in spans if s.of == of]
        if names:
            lines.append(f"{what}: {', '.join(names)}")
    return lines


def told(rank: int, found: Overlap, spans: bool) -> str:
    """Say how much of one rank's communication was hidden, in a sentence."""
    said = f"rank {rank} computed for {seconds(found.computing)}" if spans else f"rank {rank} had no spans"
    if found.communicating:
        part = f"{seconds(found.hidden)} of it ({100 * found.share:.0f} %)" if found.hidden else "none of it"
        said += f"; communication was under way for {seconds(found.communicating)}, {part} hidden behind computing"
    elif not found.open:
        said += " and communicated nothing"
    if found.open:
        said += f" (not counted: {count(found.open, 'operation')} with no record of when the data was there)"
    if found.late:
        said += f" (at most: {count(found.late, 'operation')} counted until the .wait(); data may come earlier)"
    return said


def described(op: Op, n: int) -> str:
    """Describe an operation of one of n ranks in one line: "all_reduce(sum) 16 bytes, line 2"."""
    arrow = {"send": "→", "recv": "←"}.get(op.kind)
    what = f"{op.op}({op.reduce})" if op.reduce else op.op
    if arrow:
        what += f" {arrow} rank {op.peer}" if op.peer is not None else f" {arrow} any rank"
    elif op.peer is not None and op.kind == "collective":
        what += f" root {op.peer}"
    size = "" if op.bytes is None else f"{op.bytes} byte{'s' * (op.bytes != 1)}"
    group = "" if arrow or len(op.ranks) == n else f"in the group of {ranks(op.ranks)}"
    batch = "in a batch" if op.batch else ""
    wait = ""
    if op.asynchronous:
        never = "never waited for" if op.there is None and not op.asked else "without a .wait()"
        wait = f"waited for in {op.wait_place}" if op.waited else never
    seen = "seen by the process group" if op.witnessed else ""
    error = f"ended with {op.error}" if op.error else "" if op.left is not None else "has not ended"
    return ", ".join(filter(None, [f"{what} {size}".strip(), group, op.place, batch, wait, seen, error]))


def _where(op: Op) -> str:
    return f"{op.op} ({op.place.split(',')[0]})" if op.line else op.op


def _waited(waits: list[Wait]) -> str:
    """Tell of waits of ranks in one operation for one rank."""
    who, place, other = ranks({w.op.rank for w in waits}), _where(waits[0].op), f"rank {waits[0].for_}"
    return {
        "waited": f"{who} waited {_long(waits)} for {other} in {place}",
        "stayed": f"{who} stayed {_long(waits)} in {place}, until {other} came, though its data is not needed there",
        "never": f"{who} waited {_long(waits)} in {place} for {other}, which never came",
    }[waits[0].kind]


def _long(waits: list[Wait]) -> str:
    least, most = waits[-1].seconds, waits[0].seconds
    return seconds(most) if seconds(least) == seconds(most) else f"{seconds(least)} to {seconds(most)}"


def _calls(meeting: Meeting) -> str:
    by_call = alike({op.rank: _where(op) for op in meeting.ops})
    return "; ".join(f"{call} of {ranks(who)}" for call, who in by_call.items())
