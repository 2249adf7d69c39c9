"""Who waited for whom in a cell, and what the others did: from the ranks' records and what became of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from labkit.floor import timestamps
from labkit.outcome import text
from labkit.outcome.outcome import Did, Instead, Outcome, Waiting
from labkit.theory.log import Log, Op
from labkit.theory.record import Record, read


class Story:
    """What the ranks did when a cell was cut short, or in its longest wait where it ended by itself.

    Each rank is in one of two: `waiting` in a call, or doing something `instead`. `long` are the seconds of that wait,
    0 where the cell was cut short. `seconds` says how long each rank had waited, or computed, until then; empty where
    the cell ended well.
    """

    def __init__(self, logs: Sequence[dict[str, Any] | None], outcome: Outcome | None = None) -> None:
        self.record: Record = read(logs)
        self.outcome = outcome
        self.long = 0.0
        self._logs = logs
        self._absent = {r for r, log in enumerate(logs) if log == {}}
        self.waiting = {r: w for r in range(self.record.n) if (w := self._waits(r)) is not None}
        self.instead = {r: self._instead(r) for r in range(self.record.n) if r not in self.waiting}
        if not self.waiting and (outcome is None or outcome.well):
            self._longest()
        told = range(self.record.n) if self.cut else ()
        self.seconds = {r: s for r in told if (s := self._seconds(r)) is not None}

    @property
    def cut(self) -> bool:
        """Whether there is a hang, or a failure, to tell of; not where the cell ended well."""
        return bool(self.waiting and not self.long) or not (self.outcome is None or self.outcome.well)

    @property
    def live(self) -> bool:
        """Whether the cell still runs."""
        return self.outcome is not None and self.outcome.ended == "runs"

    # -- who waits for whom ----------------------------------------------------------------------------------------

    @property
    def arrows(self) -> list[tuple[int, int]]:
        """Every wait, as (the rank that waits, the rank that it waits for)."""
        return [(r, other) for r, w in sorted(self.waiting.items()) for other in w.whom]

    @property
    def cycles(self) -> list[list[int]]:
        """Ranks that wait for one another in a cycle: the shortest through the lowest rank, then among those left."""
        found: list[list[int]] = []
        for r in sorted(self.waiting):
            path = self._back_to(r)
            if path and not any(set(path) & set(cycle) for cycle in found):
                found.append(path)
        return found

    def _back_to(self, start: int) -> list[int]:
        """Find the shortest way from a rank along the arrows back to it; none is []."""
        paths, seen = [[start]], {start}
        for path in paths:  # grows below
            for other in self.waiting[path[-1]].whom if path[-1] in self.waiting else ():
                if other == start:
                    return path
                if other not in seen:
                    seen.add(other)
                    paths.append([*path, other])
        return []

    def reached(self, ranks: Iterable[int]) -> set[int]:
        """Find all ranks that these ones wait for, also through others."""
        found: set[int] = set()
        new = set(ranks)
        while new:
            new = {o for r in new if r in self.waiting for o in self.waiting[r].whom} - found
            found |= new
        return found

    # -- where each rank was ------------------------------------------------------------------------------------------

    def _waits(self, rank: int) -> Waiting | None:
        """Find where a rank waits that the lab freed, or whose call failed under way, or that is in one still."""
        outcome, ops = self.outcome, _unfinished(self.record, rank)
        if outcome is None:
            return self._of(ops) if ops else None
        if rank not in outcome.waiting:  # its call may have failed because another rank raised or died
            instead = outcome.elsewhere.get(rank)
            raised = instead is None or instead.did is Did.RAISED
            return self._of(ops) if ops and raised and rank in self._suffered else None
        told = outcome.waiting[rank]
        if told.seen:
            ops = self._enqueued(rank, told.line)
        if not ops and told.call == "wait":  # it runs still: one of the handles that cannot be done yet
            ops = [op for op in self.record.ops[rank] if op.asynchronous and self._is_open(op)]
        if not ops or told.call == "backward":  # what torch's own code does in there is none of the learner's calls
            found = self._of(ops) if ops or (ops := self._noted(rank)) else Waiting("")
            call = ops[0].name if ops and told.call == "wait" else told.call
            whom = self._not_made(rank) if call == "new_group" else found.whom
            found = replace(found, line=told.line, function=told.function, seen=told.seen)
            return replace(found, call=call, whom=whom, handle=False)
        found = self._of(ops)
        return replace(found, line=found.line or told.line, seen=told.seen)

    def _noted(self, rank: int) -> list[Op]:
        """Find what a rank waits in, of what only its group noted: the first call that another rank did not reach."""
        ops = [op for op in self.record.ops[rank] if op.witnessed]
        return [next((op for op in ops if self._whom(op)), ops[-1])] if ops else []

    def _enqueued(self, rank: int, line: int | None) -> list[Op]:
        """Find the call of this line that the GPU is at: the first that another rank did not reach, or the last."""
        ops = [op for op in self.record.ops[rank] if op.enqueued and op.line == line]
        return [next((op for op in ops if self._whom(op)), ops[-1])] if ops else []

    def _not_made(self, rank: int) -> tuple[int, ...]:
        """Find the members of the group that a rank is making which have not begun to make it."""
        logs = self.record.logs
        members = logs[rank].made[-1] if logs[rank].made else ()
        many = logs[rank].made.count(members)
        return tuple(r for r in members if r < self.record.n and logs[r].made.count(members) < many)

    def _of(self, ops: Sequence[Op], whom: Iterable[int] | None = None) -> Waiting:
        op = ops[-1]
        whom = {other for one in ops for other in self._whom(one)} if whom is None else whom
        meets, late = op.kind == "collective", _late(op)
        line, function = (op.waited and op.waited[2], None) if late else (op.line, op.function)
        group = op.ranks if meets and len(op.ranks) < self.record.n else ()
        anybody = any(one.kind == "recv" and one.peer is None for one in ops)
        return Waiting(op.op, line, function, tuple(sorted(whom)), anybody, late, meets, group, op.group)

    @cached_property
    def _suffered(self) -> set[int]:
        """The ranks that raised since another one had, or was gone, and those that the lab freed."""
        if self.outcome is None:
            return set()
        return set(text.root_cause(self.outcome)[1]) - set(self.outcome.dead)

    def _instead(self, rank: int) -> Instead:
        """Return what a rank did that does not wait."""
        outcome = self.outcome
        if outcome and rank in outcome.elsewhere:
            instead = outcome.elsewhere[rank]
            left = self._left(rank) if instead == Instead(Did.FINISHED, without=True) else None
            return Instead(Did.LEFT, call=Waiting(left.op, left.line, left.function)) if left else instead
        if outcome and rank in outcome.dead:
            return Instead(Did.DIED, outcome.dead[rank])
        if outcome and rank in outcome.errors:
            return Instead(Did.RAISED, outcome.errors[rank].ename)
        if rank in self._absent:
            return Instead(Did.NEVER_RAN)
        return Instead(Did.FINISHED if outcome or self.record.logs[rank].ended is not None else Did.COMPUTES)

    def _left(self, rank: int) -> Op | None:
        """Find the collective that a rank has been in, and left, while others wait in it: their lengths may differ."""
        theirs = {
            (op.within, op.nth) for r in self.waiting for op in _unfinished(self.record, r) if op.kind == "collective"
        }
        mine = (op for op in self.record.ops[rank] if op.kind == "collective" and not op.error)
        return next((op for op in mine if (op.within, op.nth) in theirs), None)

    def _longest(self) -> None:
        """Tell of the moment before the longest wait ended: who waited then, and what the others did."""
        if not self.record.waits:
            return
        longest = self.record.waits[0]
        self.long, moment = longest.seconds, longest.until
        for r in range(self.record.n):
            mine = [w for w in self.record.waits if w.op.rank == r and w.start < moment <= w.until]
            if mine:
                self.waiting[r] = self._of([mine[0].op], {w.for_ for w in mine})
                self.instead.pop(r, None)
            elif r not in self._absent:
                self.instead[r] = self._doing(r, moment)

    def _doing(self, rank: int, moment: float) -> Instead:
        """Return what a rank did then that did not wait."""
        ops, ended = self.record.ops[rank], self.record.logs[rank].ended
        inside = [op for op in ops if op.entered < moment <= (op.ended or op.left or op.entered)]
        if inside:
            return Instead(Did.INSIDE, call=self._of(inside[-1:], ()))
        if ended is not None and ended < moment:
            return Instead(Did.FINISHED)
        return Instead(Did.NOT_YET if any(op.entered >= moment for op in ops) else Did.COMPUTED)

    # -- how long, and what was left ----------------------------------------------------------------------------------

    def _seconds(self, rank: int) -> float | None:
        """Return for how long a rank had waited, or computed, when the lab looked."""
        plain, outcome = self._logs[rank], self.outcome
        if not plain or outcome is None or not outcome.at or rank in outcome.dead:
            return None
        raw = Log.of(plain)  # times of the rank's own clock
        now = outcome.at + timestamps.apart(outcome.clock, raw.clock)
        if rank in self.waiting:
            within = {id(op) for op in self._within(rank)}
            mine = [op for op, read in zip(raw.ops, self.record.ops[rank], strict=True) if id(read) in within]
            began = [op.waited[0] if op.waited else op.entered for op in mine]
            now = min([now, *(end for op in mine if not op.witnessed and (end := op.ended) is not None)])
        elif self.instead[rank].did is Did.WENT_ON:
            began = [raw.began, *(end for op in raw.ops if (end := op.ended or op.left) is not None and end <= now)]
        else:
            return None
        return max(0.0, now - max(began)) if began else None

    def _within(self, rank: int) -> list[Op]:
        """Find the calls that a rank waits in; where it waits for handles and still runs, all that it may wait for."""
        w = self.waiting.get(rank)
        if w is not None and w.seen and self.outcome is not None:
            return self._enqueued(rank, self.outcome.waiting[rank].line)
        ops = _unfinished(self.record, rank)
        if ops or w is None:
            return ops
        return [op for op in self.record.ops[rank] if self._is_open(op)] if w.handle else self._noted(rank)

    @cached_property
    def handles(self) -> list[tuple[int, Waiting]]:
        """Calls whose handle a rank did not wait for, and who never came to them: all where the cell ended well.

        Else those that have to do with the hang: they could not be done, or are collectives that a rank has called
        before the one that it waits in.
        """
        found = []
        for r, ops in enumerate(self.record.ops):
            within = {id(op) for op in self._within(r)}
            met = {op.within for op in ops if id(op) in within and op.kind == "collective"}
            for op in ops:
                if not op.asynchronous or op.waited or op.enqueued or id(op) in within:
                    continue
                never = self._is_open(op)
                if never or not self.cut or (op.kind == "collective" and op.within in met):
                    missing = tuple(sorted(self._whom(op))) if never else ()
                    found.append((r, Waiting(op.op, op.line, op.function, missing)))
        return [(r, call) for r, call in found if r not in self.waiting or self.waiting[r].call != "backward"]

    # -- what the record says of one call -----------------------------------------------------------------------------

    @cached_property
    def _came(self) -> dict[tuple[tuple[int, ...], str, int], dict[int, str]]:
        """The ranks that came to each collective, and the names that they called it by."""
        return {(m.ranks, m.group, m.nth): {o.rank: o.op for o in m.ops} for m in self.record.meetings}

    @cached_property
    def _alone(self) -> set[int]:
        """Sends that no receive took, and receives that no send came to."""
        return {id(m.send or m.recv) for m in self.record.messages if m.send is None or m.recv is None}

    def _whom(self, op: Op) -> set[int]:
        """Find for whom an unfinished call waits: its peer, or those of a collective that did not come to it."""
        if op.kind != "collective":
            return set() if op.peer is None else {op.peer}
        came = self._came[*op.within, op.nth]
        needs = op.primitive.needs(op.rank, op.peer, op.ranks) if op.primitive else set(op.ranks) - {op.rank}
        absent = set(op.ranks) - set(came)
        return absent & needs or absent or {r for r, called in came.items() if called != op.op}

    def _is_open(self, op: Op) -> bool:
        """Tell whether an asynchronous call cannot have been done, because another rank did not take its part."""
        if not op.asynchronous or op.waited or op.there is not None:
            return False
        return bool(self._whom(op)) if op.kind == "collective" else id(op) in self._alone


def _unfinished(record: Record, rank: int) -> list[Op]:
    """Find the last call of a rank that did not end well; several where one `.wait()` is for all of them."""
    ops = [op for op in record.ops[rank] if op.error or op.left is None]
    return [op for op in ops if op is ops[-1] or (op.waited is not None and op.waited == ops[-1].waited)]


def _late(op: Op) -> bool:
    """Tell whether a rank waits for the call's handle, not in the call, where NCCL sets up a way to the other rank."""
    return bool(op.waited or (op.asynchronous and op.left is not None and not op.error))
