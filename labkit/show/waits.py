"""What `lab.last.waits` shows: who waits for whom in the last cell, as a graph. No torch, no cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit.outcome.outcome import Outcome
from labkit.plot import svg
from labkit.plot import waits as picture
from labkit.theory.record import Op, Record, read
from labkit.words import alike, ranks, seconds, sentence

ANYBODY = "any rank"
KINDS = (("finished", "done"), ("died", "failed"), ("raised", "failed"), ("never", "failed"), ("", "busy"))


@dataclass(frozen=True)
class Waiting:
    """A rank that waits: in which call ("send, line 7"), and for which ranks; none where nobody knows for whom."""

    call: str
    whom: tuple[int, ...] = ()
    anybody: bool = False  # a receive that takes whatever comes


class Waits:
    """Who waits for whom: when the cell was cut short, or in its longest wait where it ended by itself.

    `arrows` are (who waits, for whom); `cycles` are lists of ranks, each of which waits for the next, the last one for
    the first; `waiting` and `others` say where each rank was: in a call, or elsewhere.
    """

    def __init__(self, logs: Sequence[dict[str, Any] | None], outcome: Outcome | None = None) -> None:
        self.record: Record = read(logs)
        self._absent = {r for r, log in enumerate(logs) if log == {}}
        self.long = 0.0  # seconds of the longest wait; 0 where the cell was cut short
        self.waiting = _cut_short(self.record, outcome)
        self.others = {r: self._instead(r, outcome) for r in range(self.record.n) if r not in self.waiting}
        if not self.waiting:
            self._longest()

    def _longest(self) -> None:
        """The moment before the longest wait ended: who waited then, and what the others did."""
        if not self.record.waits:
            return
        longest = self.record.waits[0]
        self.long, moment = longest.seconds, longest.until
        for r in range(self.record.n):
            mine = [w for w in self.record.waits if w.op.rank == r and w.start < moment <= w.until]
            if mine:
                whom = tuple(sorted({w.for_ for w in mine}))
                self.waiting[r] = Waiting(_call(mine[0].op), whom)
                self.others.pop(r, None)
            elif r not in self._absent:
                self.others[r] = self._doing(r, moment)

    def _instead(self, rank: int, outcome: Outcome | None) -> str:
        """What a rank did that does not wait."""
        if outcome and rank in outcome.dead:
            return f"died ({outcome.dead[rank]})"
        if outcome and rank in outcome.elsewhere:
            return outcome.elsewhere[rank]
        if outcome and rank in outcome.errors:
            return f"raised {outcome.errors[rank].ename}"
        if rank in self._absent:
            return "never ran the cell"
        return "finished the cell" if outcome or self.record.logs[rank].ended is not None else "computes"

    def _doing(self, rank: int, moment: float) -> str:
        """What a rank did then that did not wait."""
        ops, ended = self.record.ops[rank], self.record.logs[rank].ended
        inside = [op for op in ops if op.entered < moment <= (op.ended or op.left or op.entered)]
        if inside:
            return f"was in {_call(inside[-1])}"
        if ended is not None and ended < moment:
            return "finished the cell"
        return "had not arrived yet" if any(op.entered >= moment for op in ops) else "computed"

    @property
    def arrows(self) -> list[tuple[int, int]]:
        """Each as (who waits, for whom)."""
        return [(r, other) for r, w in sorted(self.waiting.items()) for other in w.whom]

    @cached_property
    def cycles(self) -> list[list[int]]:
        """Ranks that wait for one another in a cycle: the shortest through the lowest rank, then among those left."""
        found: list[list[int]] = []
        for r in sorted(self.waiting):
            path = self._back_to(r)
            if path and not any(set(path) & set(cycle) for cycle in found):
                found.append(path)
        return found

    def _back_to(self, start: int) -> list[int]:
        """The shortest way from a rank along the arrows back to it, or nothing."""
        paths, seen = [[start]], {start}
        while paths:
            longer = []
            for path in paths:
                for other in self.waiting[path[-1]].whom if path[-1] in self.waiting else ():
                    if other == start:
                        return path
                    if other not in seen:
                        seen.add(other)
                        longer.append([*path, other])
            paths = longer
        return []

    # -- words --------------------------------------------------------------------------------------------------------

    @property
    def says(self) -> list[str]:
        """Who waits for whom, what the others do, and which ranks wait in a cycle: a sentence each."""
        if not self.waiting:
            return ["No rank waited for another."]
        said = alike({r: self._for(r) for r in self.waiting})
        lines = [f"{ranks(rs)} {self._wait(len(rs))} {what}" for what, rs in said.items()]
        lines += [f"{ranks(rs)} {_of(len(rs), what)}" for what, rs in alike(self.others).items()]
        return [sentence([line]) for line in lines] + self._circles()

    def _wait(self, many: int) -> str:
        return "waited" if self.long else "waits" if many == 1 else "wait"

    def _for(self, rank: int) -> str:
        w = self.waiting[rank]
        call, _, place = w.call.partition(", ")
        where = f"in {call} ({place})" if place else f"in {call}"
        whom = f"for {ranks(w.whom)} " if w.whom else f"for {ANYBODY} " if w.anybody else ""
        return whom + where

    def _circles(self) -> list[str]:
        lines = []
        for cycle in self.cycles:
            inside = set(cycle)
            behind = [r for r in self.waiting if r not in inside and inside & self._reached(r)]
            rest = "nobody can go on" if len(inside) == self.record.n else "none of these ranks can go on"
            if behind:
                rest += f", nor can {ranks(behind)}, which wait{'s' * (len(behind) == 1)} for them"
            lines.append(f"{' → '.join(map(str, [*cycle, cycle[0]]))} is a cycle: {rest}.")
        return lines

    def _reached(self, rank: int) -> set[int]:
        """All ranks that a rank waits for, also through others."""
        found: set[int] = set()
        new = {rank}
        while new:
            new = {o for r in new if r in self.waiting for o in self.waiting[r].whom} - found
            found |= new
        return found

    @property
    def title(self) -> str:
        """Which moment is shown."""
        if not self.waiting:
            return "No rank waited for another"
        return (
            f"The longest wait: {seconds(self.long)}" if self.long else "Who waits for whom when the cell is cut short"
        )

    @property
    def alt(self) -> str:
        """The picture in words."""
        return " ".join([f"Wait-for graph of {self.record.n} ranks. {self.title}.", *self.says])

    def __repr__(self) -> str:
        first = [f"{self.title}."] if self.long else []
        return "\n".join([*first, *self.says])

    # -- the picture --------------------------------------------------------------------------------------------------

    @property
    def svg(self) -> bytes:
        """The picture; equal waits give equal bytes."""
        nodes = [self._node(r) for r in range(self.record.n)]
        cycles = [pair for cycle in self.cycles for pair in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
        notes = [(line, True) for line in self._circles()]
        graph = picture.Graph(self.title, nodes, self.arrows, cycles, notes)
        return svg.svg(picture.draw(picture.axes(graph), graph))

    def _node(self, rank: int) -> picture.Node:
        if (w := self.waiting.get(rank)) is not None:
            return picture.Node(f"in {w.call}" + (f", for {ANYBODY}" if w.anybody else ""))
        words = self.others.get(rank, "")
        return picture.Node(words, next(kind for begin, kind in KINDS if words.startswith(begin)))

    def _repr_html_(self) -> str:
        return svg.img(self.svg, self.alt)


def _of(many: int, what: str) -> str:
    """What one rank did, said of so many: "was in barrier" of two is "were in barrier"."""
    verb, _, rest = what.partition(" ")
    return what if many == 1 else " ".join(filter(None, [{"was": "were", "computes": "compute"}.get(verb, verb), rest]))


def _cut_short(record: Record, outcome: Outcome | None) -> dict[int, Waiting]:
    """The ranks that the lab freed, or whose call failed under way, and those that are in one still."""
    found = {}
    for r in range(record.n):
        ops = _unfinished(record, r)
        if outcome is None:
            waits = bool(ops)
        else:
            error = outcome.errors.get(r)
            under_way = error is not None and error.raised in ("lab", "operation") and bool(ops)
            waits = r not in outcome.dead and (r in outcome.waiting or (under_way and r not in outcome.elsewhere))
        if not waits:
            continue
        whom = sorted({other for op in ops for other in _whom(record, op)})
        call = _call(ops[-1]) if ops or outcome is None else _called(outcome.waiting[r])
        found[r] = Waiting(call, tuple(whom), any(op.kind == "recv" and op.peer is None for op in ops))
    return found


def _unfinished(record: Record, rank: int) -> list[Op]:
    """The last call of a rank that did not end well; several where one `.wait()` is for all of them."""
    ops = [op for op in record.ops[rank] if op.error or op.left is None]
    return [op for op in ops if op is ops[-1] or (op.waited is not None and op.waited == ops[-1].waited)]


def _whom(record: Record, op: Op) -> Iterator[int]:
    """For whom a call waits that has not ended: its peer, or those of a collective that did not come to it."""
    if op.kind != "collective":
        yield from [] if op.peer is None else [op.peer]
        return
    meeting = next(m for m in record.meetings if (m.ranks, m.nth) == (op.ranks, op.nth))
    came = {o.rank: o.op for o in meeting.ops}
    needs = op.primitive.needs(op.rank, op.peer, op.ranks) if op.primitive else set(op.ranks) - {op.rank}
    absent = set(op.ranks) - set(came)
    yield from absent & needs or absent or {r for r, called in came.items() if called != op.op}


def _call(op: Op) -> str:
    """ "send, line 7"; "the wait for isend, line 9"."""
    if op.waited or op.asynchronous:
        line = op.waited[2] if op.waited else None
        return f"the wait for {op.op}" + (f", line {line}" if line else "")
    return ", ".join(filter(None, [op.op, op.place]))


def _called(where: dict[str, Any]) -> str:
    """The same of a call that left no record, from what its rank said of where it was."""
    return _call(Op(0, 0, where["op"], "", (), line=where["line"], function=where["function"]))
