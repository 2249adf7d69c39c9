"""The events of 100,000 ranks: held against a plain event loop, the schedules' objects and the closed formulas."""

from __future__ import annotations

import heapq
from itertools import product

import numpy as np
import pytest

from labkit.floor.errors import LabError
from workbook.tools import costs, events, schedules
from workbook.tools.events import chain, engine, failures, program, slowest
from workbook.tools.events.fabric import Fabric
from workbook.tools.formulas import figures

FAST = Fabric(near=2.0**-20, far=2.0**-18, nvlink=2.0**38, nic=2.0**35)


def plain(steps, fabric, n, ready, barrier=None):
    """A loop with one heap, message by message: `steps[k]` are (rank, rank, bytes); when each rank has everything.

    Ranks of a host go on together once all have come to the step `barrier`.
    """
    sends = [[[] for _ in range(n)] for _ in steps]
    missing = [[0] * n for _ in steps]
    number = 0
    for k, step in enumerate(steps):
        if not step:
            continue
        ends = np.array([message[:2] for message in step])
        paths = fabric.paths(ends[:, 0], ends[:, 1], n)
        ways = zip(paths.links.T.tolist(), paths.latency.tolist(), paths.rate.tolist(), strict=True)
        for (src, dst, size), (links, latency, rate) in zip(step, ways, strict=True):
            used = [link for link in links if link >= 0]
            sends[k][src].append((number, dst, k, used, latency, size / rate))
            missing[k][dst] += 1
            number += 1
    came = [[-1.0] * n for _ in steps]
    now, at, free, heap, waiting = [float(t) for t in ready], [-1] * n, {}, [], {}

    def enter(r, k):
        if k == barrier:
            mates = waiting.setdefault(r // fabric.gpus, [])
            mates.append(r)
            if len(mates) < fabric.gpus:
                return
            moment = max(now[q] for q in mates)
            for q in mates:
                now[q] = moment
                post(q, k)
        else:
            post(r, k)

    def post(r, k):
        at[r] = k
        if k == len(steps):
            return
        for message in sends[k][r]:
            heapq.heappush(heap, (now[r] + message[4], message[0], 0, message))
        if not missing[k][r]:
            now[r] = max(now[r], came[k][r])
            enter(r, k + 1)

    for r in range(n):
        enter(r, 0)
    while heap:
        time, _, stage, message = heapq.heappop(heap)
        _, dst, k, links, _, takes = message
        begins = max(time, free.get(links[stage], 0.0))
        free[links[stage]] = begins + takes
        if stage + 1 < len(links):
            heapq.heappush(heap, (begins, message[0], stage + 1, message))
            continue
        came[k][dst] = max(came[k][dst], begins + takes)
        missing[k][dst] -= 1
        if at[dst] == k and not missing[k][dst]:
            now[dst] = max(now[dst], came[k][dst])
            enter(dst, k + 1)
    return now


def steps_of(made, nbytes, where=None):
    """A program's messages, step by step, in the order of their numbers."""
    share = np.broadcast_to(made.share, made.dst.shape)
    where = range(made.n) if where is None else where
    return [
        [(where[r], where[made.dst[k, j, r]], share[k, j, r] * nbytes)
         for j in range(made.dst.shape[1]) for r in range(made.n) if made.dst[k, j, r] >= 0]
        for k in range(made.dst.shape[0])
    ]  # fmt: skip


def some_fabric(rng, n):
    gpus = int(rng.choice([g for g in (1, 2, 3, 4, 8) if n % g == 0]))
    nics = int(rng.choice([d for d in (1, 2, 3, 4, 8) if gpus % d == 0]))
    return Fabric(
        gpus=gpus, nics=nics, near=rng.uniform(1, 5) * 1e-6, far=rng.uniform(3, 20) * 1e-6,
        nvlink=rng.uniform(50, 500) * 1e9, nic=rng.uniform(5, 60) * 1e9, leaf=int(rng.integers(1, 6)),
        over=float(rng.choice([1, 1.5, 2, 4])),
        scattered=int(rng.integers(9)) if rng.integers(2) else None,
    )  # fmt: skip


def some_ready(rng, n):
    return rng.exponential(float(rng.choice([0, 1e-5, 1e-3])), n)


SCHEDULES = {
    "ring": schedules.ring, "Bruck": schedules.bruck, "PAT": schedules.pat,
    "halving-doubling": schedules.halving_doubling, "double tree": schedules.double_tree,
}  # fmt: skip


def test_a_program_sends_what_the_schedules_object_sends_step_by_step(subtests: pytest.Subtests):
    for (name, make), n in product(program.BUILDERS.items(), (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 23, 32, 48, 64)):
        with subtests.test(name, n=n):
            more = {"pieces": program.PIECES} if name == "double tree" else {}
            theirs = SCHEDULES[name]("all_reduce", n, **more)
            wanted = [sorted((s.src, s.dst, len(s.chunks) / theirs.chunks) for s in step) for step in theirs.steps]
            assert [sorted(step) for step in steps_of(make(n), 1.0)] == wanted


def test_batches_of_events_end_at_the_same_bits_as_a_loop_with_one_heap(subtests: pytest.Subtests):
    for n in range(1, 65):
        with subtests.test(n=n):
            rng = np.random.default_rng(n)
            for name in rng.permutation(list(program.BUILDERS))[: 5 if n < 12 else 3].tolist():
                fabric, ready, size = some_fabric(rng, n), some_ready(rng, n), float(rng.choice([8, 1e4, 1e7]))
                made = program.BUILDERS[name](n)
                played = engine.play(made, fabric, np.arange(n), n, ready, size)
                assert played.finish.tolist() == plain(steps_of(made, size), fabric, n, ready), (name, fabric)
                found = played.chain(last := int(played.finish.argmax()))
                parts = found.latency + found.inside + found.across + found.queued
                assert played.finish[last] == pytest.approx(ready[found.origin] + parts, rel=1e-12)


def as_arrays(schedule):
    """Return a schedule's object as a program."""
    slots = max([1, *(sum(s.src == r for s in step) for step in schedule.steps for r in range(schedule.n))])
    dst = np.full((len(schedule.steps), slots, schedule.n), -1, np.int32)
    share = np.zeros(dst.shape)
    for k, step in enumerate(schedule.steps):
        taken = [0] * schedule.n
        for send in step:
            dst[k, taken[send.src], send.src] = send.dst
            share[k, taken[send.src], send.src] = len(send.chunks) / schedule.chunks
            taken[send.src] += 1
    return program.Program(schedule.name, dst, share)


@pytest.mark.parametrize("make", [schedules.naive, schedules.tree, schedules.recursive_doubling, schedules.pairwise])
def test_the_same_holds_for_schedules_in_which_ranks_are_idle_or_flooded(make):
    op = "all_to_all" if make is schedules.pairwise else "all_reduce"
    for n in (2, 5, 8, 12, 16):
        rng = np.random.default_rng(n)
        made, fabric, ready = as_arrays(make(op, n)), some_fabric(rng, n), some_ready(rng, n)
        found = engine.play(made, fabric, np.arange(n), n, ready, 1e6).finish.tolist()
        assert found == plain(steps_of(made, 1e6), fabric, n, ready)


def whole(way, fabric, n, nbytes):
    """All messages of a hierarchical all-reduce: its steps, and the step at which hosts go on together."""
    g, hosts = fabric.gpus, n // fabric.gpus
    inside = [[(r, r // g * g + (r + 1) % g, nbytes / g) for r in range(n)] for _ in range(g - 1)]
    made = program.BUILDERS[way](hosts)
    between = [
        [(a * g + i, b * g + i, size) for a, b, size in step for i in range(g)] for step in steps_of(made, nbytes / g)
    ]
    return [*inside, *between, *inside], g - 1


def test_a_hierarchical_all_reduce_ends_as_all_its_messages_in_one_loop_do(subtests: pytest.Subtests):
    for way, n in product(program.BUILDERS, (1, 2, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64)):
        with subtests.test(way, n=n):
            rng = np.random.default_rng([n, 7])
            for case in range(4):
                fabric, ready, size = some_fabric(rng, n), some_ready(rng, n), float(rng.choice([8, 1e4, 1e7]))
                if case % 2:  # a NIC for every rank, as those that run once for all rails
                    fabric = fabric.but(nics=fabric.gpus)
                step = events.all_reduce(f"hierarchical, {way}", fabric, n, size, ready)
                steps, barrier = whole(way, fabric, n, size)
                wanted = plain(steps, fabric, n, ready, barrier)
                np.testing.assert_allclose(step.finish, wanted, rtol=1e-12)
                assert sum(step.parts.values()) == pytest.approx(step.seconds, rel=1e-12)
                assert min(step.parts.values()) >= -1e-18


def one_ring_a_nic(fabric, n, nbytes, ready):
    """When each rank has everything after a flat ring that is cut into one for each NIC."""
    g, hosts = fabric.gpus, n // fabric.gpus
    many = fabric.nics if hosts > 1 else 1
    made, slower = program.ring(n), fabric.but(nvlink=fabric.nvlink / many)
    ended = np.full(n, -np.inf)
    for c in range(many):
        order = [h * g + (c * g // many + (g - 1 - i if h % 2 else i)) % g for h in range(hosts) for i in range(g)]
        ended = np.maximum(ended, plain(steps_of(made, nbytes / many, order), slower, n, ready))
    return ended


def test_a_flat_ring_ends_as_its_messages_do_one_ring_a_nic(subtests: pytest.Subtests):
    for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40):
        with subtests.test(n=n):
            rng, ran = np.random.default_rng([n, 8]), 0
            for _ in range(5 if n < 24 else 2):
                fabric, ready = some_fabric(rng, n).but(over=1.0, scattered=None), some_ready(rng, n)
                try:
                    step = events.all_reduce("ring", fabric, n, 1e6, ready)
                except LabError:  # rings that share links
                    continue
                ran += 1
                np.testing.assert_allclose(step.finish, one_ring_a_nic(fabric, n, 1e6, ready), rtol=1e-12)
                assert sum(step.parts.values()) == pytest.approx(step.seconds, rel=1e-12)
            assert ran


def test_a_ring_as_longest_paths_ends_as_its_messages_do():
    rng = np.random.default_rng(3)
    for n in (1, 2, 3, 5, 8, 12, 30):
        for period in (p for p in (1, 2, 3, 4, 6) if n % p == 0):
            for rounds in (0, 1, n - 1, 2 * (n - 1)):
                latency, takes, ready = rng.uniform(1, 9, period), rng.uniform(1, 9, period), rng.uniform(0, 50, n)
                came, sent, post = ready.copy(), np.full(n, -np.inf), ready.copy()
                for _ in range(rounds if n > 1 else 0):
                    begins = np.maximum(post + np.tile(latency, n // period), sent)
                    sent = begins + np.tile(takes, n // period)
                    came = np.maximum(came, np.roll(sent, 1))
                    post = np.maximum(post, came)
                found = chain.ring(ready, latency, takes, rounds)
                np.testing.assert_allclose(found.finish, came, rtol=1e-12)


def test_without_contention_the_formulas_are_met(subtests: pytest.Subtests):
    for n in (2, 4, 8, 16, 32, 64, 128, 1024):
        with subtests.test(n=n):
            fabric, size = FAST.but(gpus=1, nics=1), 2.0**26
            alpha, beta = fabric.far, 1 / fabric.nic
            for way in ("ring", "halving-doubling", "Bruck", "PAT"):
                found = events.all_reduce(way, fabric, n, size)
                wanted = figures("all_reduce", way, n).seconds(alpha, size * beta)
                if way in costs.ALGORITHMS["all_reduce"]:
                    assert costs.seconds("all_reduce", way, n, size, alpha, beta) == pytest.approx(wanted, rel=1e-15)
                if way in ("ring", "halving-doubling") or n <= fabric.leaf:
                    assert found.seconds == pytest.approx(wanted, rel=1e-12), way
                    assert found.parts["queues"] == pytest.approx(0, abs=1e-12 * wanted)
                assert found.seconds >= wanted * (1 - 1e-12)


def test_without_contention_a_hierarchical_ring_takes_the_two_formulas(subtests: pytest.Subtests):
    for hosts, gpus in product((1, 2, 3, 5, 8, 12, 32), (1, 2, 4, 8)):
        with subtests.test(hosts=hosts, gpus=gpus):
            fabric, size = FAST.but(gpus=gpus, nics=gpus), 1e8
            inside, between = figures("all_reduce", "ring", gpus), figures("all_reduce", "ring", hosts)
            wanted = inside.seconds(fabric.near, size / fabric.nvlink)
            wanted += between.seconds(fabric.far, size / gpus / fabric.nic)
            found = events.all_reduce("hierarchical, ring", fabric, gpus * hosts, size)
            assert found.seconds == pytest.approx(wanted, rel=1e-12)
            out = between.sent / gpus
            assert found.parts["bytes between hosts"] == pytest.approx(out * size / fabric.nic, rel=1e-12)
            latency = inside.steps * fabric.near + between.steps * fabric.far
            assert found.parts["latency"] == pytest.approx(latency, rel=1e-12)


def test_100_000_ranks_of_a_hierarchical_ring_take_the_formula_too():
    fabric, n, size = events.H100S, 100_000, 1e9
    inside, between = figures("all_reduce", "ring", 8), figures("all_reduce", "ring", n // 8)
    wanted = inside.seconds(fabric.near, size / fabric.nvlink) + between.seconds(fabric.far, size / 8 / fabric.nic)
    assert events.all_reduce("hierarchical, ring", fabric, n, size).seconds == pytest.approx(wanted, rel=1e-9)


def test_a_flat_ring_pays_for_all_latencies_and_for_the_slowest_links_bytes():
    fabric, n = FAST.but(gpus=4, nics=1, nvlink=2.0**36), 64
    found = events.all_reduce("ring", fabric, n, 2.0**30)
    slow = 2.0**30 / n / fabric.nic
    assert found.parts["bytes between hosts"] > found.parts["bytes inside hosts"]
    assert found.seconds >= 2 * (n - 1) * slow
    assert found.seconds < 2 * (n - 1) * (slow + fabric.far)


def test_a_pipelined_double_tree_takes_about_what_it_takes_in_lockstep_or_less():
    for n in (2, 5, 8, 16, 32):
        fabric = FAST.but(gpus=1, nics=1, leaf=64)
        lockstep = schedules.seconds(schedules.double_tree("all_reduce", n, 8), 1e7, fabric.far, 1 / fabric.nic)
        assert events.all_reduce("double tree", fabric, n, 1e7).seconds < 1.1 * lockstep


def test_messages_that_share_an_uplink_are_served_one_after_the_other():
    fabric = Fabric(gpus=1, nics=1, leaf=4, over=4, far=1.0, nic=1.0)
    dst = np.array([[[4, 5, 6, 7, -1, -1, -1, -1]]])
    played = engine.play(program.Program("shift", dst, np.ones(dst.shape)), fabric, np.arange(8), 8, np.zeros(8), 10.0)
    assert played.finish.tolist() == [0, 0, 0, 0, 11, 21, 31, 41]
    found = played.chain(7)
    assert (found.origin, found.latency, found.across, found.queued) == (3, 1.0, 10.0, 30.0)


def test_the_order_of_hosts_decides_whether_a_ring_meets_oversubscription():
    fabric, n = events.H100S.but(over=4), 8 * 256
    in_order = events.all_reduce("hierarchical, ring", fabric, n, 1e9)
    scattered = events.all_reduce("hierarchical, ring", fabric.but(scattered=1), n, 1e9)
    assert in_order.parts["queues"] == 0
    assert scattered.parts["queues"] > in_order.parts["bytes between hosts"]


def test_a_late_rank_holds_up_everybody_and_is_named():
    ready = np.full(256, 0.1)
    ready[77] = 0.5
    step = events.all_reduce("hierarchical, double tree", events.H100S, 256, 1e8, ready)
    assert step.finish.min() > 0.5
    assert step.parts["waiting for the slowest"] == pytest.approx(0.5 - ready.mean())
    assert step.computing == pytest.approx(ready.mean() / step.seconds)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: events.all_reduce("star", events.H100S, 8, 1), "Choose one of"),
        (lambda: events.all_reduce("ring", events.H100S, 12, 1), "Choose a multiple of 8"),
        (lambda: events.all_reduce("ring", events.H100S, 8, 1, np.zeros(7)), "one moment for each of the 8"),
        (lambda: events.all_reduce("ring", events.H100S.but(nics=2, scattered=1, over=64), 1024, 1), "share links"),
        (lambda: events.all_reduce("hierarchical, ring", events.H100S.but(over=2, scattered=1), 99_968, 1), "messages"),
        (lambda: Fabric(nics=3), "Choose a divisor"),
        (lambda: Fabric(over=0.5), "Choose 1"),
        (lambda: Fabric(far=0.0), "above zero"),
        (lambda: Fabric().but(rail=1), "no such number"),
        (lambda: slowest.drawn(4, 1, 2), "does not fit"),
        (lambda: slowest.drawn(4, 1, 0.1, "uniform"), "Choose one of"),
        (lambda: slowest.expected(0, 1, 1), "1 rank or more"),
        (lambda: failures.run(0, 1, 1, 1, []), "above zero"),
    ],
)
def test_what_cannot_be_is_refused_and_says_what_to_do(call, says: str):
    with pytest.raises(LabError, match=says):
        call()


# -- the slowest, and failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 10, 1000])
def test_the_expected_slowest_is_what_many_draws_come_to(n: int):
    for law, within in (("normal", 0.02), ("exponential", 0.02)):
        most = [slowest.drawn(n, 1.0, 0.1, law, seed).max() for seed in range(4000)]
        assert np.mean(most) == pytest.approx(slowest.expected(n, 1.0, 0.1, law), abs=within * 0.1 + 0.005), law


@pytest.mark.parametrize("seed", range(8))
def test_a_job_is_what_one_gets_by_walking_through_it_second_by_second(seed: int):
    rng = np.random.default_rng(seed)
    work, every, checkpoint, restart = (int(x) for x in rng.integers([200, 20, 1, 5], [900, 90, 9, 30]))
    dies = [x + 0.5 for x in np.cumsum(rng.integers(1, 160, 400)).tolist()]  # in the middle of seconds: never a tie
    found = failures.run(work, every, checkpoint, restart, dies)
    # in half seconds all moments are whole
    useful, kept, lost, down, failed = twice(2 * work, 2 * every, 2 * checkpoint, 2 * restart, [2 * d for d in dies])
    assert (found.useful, found.checkpoints, found.lost, found.down, found.failures) == (
        useful / 2, kept / 2, lost / 2, down / 2, failed,
    )  # fmt: skip


def twice(work, every, checkpoint, restart, dies):
    """Tick by tick: each tick is work, a checkpoint, or recovery; a failure falls between two ticks."""
    dies, tick = {int(d) for d in dies}, 0
    saved, since, spent, kept, lost, down, failed = 0, 0, 0, 0, 0, 0, 0
    recovering = 0
    while True:
        if recovering == 0 and saved + since >= work:
            return saved + since, kept, lost, down, failed
        if tick in dies:
            failed += 1
            lost += since + spent
            since = spent = 0
            recovering = restart
        if recovering:
            recovering -= 1
            down += 1
        elif since < min(every, work - saved):
            since += 1
        else:
            spent += 1
        if spent == checkpoint and since == every and saved + since < work:
            saved, since, spent, kept = saved + since, 0, 0, kept + checkpoint
        tick += 1


def test_many_failures_come_to_the_expected_goodput():
    between, checkpoint, restart = 1580.0, 60.0, 300.0
    for every in (200.0, 435.0, 1200.0):
        found = [
            failures.run(2e6, every, checkpoint, restart, failures.failures(100_000, between * 100_000, seed)).goodput
            for seed in range(6)
        ]
        assert np.mean(found) == pytest.approx(failures.goodput(every, checkpoint, restart, between), rel=0.02)


def test_youngs_interval_is_near_the_best_one_while_a_checkpoint_is_short():
    for between in (1e3, 1e4, 1e5):
        for checkpoint in (1.0, 10.0, 60.0):
            best, young = failures.best(checkpoint, between), failures.young(checkpoint, between)
            assert best == max(
                (best, 0.9 * best, 1.1 * best), key=lambda t: failures.goodput(t, checkpoint, 0, between)
            )
            assert failures.goodput(young, checkpoint, 0, between) > 0.985 * failures.goodput(
                best, checkpoint, 0, between
            )


def test_the_gaps_between_failures_are_those_of_ranks_that_die_one_by_one():
    n, mtbf = 50, 1000.0
    rng = np.random.default_rng(5)
    dies = np.sort(rng.exponential(mtbf, (n, 400)).cumsum(axis=1).ravel())
    one_by_one = np.diff(dies[dies < 300 * mtbf])
    drawn = failures.failures(n, mtbf, seed=1)
    together = np.diff([next(drawn) for _ in range(len(one_by_one))])
    quantiles = np.linspace(0.05, 0.95, 10)
    np.testing.assert_allclose(np.quantile(one_by_one, quantiles), np.quantile(together, quantiles), rtol=0.12)
    assert together.mean() == pytest.approx(failures.between_failures(n, mtbf), rel=0.03)
