"""Find when a ring ends in which no two ranks share a link: longest paths, in place of running each event.

100,000 ranks in a ring would send 20,000,000,000 messages. But where every link has one sender, nothing is decided in
a queue: each moment is the largest of a few sums of earlier ones. With P(q, k) the moment at which rank q posts its
message of round k, X(q, k) that at which it begins on its link, a latency αq and a time sq on the link of q → q+1,

    P(q, k) = max(ready q, X(q-1, k-1) + s(q-1)),    X(q, k) = max(P(q, k) + αq, X(q, k-1) + sq),

and rank q+1 has it at X(q, k) + sq. Unrolled, the last arrival at a rank is the longest of all chains that begin with
the beginning of the rank m before it, hop over the m links between, and wait K - m times for the slowest of these
links. The longest is found for all ranks at once. It is the same moment that the engine finds event by event, up to
rounding. A test holds the two, and a plain event loop, against each other. Imports neither torch nor a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbook.tools.events.fabric import Numbers


@dataclass(frozen=True)
class Chained:
    """When each rank has its last message, and how many links the chain that it waited for has passed.

    The chain begins `hops[r]` ranks before rank r, 0 where it has waited for no other rank, and waits `rounds - hops`
    times for the slowest link that it has passed.
    """

    finish: Numbers
    hops: Numbers


def small_rings(ready: Numbers, free: Numbers, latency: float, takes: float, rounds: int) -> tuple[Chained, Numbers]:
    """Run rings of equal links side by side, one a row of `ready`, by rounds; `free` is when each link can begin.

    Return also when each link is free again.
    """
    post, hops = ready.copy(), np.zeros(ready.shape, int)
    begun = np.zeros(ready.shape, int)  # hops of the chain that each link waits for
    for _ in range(rounds):
        held = post + latency < free
        begun = np.where(held, begun, hops)
        free = np.where(held, free, post + latency) + takes
        came, passed = np.roll(free, 1, axis=1), np.roll(begun, 1, axis=1) + 1
        later = came > post
        post, hops = np.where(later, came, post), np.where(later, passed, hops)
    return Chained(post, hops), free


def ring(ready: Numbers, latency: Numbers, takes: Numbers, rounds: int) -> Chained:
    """Run one ring of any length; `latency[q]` and `takes[q]` are of the link from rank q.

    They repeat with their length. The length of `latency` divides that of `ready`.

    >>> ring(np.array([0.0, 5.0, 0.0, 0.0]), np.array([1.0]), np.array([2.0]), rounds=6).finish.tolist()
    [20.0, 21.0, 22.0, 23.0]
    """
    n, period = len(ready), len(latency)
    if n == 1:
        return Chained(ready.copy(), np.zeros(n, int))
    finish, hops, ranks = ready.copy(), np.zeros(n, int), np.arange(n)
    slowest, passed = np.zeros(n), np.zeros(n)
    for m in range(1, min(period, rounds + 1)):  # chains that have not passed a link of every kind
        edge = (ranks - m) % period
        slowest, passed = np.maximum(slowest, takes[edge]), passed + latency[edge] + takes[edge]
        came = ready[(ranks - m) % n] + passed + (rounds - m) * slowest
        later = came > finish
        finish[later], hops[later] = came[later], m
    if rounds >= period:  # all others wait for the slowest kind of all
        least = float(takes.max())
        laps = -(-rounds // n)
        weight = np.concatenate([[0.0], np.cumsum(latency + takes - least)])
        place = np.arange((laps + 1) * n)
        along = weight[place % period] + place // period * weight[-1]
        value = np.tile(ready, laps + 1) - along
        best, where = _sliding(value, rounds - period + 1)  # of the window that begins here
        first = laps * n + ranks - rounds
        came = best[first] + along[laps * n + ranks] + rounds * least
        later = came > finish
        finish[later], hops[later] = came[later], (laps * n + ranks - where[first])[later]
    return Chained(finish, hops)


def _sliding(values: Numbers, width: int) -> tuple[Numbers, Numbers]:
    """Find the largest of each `width` values in a row, and where: van Herk's two running maxima over blocks."""
    blocks = -(-len(values) // width) + 1
    padded = np.full(blocks * width, -np.inf)
    padded[: len(values)] = values
    table = padded.reshape(blocks, width)
    after, after_at = _running(table)
    before, before_at = _running(table[:, ::-1])
    before, before_at = before[:, ::-1], width - 1 - before_at[:, ::-1]
    base = np.arange(blocks)[:, None] * width
    after, before = after.ravel(), before.ravel()
    after_at, before_at = (base + after_at).ravel(), (base + before_at).ravel()
    begins = np.arange(len(values) - width + 1)
    ends = begins + width - 1
    left = before[begins] >= after[ends]
    return np.where(left, before[begins], after[ends]), np.where(left, before_at[begins], after_at[ends])


def _running(table: Numbers) -> tuple[Numbers, Numbers]:
    """Return the running maximum along the rows, and the column that it comes from."""
    most = np.maximum.accumulate(table, axis=1)
    fresh = np.concatenate([np.ones((len(table), 1), bool), most[:, 1:] > most[:, :-1]], axis=1)
    return most, np.maximum.accumulate(np.where(fresh, np.arange(table.shape[1]), 0), axis=1)
