"""Run every message of a schedule through the queues of its links: discrete events, in batches. No torch, no cluster.

The model. A rank posts the sends of its step k once it has received all that the steps before k bring it; sending does
not hold it up. After its latency a message comes to its first link. A link serves one message at a time, in order of
arrival, for bytes / rate; from the moment at which a message begins on one link it may begin on the next one (it cuts
through; switches have room for what waits there). So a message alone takes α + bytes/B, and what shares a link waits.
First come, first served is chosen because it needs no more than the order of arrival at each link. With fair
sharing every rate would depend on all messages under way. Equal messages that share one link end together there at the
moment at which the last one ends here.

The events are real ones, and all of them run, in batches. That is exact: a message that comes to a link at the moment t
arrives no sooner than t and its bytes' time, and what its arrival makes a rank send comes to a link no sooner than a
latency later. So all events before the least of these moments are known (the time windows of conservative parallel
simulation), and numpy takes them at once, link by link in the order of arrival. Equal arrivals are served by the number
of the message: its step, then its slot, then its rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools.events.fabric import Fabric, Numbers
from workbook.tools.events.program import Program

Pool = list[tuple[Numbers, Numbers]]  # (moments, messages)
NEAR = 8192  # events that a window looks at, about
AHEAD = 8  # steps that a rank is looked through at once: it seldom takes more in one window
MOST = 4_000_000  # messages: more would take long, and gigabytes


@dataclass(frozen=True)
class Chain:
    """What a rank has waited for, back to the beginning of rank `origin`: seconds by kind.

    The rank's end is `ready[origin]` and the sum of the four.
    """

    origin: int
    latency: float
    inside: float
    across: float
    queued: float


@dataclass(frozen=True)
class Played:
    """When each rank has all that it should receive, `finish[r]`; `chain(r)` says what it waited for."""

    finish: Numbers
    messages: int
    chain: Callable[[int], Chain]


def play(
    program: Program, fabric: Fabric, where: Numbers, n: int, ready: Numbers, nbytes: float, copies: int = 1
) -> Played:
    """Run a program on a fabric of n ranks, of which `where[e]` is the program's rank e.

    With `copies` the program is for units of so many ranks each, and rank i of a unit sends to rank i of another one:
    `where[unit · copies + i]`. `ready[e]` is when a rank begins, in seconds. Raises `LabError` for too many messages.
    """
    if (many := program.messages * copies) > MOST:
        raise LabError(
            f"{program.name} on {program.n:,} ranks has {many:,} messages, and {MOST:,} can be run. Take fewer ranks, "
            "or an algorithm with fewer steps."
        )
    run = _Run(program, fabric, np.asarray(where), n, np.asarray(ready, float), nbytes, copies)
    run.begin()
    while any(run.near) or any(run.far):
        run.window()
    return Played(run.now, len(run.by), run.chain)


class _Run:
    """What is under way: the clocks of links and ranks, and the messages that come to each stage."""

    def __init__(
        self, program: Program, fabric: Fabric, where: Numbers, n: int, ready: Numbers, nbytes: float, copies: int
    ) -> None:
        self.fabric, self.where, self.n, self.copies = fabric, where, n, copies
        self.ready, self.now = ready, ready.copy()
        self.steps, ranks = program.dst.shape[0], len(ready)
        step, slot, unit = np.nonzero(program.dst >= 0)
        self.index = np.full((self.steps + 1, *program.dst.shape[1:]), -1, np.int32)  # nothing is sent after the last
        self.index[step, slot, unit] = np.arange(len(step))
        self.src, self.step = unit, step
        self.dst = program.dst[step, slot, unit].astype(np.int64)
        size = np.broadcast_to(program.share, program.dst.shape)[step, slot, unit] * nbytes
        copy = np.tile(np.arange(copies), len(step))
        self.to = np.repeat(self.dst, copies) * copies + copy
        paths = fabric.paths(self.where[np.repeat(self.src, copies) * copies + copy], self.where[self.to], n)
        self.links, self.latency, self.inside = paths.links.astype(np.int32), paths.latency, paths.inside
        self.takes = np.repeat(size, copies) / paths.rate
        self.wait, self.by = np.zeros(len(self.to)), np.full(len(self.to), -1, np.int32)
        counts = np.bincount(step * program.n + self.dst, minlength=self.steps * program.n)
        self.ahead = np.arange(AHEAD)
        never = np.ones(AHEAD * ranks, np.int16)  # steps after the last one, in which something is always missing
        # Of rank e's messages in step k: left[k · ranks + e].
        self.left = np.concatenate([np.repeat(counts.astype(np.int16), copies), never])
        self.came = np.full(len(self.left), -np.inf)
        self.cause = np.full(len(self.left), -1, np.int32)
        self.at, self.why = np.zeros(ranks, np.int64), np.full(ranks, -1, np.int32)
        self.free, self.mark = np.zeros(paths.count), np.zeros(ranks, np.int64)
        self.near: list[Pool] = [[], [], [], []]  # by stage, what comes to it before the horizon
        self.far: list[Pool] = [[], [], [], []]
        self.horizon = -inf
        self.lookahead = float(self.latency.min()) if len(self.to) else inf
        self.direct = fabric.nics == fabric.gpus  # no other rank uses the first link: its order is that of the posts

    def window(self) -> None:
        """Handle all events that nothing still to come can precede."""
        if not any(self.near):
            self.refill()
        until = self.horizon
        for stage, pool in enumerate(self.near):
            if len(pool) > 1:
                self.near[stage] = pool = [_joined(pool)]
            if pool:
                times, ids = pool[0]
                until = min(until, float((times + self.takes[ids]).min()) + self.lookahead)
        for stage in range(4):
            if self.near[stage]:
                times, ids = self.take(stage, until)
                if len(ids):
                    self.serve(stage, times, ids)

    def take(self, stage: int, until: float) -> tuple[Numbers, Numbers]:
        """Take out the messages that come to a stage before a moment."""
        times, ids = _joined(self.near[stage])
        before = times < until
        now, later = before.nonzero()[0], (~before).nonzero()[0]
        self.near[stage] = [(times[later], ids[later])] if len(later) else []
        return times[now], ids[now]

    def refill(self) -> None:
        """Move the earliest of what is far to what is near, so that a window need not look at all."""
        pools = [_joined(pool) if pool else None for pool in self.far]
        every = np.concatenate([pool[0] for pool in pools if pool])
        self.horizon = inf if len(every) <= NEAR else float(np.partition(every, NEAR)[NEAR])
        self.horizon = max(self.horizon, float(every.min()) + self.lookahead)
        self.far = [[], [], [], []]
        for stage, pool in enumerate(pools):
            if pool:
                self.put(stage, *pool)

    def serve(self, stage: int, times: Numbers, ids: Numbers) -> None:
        """Serve messages at their links of a stage, first come, first served, and pass them on to the next stage."""
        link = self.links[stage, ids]
        order = np.lexsort((ids, times, link))
        link, times, ids = link[order], times[order], ids[order]
        begins, ends = self.queue(link, times, self.takes[ids])
        self.wait[ids] += begins - times
        if stage == 3:
            self.arrive(ids, ends)
        elif stage == 0:
            up = self.links[1, ids] >= 0
            self.put(1, begins[up], ids[up])
            self.put(3, begins[~up], ids[~up])
        else:
            self.put(stage + 1, begins, ids)

    def queue(self, link: Numbers, times: Numbers, takes: Numbers) -> tuple[Numbers, Numbers]:
        """Return when each message begins and ends on its link; they are in order of their links, then turns."""
        begins: Numbers = np.maximum(times, self.free[link])
        followed = np.zeros(len(link), bool)  # by one on the same link; the last one is not
        np.equal(link[1:], link[:-1], out=followed[:-1])
        at = followed.nonzero()[0]
        at = at[~followed[at - 1]]  # the first of each queue, then the second of each, …
        while len(at):
            ends = begins[at] + takes[at]
            at = at + 1
            begins[at] = np.maximum(times[at], ends)
            at = at[followed[at]]
        ends = begins + takes
        self.free[link] = ends  # the last one's stays
        return begins, ends

    def put(self, stage: int, times: Numbers, ids: Numbers) -> None:
        if not len(ids):
            return
        if times.max() < self.horizon:
            self.near[stage].append((times, ids))
            return
        late = times >= self.horizon
        self.far[stage].append((times[late], ids[late]))
        if not late.all():
            self.near[stage].append((times[~late], ids[~late]))

    def arrive(self, ids: Numbers, times: Numbers) -> None:
        """Let ranks receive messages, and post what these have held up."""
        rank = self.to[ids]
        slot = self.step[ids // self.copies] * len(self.now) + rank
        np.subtract.at(self.left, slot, np.int16(1))  # of the same type, or it takes ten times as long
        np.maximum.at(self.came, slot, times)
        latest = times == self.came[slot]
        self.cause[slot[latest]] = ids[latest]
        rank = rank[self.left[self.at[rank] * len(self.now) + rank] == 0]
        places = np.arange(len(rank))  # each rank once, where several messages have come to it
        self.mark[rank] = places
        self.advance(rank[self.mark[rank] == places])

    def advance(self, ranks: Numbers) -> None:
        """Take ranks on to the first step in which something is still missing, posting what lies between."""
        while len(ranks):
            step = self.at[ranks][:, None] + self.ahead
            slot = step * len(self.now) + ranks[:, None]
            done = np.logical_and.accumulate(self.left[slot] == 0, axis=1)
            now = np.empty((len(ranks), 1 + AHEAD))  # column k: after k of these steps
            now[:, 0], now[:, 1:] = self.now[ranks], np.where(done, self.came[slot], -inf)
            np.maximum.accumulate(now, axis=1, out=now)
            why = np.empty(now.shape, np.int32)
            why[:, 0], why[:, 1:] = self.why[ranks], self.cause[slot]
            latest = np.maximum.accumulate((now[:, 1:] > now[:, :-1]) * (1 + self.ahead), axis=1)
            why[:, 1:] = why[np.arange(len(ranks))[:, None], latest]
            passed = done.sum(axis=1)
            self.at[ranks] += passed
            self.now[ranks], self.why[ranks] = now[:, -1], why[:, -1]
            row, k = done.nonzero()
            self._send(ranks[row], step[row, k] + 1, now[row, k + 1], why[row, k + 1])
            ranks = ranks[passed == AHEAD]

    def begin(self) -> None:
        """Let all ranks post what they send first."""
        ranks = np.arange(len(self.now))
        if self.steps:
            self._send(ranks, self.at[ranks], self.now[ranks], self.why[ranks])
            self.advance(ranks)

    def _send(self, ranks: Numbers, step: Numbers, now: Numbers, why: Numbers) -> None:
        """Post what ranks send in a step, at a moment and because of a message; each may be there with several."""
        unit, copy = np.divmod(ranks, self.copies)
        found = self.index[step, :, unit]
        row, slot = (found >= 0).nonzero()
        if not len(row):
            return
        ids = found[row, slot].astype(np.int64) * self.copies + copy[row]
        self.by[ids] = why[row]
        times = now[row] + self.latency[ids]
        if self.direct:
            self.serve(0, times, ids)
        else:
            self.put(0, times, ids)

    def chain(self, rank: int) -> Chain:
        """Follow the message that a rank received last, the one that its sender received last before it, and so on."""
        at, origin, passed = int(self.why[rank]), rank, []
        while at >= 0:
            passed.append(at)
            origin = int(self.src[at // self.copies]) * self.copies + at % self.copies
            at = int(self.by[at])
        ids = np.array(passed, np.int64)
        inside, takes = self.inside[ids], self.takes[ids]
        latency, wait = float(self.latency[ids].sum()), float(self.wait[ids].sum())
        return Chain(origin, latency, float(takes[inside].sum()), float(takes[~inside].sum()), wait)


def _joined(pool: Pool) -> tuple[Numbers, Numbers]:
    if len(pool) == 1:
        return pool[0]
    times, ids = zip(*pool, strict=True)
    return np.concatenate(times), np.concatenate(ids)
