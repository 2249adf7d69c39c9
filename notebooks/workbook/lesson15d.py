"""Exercises of lesson 15d: one link's queue, an all-reduce over hosts, the slowest of many, checkpoints, the spine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from labkit.grading.inputs import options
from labkit.grading.prediction import ask
from labkit.grading.promises import Calls

if TYPE_CHECKING:
    from labkit.rank.cell_names import torch


on_paper = partial(exercise, counts_memory=False, promises=(Calls(0),))


LINKS = (3e-6, 400e9, 14e-6, 50e9)  # latency and bandwidth inside a host, and between hosts


@on_paper(
    "How long does a hierarchical all-reduce take?",
    lambda xs, **numbers: [hierarchical_seconds(**numbers)] * len(xs),
    minutes=8,
    difficulty=2,
    inputs=options(
        "nbytes hosts gpus near nvlink far nic",
        ("one host: the rings inside it, alone", 1e9, 1, 8, *LINKS),
        ("hosts of one GPU: the ring between hosts, alone", 1e9, 5, 1, *LINKS),
        ("two hosts of 4: all three parts", 1e9, 2, 4, *LINKS),
        ("12,500 hosts of 8", 1e9, 12_500, 8, *LINKS),
        ("8 bytes: latency alone", 8.0, 100, 8, *LINKS),
        ("free latency: bytes alone", 1e9, 16, 8, 0.0, 400e9, 0.0, 50e9),
    ),
    tolerance=1e-9,
)
def hierarchical_seconds(nbytes, hosts, gpus, near, nvlink, far, nic):
    """Return the seconds that a hierarchical all-reduce takes.

    `hosts` hosts of `gpus` ranks all-reduce `nbytes` bytes in three parts, one after the other: a reduce-scatter round
    a ring in each host; then each rank all-reduces its part round a ring with the ranks in the same place of the other
    hosts; then an all-gather round a ring in each host. A message inside a host takes `near` seconds and its bytes /
    `nvlink`, one between hosts `far` seconds and its bytes / `nic`. Every rank has a NIC of its own and all begin
    together. Return the seconds that it takes, a float.
    Hint: A ring of k ranks on a buffer of B bytes: k - 1 rounds of B / k bytes for a reduce-scatter, as many for an
    all-gather, and both for an all-reduce.
    Hint: In a host the ring has `gpus` ranks and the buffer `nbytes`. Between hosts it has `hosts` ranks; what is the
    buffer there?
    Hint: Between hosts: 2 (hosts - 1) rounds of `nbytes / gpus / hosts` bytes.
    Afterwards: 2 (hosts - 1) latencies are little for 16 hosts and a lot for 12,500. The bytes between hosts hardly
    change: 2 S / gpus / nic, whatever the number of hosts.
    """
    part = nbytes / gpus
    inside = 2 * (gpus - 1) * (near + part / nvlink)
    between = 2 * (hosts - 1) * (far + part / hosts / nic)
    return inside + between


YEAR = 8766 * 3600.0  # in seconds


@on_paper(
    "How often should the job save?",
    lambda xs, **numbers: [steps_between_checkpoints(**numbers)] * len(xs),
    minutes=5,
    inputs=options(
        "mtbf ranks save step",
        ("16,384 ranks", 5 * YEAR, 16_384, 60.0, 5.0),
        ("100,000 ranks", 5 * YEAR, 100_000, 60.0, 5.0),
        ("one rank", 5 * YEAR, 1, 60.0, 5.0),
        ("steps of two minutes", 5 * YEAR, 100_000, 60.0, 120.0),
        ("a step longer than the best interval", 100 * 3600.0, 10_000, 1.0, 60.0),
        ("saved in 5 s", 5 * YEAR, 100_000, 5.0, 7.0),
    ),
)
def steps_between_checkpoints(mtbf, ranks, save, step):
    """Return the number of training steps between two checkpoints.

    Each of `ranks` ranks fails after `mtbf` seconds on average, independently of the others, and one failure stops the
    job. Saving a checkpoint stops it for `save` seconds, and a training step takes `step` seconds. Between two
    checkpoints, √(2 · C · M) seconds of work waste the least (Young, Daly), C being what a checkpoint costs and M the
    mean time between failures **of the job**. Return the number of **steps** between two checkpoints, rounded to a
    whole number (`round`), 1 at least.
    Hint: Each of 100,000 ranks fails every five years. How often does **any** of them fail?
    Hint: M = `mtbf / ranks`; then √(2 · `save` · M) seconds, divided by `step`.
    Afterwards: Four times the ranks halve the interval. At 100,000 ranks that fail every five years it is about seven
    minutes with a checkpoint of a minute, and then a sixth of the time is lost to saving and to work done twice.
    """
    seconds = (2 * save * mtbf / ranks) ** 0.5
    return max(1, round(seconds / step))


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


@on_paper("One link, first come, first served", _served, minutes=8, inputs=_queues, tolerance=1e-9)
def served(arrives, takes):
    """Return the moment at which each message has passed the link.

    Messages come to a link at the moments `arrives`, in any order, and the i-th of them keeps it busy for `takes[i]`
    seconds; both are float64 tensors of the same length, which may be 0. The link serves **one message at a time, in
    the order of their arrival**; of two that come at the same moment, the one that is first in the list goes first.
    Return a float64 tensor: the moment at which each message has passed, in the order of the **list**. Every rank has a
    queue of its own. Communicate nothing.
    Hint: Keep one number: the moment from which the link is free.
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


@on_paper(
    "How long does an average rank wait for the slowest?",
    lambda xs, **numbers: [expected_wait(**numbers)] * len(xs),
    minutes=4,
    inputs=options(
        "hiccup ranks",
        ("one rank waits for no other", 1.0, 1),
        ("two ranks", 0.02, 2),
        ("10 ranks", 3.0, 10),
        ("1,000 ranks", 0.02, 1000),
        ("100,000 ranks", 0.02, 100_000),
        ("no hiccups", 0.0, 64),
    ),
    tolerance=1e-9,
)
def expected_wait(hiccup, ranks):
    """Return the seconds that a rank waits for the slowest, on average.

    In every step each of `ranks` ranks computes for the same time, and then has a hiccup, exponentially distributed, of
    `hiccup` seconds on average, independently of the others. No rank goes on before the slowest is done. Return how
    long **a rank waits on average**, in seconds, to full precision: no drawing, no logarithm. The slowest of N such
    hiccups takes, on average, one hiccup times 1 + 1/2 + … + 1/N.
    Hint: A rank is done, on average, after one hiccup. The slowest is done after 1 + 1/2 + … + 1/N of them.
    Hint: Return the difference of the two.
    Afterwards: With 100,000 ranks this is 11.1 hiccups, with 1,000 ranks 6.5. A hundred times as many ranks cost 4.6
    hiccups more, the logarithm of 100.
    """
    return hiccup * sum(1 / k for k in range(2, ranks + 1))


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
        Case([rng.permutation(48) for _ in range(n)], "in random order", {"leaf": 16, "nbytes": 1e6}),
        Case([np.arange(6) for _ in range(n)], "one switch", {"leaf": 32, "nbytes": 60.0}),
        Case([rng.permutation(10) for _ in range(n)], "one host a switch", {"leaf": 1, "nbytes": 100.0}),
    ]


@on_paper(
    "What does the order of a ring send over the spine?",
    _over_spine,
    minutes=7,
    difficulty=2,
    inputs=_orders,
    tolerance=1e-9,
)
def bytes_over_the_spine(order, leaf, nbytes):
    """Return the bytes that a ring all-reduce sends up to the spine.

    Hosts are numbered from 0, and every `leaf` hosts in a row share a leaf switch. `order` is a tensor: the hosts in
    the order in which a ring passes through them; after the last one comes the first. They all-reduce a buffer of
    `nbytes` bytes around this ring, one rank per host. Return, as a float, how many bytes go **up to the spine** in
    all, that is from a host to one below a different leaf switch. Every rank has an `order` of its own. Communicate
    nothing.
    Hint: The leaf switch of host h is `h // leaf`.
    Hint: Each host sends 2 S (n - 1) / n bytes, all of them to the next host in the ring.
    Hint: Count the places where `switch` differs from `switch.roll(-1)`.
    Afterwards: In order, a ring of n hosts crosses n / leaf times, and in random order nearly n times: with 32 hosts
    below a switch, about 30 times as many bytes go over the spine.
    """
    switch, n = order // leaf, len(order)
    crossing = (switch != switch.roll(-1)).sum().item()
    return crossing * 2 * (n - 1) / n * nbytes


three_quarters_lost = ask("""
100,000 GPUs compute for 2 s per step, then all-reduce 14 GB of gradients round one long ring. The job saves every 30
minutes of work, which takes a minute. Each GPU fails once in 5.8 years, on average; noticing it and starting again
takes 10 minutes. The GPUs spend about a quarter of their time on computing that counts. What takes **most** of the
rest?
( ) the gradient's bytes
    > 14 GB sound like much, but N cancels out of the bytes: inside and between hosts together they take about 1 % of
    the time.
( ) the latency of the ring's 199,998 rounds
    > It is almost a second per step, and 12 % of the whole: a lot, but not most.
( ) waiting for the slowest GPU
    > It takes 2 % of the whole. The GPUs' times scatter by only 40 ms.
(x) failures: work that is lost, and starting again
Why: **Failures**: work done twice and starting again take more than half of the time. One GPU fails once in 5.8 years.
A hundred thousand of them fail so often that a job that saves every 30 minutes loses much of what it does.
""")

latency_of_the_hosts_ring = ask("""
A hierarchical all-reduce on 12,500 hosts of 8 GPUs: rings inside the hosts, then, on each rail, a ring through all
hosts, then rings inside the hosts again. A message between hosts has a latency of 14 µs. How much time do the latencies
**between hosts** take?
= 350 ms
( ) 175
    > This is one way round: the sums still have to be handed out.
( ) 2800
    > This is a ring through 100,000 ranks in which every round crosses a network.
( ) 0.392
    > These are 2 × 14 rounds, those of a tree. The question is about a ring.
Why: **350 ms**: 2 × 12,499 rounds × 14 µs. The flat ring had 2 × 99,999 rounds, most of them inside hosts, where a
message takes 3.4 µs: 945 ms. That is better, and still twice as long as the bytes take.
""")

four_at_once = ask("""
Four hosts below one leaf switch each send 10 GB to hosts below another one, at the same moment. A NIC and a link to the
spine carry 50 GB/s each. The switch is oversubscribed 4:1: it has **one** link up. First come, first served. When is
the **average** message through?
= 0.5 s
( ) 0.2
    > This is a message alone. Four of them share one link to the spine.
( ) 0.8
    > This is the last one, or all of them if they shared the link fairly.
Why: **0.5 s**: a message keeps the link busy for 0.2 s, so they are through after 0.2, 0.4, 0.6 and 0.8 s. If the four
shared the link fairly, all of them would be through after 0.8 s. The last one ends at the same moment either way, which
is what a collective waits for.
""")

order_of_the_hosts = ask("""
A smaller job: 256 hosts, 32 below a leaf switch, one link up for every four NICs. On each rail a ring passes through
the hosts in order, and the bytes between hosts take 70 ms. Then a scheduler hands you the same hosts **in random
order**. How long do these bytes take now, with their waiting in queues?
( ) 70 ms, as before
    > In order, 31 of 32 hosts send to a neighbour below the same switch. In random order nearly all of them send to a
    host below a different one, over the few links up.
( ) about 4 times as long
    > This would be true if the messages were spread evenly: four NICs to a link. They are not, and the busiest link
    decides.
(x) about 9 times as long
( ) about 32 times as long
    > There are 8 links up for the 32 hosts below a switch, on each rail, not one.
Why: **About 9 times.** Three to four messages share a link on average, and chance puts nine of them on the busiest one.
All rounds of a ring are alike, so it is the same link in every round, and the whole ring goes at its pace.
""")

bruck_or_pat = ask("""
Bruck's algorithm and PAT send the same number of bytes in the same number of rounds, to ranks 1, 2, 4, 8, … away. In
Bruck's all-gather the messages grow with the distance: S/2 goes to the rank that is farthest. In PAT it is the other
way round: S/2 goes to the next rank, and a single chunk goes far. On 100,000 GPUs, with leaf switches that are
oversubscribed 4:1, which one takes longer?
(x) Bruck's
( ) PAT
    > PAT's far messages are small: what has to share the spine is a single chunk in the farthest round.
( ) both take as long: same rounds, same bytes
    > This is right on a network that has as many links above the leaf switches as below. On an oversubscribed one it
    matters which bytes go far.
Why: **Bruck's**: its large messages go far, and queue for the spine. The formula α · rounds + β · bytes cannot tell the
two apart. That is why NCCL's PAT goes from far to near (arXiv 2506.20252).
""")

slowest_in_sigmas = ask("""
The times that GPUs need for a step scatter around 2 s with a standard deviation of 40 ms, normally distributed. The
slowest of 8 is on average 57 ms late, the slowest of 1,024 is 129 ms late. How late is the slowest of 100,000?
= 175 ms +- 12 %
( ) 12600
    > In proportion to the number of GPUs, all of them would have to wait for one another in turn.
( ) 444
    > This is an exponential tail, as in lesson 10. A normal one falls faster.
( ) 1270
    > This grows like √N. The maximum of normal times grows far more slowly.
Why: **175 ms**, 4.37 standard deviations. A hundred times as many GPUs add 1.1 standard deviations: the tail of a
normal distribution falls so fast that the maximum hardly grows. With an exponential tail of the same standard deviation
it grows like the logarithm of N: 444 ms.
""")

minutes_between_failures = ask("""
Published: Llama 3 405B was trained on 16,384 GPUs, and in 54 days there were 419 unexpected interruptions. The same
hardware, 100,000 GPUs: how long does the job run between two interruptions, on average?
= 30.4 minutes
( ) 186
    > This is the job of 16,384 GPUs. With more GPUs something fails more often.
( ) 1130
    > This is the wrong way round: more GPUs fail more often, not less.
( ) 0.507
    > This is in hours. The question asks for minutes.
Why: **30 minutes.** 54 days / 419 = 3.1 hours, on 16,384 GPUs. With 6.1 times as many it is 6.1 times shorter. Per GPU
that is one interruption in 54 days × 16,384 / 419 = 5.8 years, whatever caused it: the GPU, its host, the network or
the software. With 100,000 GPUs, years between failures become minutes.
""")

cheaper_checkpoints = ask("""
A checkpoint costs the job a minute, and Young's interval is right for it. Then somebody writes checkpoints in the
background, so that the job stands still for **5 s** in place of 60. What becomes of the best interval?
( ) it stays: the failures are the same
    > The failures are the same, but saving is cheaper, so it pays to save more often and lose less.
(x) it gets 3.5 times shorter
( ) it gets 12 times shorter
    > The interval goes with the root: √(2 · C · M), and √12 = 3.5.
( ) it gets longer
    > Longer intervals lose more work at each failure. Cheap checkpoints allow short ones.
Why: **3.5 times shorter**: √(60 / 5). Half of the gain comes from cheaper saving, the other half from losing less: at
the best interval the job spends about as much on checkpoints as on lost work.
""")

what_to_repair = ask("""
The job now uses PAT between the hosts and saves at Young's interval, a checkpoint costs 60 s, a restart 600 s, the leaf
switches are oversubscribed 4:1. You may repair **one** thing. Which one brings most?
( ) links that are twice as fast, inside the hosts and between them
    > All bytes together take 3 % of the time. Halving them brings less than 2 points.
( ) a network without oversubscription
    > With PAT the queues take less than 1 % of the time.
(x) a restart of 120 s instead of 600 s
( ) a checkpoint of 5 s instead of 60 s
    > This is the second best: about 10 points. But every one of some 800 failures also costs 600 s until all GPUs work
    again.
Why: **The restart**: about 14 points. With a failure every 30 minutes, standing still for 10 minutes takes a quarter of
the time. At this size, speed comes from spare hosts that wait, a fast time-out, and communicators that are set up
quickly.
""")
