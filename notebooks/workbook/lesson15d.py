"""Exercises of lesson 15d: one link's queue, an all-reduce over hosts, the slowest of many, checkpoints, the spine."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from labkit.grading.promises import Calls
from labkit.theory.formulas import figures
from workbook.tools.events import slowest

if TYPE_CHECKING:
    from labkit.rank.seen import torch


# -- one link's queue -------------------------------------------------------------------------------------------------


def _served(xs: Sequence[Any]) -> list[Any]:
    found = []
    for arrives, takes in xs:
        ends, free = np.zeros(len(arrives)), 0.0
        for i in np.argsort(arrives, kind="stable"):
            free = max(free, float(arrives[i])) + float(takes[i])
            ends[i] = free
        found.append(ends)
    return found


def _queues(n: int) -> list[Case]:
    rng = np.random.default_rng([n, 15])

    def drawn(size: int, span: float) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(np.round(rng.uniform(0, span, size), 1), np.round(rng.uniform(1, 9, size), 1)) for _ in range(n)]

    together = [(np.zeros(3), np.full(3, 10.0 + r)) for r in range(n)]
    gap = [(np.array([0.0, 3.0, 100.0 + r, 101.0]), np.full(4, 10.0)) for r in range(n)]
    mixed = [(np.array([30.0, 0.0, 5.0 + r]), np.array([10.0, 4.0, 50.0])) for r in range(n)]
    return [
        Case(together, "three messages at once"),
        Case(gap, "a link that stands idle for a while"),
        Case(mixed, "the first in the list does not come first"),
        Case(drawn(12, 40), "a crowd"),
        Case(drawn(12, 400), "now and then one"),
        Case([(np.zeros(0), np.zeros(0)) for _ in range(n)], "no message"),
    ]


@exercise(
    "One link, first come, first served",
    _served,
    minutes=8,
    inputs=_queues,
    tolerance=1e-9,
    counts_memory=False,
    promises=(Calls(0),),
)
def served(arrives, takes):
    """Return the moment at which each message has passed the link.

    Messages come to a link at the moments `arrives`, in any order, and the i-th of them keeps it busy for `takes[i]`
    seconds; both are float64 tensors of the same length, which may be 0. The link serves **one message at a time, in
    the order of their arrival**; of two that come at the same moment, the one that is first in the list. Return a
    float64 tensor: the moment at which each message has passed, in the order of the **list**. Every rank has a queue of
    its own. Communicate nothing.
    Hint: Keep one number: the moment from which on the link is free.
    Hint: A message begins when it is there **and** the link is free: `max(free, arrives[i])`.
    Hint: Go through `arrives.argsort(stable=True)`, and write the end to place i, not to the next place.
    Afterwards: This rule is all that an event does in the simulation. It is applied to all links at once: the first
    message of each queue, then the second of each, and so on.
    """
    ends, free = torch.zeros_like(arrives), 0.0
    for i in arrives.argsort(stable=True).tolist():
        free = max(free, arrives[i].item()) + takes[i].item()
        ends[i] = free
    return ends


# -- an all-reduce over hosts -----------------------------------------------------------------------------------------


def _hierarchical(
    xs: Sequence[Any], nbytes: float, hosts: int, gpus: int, near: float, nvlink: float, far: float, nic: float
) -> list[float]:
    inside = figures("all_reduce", "ring", gpus).seconds(near, nbytes / nvlink)
    return [float(inside + figures("all_reduce", "ring", hosts).seconds(far, nbytes / gpus / nic))] * len(xs)


def _clusters(n: int) -> list[Case]:
    def case(about: str, nbytes: float, hosts: int, gpus: int, **more: float) -> Case:
        links = {"near": 3e-6, "nvlink": 400e9, "far": 14e-6, "nic": 50e9} | more
        return Case([()] * n, about, {"nbytes": nbytes, "hosts": hosts, "gpus": gpus} | links)

    return [
        case("one host: the rings inside it, alone", 1e9, 1, 8),
        case("hosts of one GPU: the ring between hosts, alone", 1e9, 5, 1),
        case("two hosts of 4: all three parts", 1e9, 2, 4),
        case("12,500 hosts of 8", 1e9, 12_500, 8),
        case("8 bytes: latency alone", 8.0, 100, 8),
        case("free latency: bytes alone", 1e9, 16, 8, near=0.0, far=0.0),
    ]


@exercise(
    "How long does a hierarchical all-reduce take?",
    _hierarchical,
    minutes=8,
    difficulty=2,
    inputs=_clusters,
    tolerance=1e-9,
    counts_memory=False,
    promises=(Calls(0),),
)
def hierarchical_seconds(nbytes, hosts, gpus, near, nvlink, far, nic):
    """Return the seconds that a hierarchical all-reduce takes.

    `hosts` hosts of `gpus` ranks all-reduce `nbytes` bytes in three parts, one after the other: a reduce-scatter round
    a ring in each host; then each rank all-reduces its part round a ring with the ranks of the same place in the other
    hosts; then an all-gather round a ring in each host. A message inside a host takes `near` seconds and its bytes /
    `nvlink`, one between hosts `far` seconds and its bytes / `nic`. Every rank has a NIC of its own and all begin
    together. Return the seconds that it takes, a float.
    Hint: A ring of k ranks on a buffer of B bytes: k - 1 rounds of B / k bytes for a reduce-scatter, as many for an
    all-gather, and both for an all-reduce.
    Hint: In a host the ring has `gpus` ranks and the buffer `nbytes`. Between hosts it has `hosts` ranks; what is the
    buffer there?
    Hint: Between hosts: 2 (hosts - 1) rounds of `nbytes / gpus / hosts` bytes.
    Afterwards: 2 (hosts - 1) latencies are cheap for 16 hosts and dear for 12,500. The bytes between hosts hardly
    change: 2 S / gpus / nic, whatever the number of hosts.
    """
    part = nbytes / gpus
    inside = 2 * (gpus - 1) * (near + part / nvlink)
    between = 2 * (hosts - 1) * (far + part / hosts / nic)
    return inside + between


# -- the wait for the slowest -----------------------------------------------------------------------------------------


def _wait(xs: Sequence[Any], hiccup: float, ranks: int) -> list[float]:
    return [hiccup * (slowest.harmonic(ranks) - 1)] * len(xs)


def _jobs(n: int) -> list[Case]:
    asked = [("one rank waits for nobody", 1.0, 1), ("two ranks", 0.02, 2), ("10 ranks", 3.0, 10)]
    asked += [("1,000 ranks", 0.02, 1000), ("100,000 ranks", 0.02, 100_000), ("no hiccups", 0.0, 64)]
    return [Case([()] * n, about, {"hiccup": hiccup, "ranks": ranks}) for about, hiccup, ranks in asked]


@exercise(
    "How long does an average rank wait for the slowest?",
    _wait,
    minutes=4,
    inputs=_jobs,
    tolerance=1e-9,
    counts_memory=False,
    promises=(Calls(0),),
)
def expected_wait(hiccup, ranks):
    """Return the seconds that a rank waits for the slowest, on average.

    In every step each of `ranks` ranks computes for the same time, and then has a hiccup, exponentially distributed, of
    `hiccup` seconds on average, independently of the others. Nobody goes on before the slowest is done. Return how long
    **a rank waits on average**, in seconds, to full precision: no drawing, no logarithm. The slowest of N such hiccups
    takes, on average, one hiccup times 1 + 1/2 + … + 1/N.
    Hint: A rank is done, on average, after one hiccup. The slowest is done after 1 + 1/2 + … + 1/N of them.
    Hint: The difference of the two is what is asked for.
    Afterwards: At 100,000 ranks this is 11.1 hiccups, at 1,000 ranks 6.5. A hundred times as many ranks cost 4.6
    hiccups more, the logarithm of 100.
    """
    return hiccup * sum(1 / k for k in range(2, ranks + 1))


# -- checkpoints ------------------------------------------------------------------------------------------------------


def _every(xs: Sequence[Any], mtbf: float, ranks: int, save: float, step: float) -> list[int]:
    return [max(1, round(sqrt(2 * save * mtbf / ranks) / step))] * len(xs)


def _savers(n: int) -> list[Case]:
    hour, year = 3600.0, 8766 * 3600.0

    def case(about: str, mtbf: float, ranks: int, save: float, step: float) -> Case:
        return Case([()] * n, about, {"mtbf": mtbf, "ranks": ranks, "save": save, "step": step})

    return [
        case("16,384 ranks", 5 * year, 16_384, 60.0, 5.0),
        case("100,000 ranks", 5 * year, 100_000, 60.0, 5.0),
        case("one rank", 5 * year, 1, 60.0, 5.0),
        case("steps of two minutes", 5 * year, 100_000, 60.0, 120.0),
        case("a step longer than the best interval", 100 * hour, 10_000, 1.0, 60.0),
        case("saved in 5 s", 5 * year, 100_000, 5.0, 7.0),
    ]


@exercise(
    "How often should the job save?", _every, minutes=5, inputs=_savers, counts_memory=False, promises=(Calls(0),)
)
def steps_between_checkpoints(mtbf, ranks, save, step):
    """Return the number of training steps between two checkpoints.

    Each of `ranks` ranks fails after `mtbf` seconds on average, independently of the others, and one failure stops the
    job. Saving a checkpoint stops it for `save` seconds, and a training step takes `step` seconds. Between two
    checkpoints, √(2 · C · M) seconds of work waste the least (Young, Daly), C being what a checkpoint costs and M the
    mean time between failures **of the job**. Return the number of **steps** between two checkpoints, rounded to a
    whole number (`round`), 1 at least.
    Hint: 100,000 ranks of which each fails every five years: how often does **one of them** fail?
    Hint: M = `mtbf / ranks`; then √(2 · `save` · M) seconds, divided by `step`.
    Afterwards: Four times the ranks halve the interval. At 100,000 ranks that fail every five years it is about seven
    minutes with a checkpoint of a minute, and then a sixth of the time is lost to saving and to work done twice.
    """
    seconds = (2 * save * mtbf / ranks) ** 0.5
    return max(1, round(seconds / step))


# -- the order of the ring --------------------------------------------------------------------------------------------


def _over_spine(xs: Sequence[Any], leaf: int, nbytes: float) -> list[float]:
    found = []
    for order in xs:
        switch, n = np.asarray(order) // leaf, len(order)
        found.append(float(np.count_nonzero(switch != np.roll(switch, -1)) * 2 * (n - 1) / n * nbytes))
    return found


def _orders(n: int) -> list[Case]:
    rng = np.random.default_rng([n, 16])
    straight = [np.arange(8) for _ in range(n)]
    dealt = [np.arange(8).reshape(2, 4).T.ravel() for _ in range(n)]
    return [
        Case(straight, "in order, two switches", {"leaf": 4, "nbytes": 8.0}),
        Case(dealt, "dealt out in turns", {"leaf": 4, "nbytes": 8.0}),
        Case(
            [np.roll(np.arange(12), 5 + r) for r in range(n)],
            "in order, from the middle of a switch",
            {"leaf": 4, "nbytes": 24.0},
        ),
        Case([rng.permutation(48) for _ in range(n)], "by chance", {"leaf": 16, "nbytes": 1e6}),
        Case([np.arange(6) for _ in range(n)], "one switch", {"leaf": 32, "nbytes": 60.0}),
        Case([rng.permutation(10) for _ in range(n)], "one host a switch", {"leaf": 1, "nbytes": 100.0}),
    ]


@exercise(
    "What does the order of a ring send over the spine?",
    _over_spine,
    minutes=7,
    difficulty=2,
    inputs=_orders,
    tolerance=1e-9,
    counts_memory=False,
    promises=(Calls(0),),
)
def bytes_over_the_spine(order, leaf, nbytes):
    """Return the bytes that a ring all-reduce sends up to the spine.

    Hosts are numbered from 0, and every `leaf` hosts in a row share a leaf switch. `order` is a tensor: the hosts in
    the order in which a ring passes through them; after the last one comes the first. They all-reduce a buffer of
    `nbytes` bytes around this ring, one rank a host. Return, as a float, how many bytes go **up to the spine** in all,
    that is from a host to one below a different leaf switch. Every rank has an `order` of its own. Communicate nothing.
    Hint: The leaf switch of host h is `h // leaf`.
    Hint: Each host sends 2 S (n - 1) / n bytes, all of them to the next one in the ring.
    Hint: Count the places where `switch` differs from `switch.roll(-1)`.
    Afterwards: In order, a ring of n hosts crosses n / leaf times, and by chance nearly n times: with 32 hosts below a
    switch about 30 times as many bytes go over the spine.
    """
    switch, n = order // leaf, len(order)
    crossing = (switch != switch.roll(-1)).sum().item()
    return crossing * 2 * (n - 1) / n * nbytes
