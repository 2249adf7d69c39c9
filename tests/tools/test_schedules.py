"""Every schedule does what its collective means, counts each contribution once, and takes what its formula says."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.floor.errors import LabError
from labkit.theory import collectives
from labkit.theory.origin import Origin
from labkit.theory.primitives import MEANINGS, PRIMITIVES
from workbook.tools import formulas, schedules
from workbook.tools.schedules import Schedule, Send

RANKS = range(1, 20)
WORLDS = [(nodes, gpus) for nodes in range(1, 6) for gpus in range(1, 6)]


def tokens(schedule: Schedule, k: int) -> list:
    """What each rank brings: k tokens a chunk, or a tensor of k where there are no chunks."""
    n = schedule.n
    if schedule.op in ("reduce_scatter", "scatter", "all_to_all"):
        return [[[Origin(r, c * k + i) for i in range(k)] for c in range(n)] for r in range(n)]
    return [[Origin(r, i) for i in range(k)] for r in range(n)]


def meaning(schedule: Schedule, xs: list) -> list:
    rooted = schedule.op in ("broadcast", "reduce", "gather", "scatter")
    return getattr(collectives, schedule.op)(xs, **({"root": schedule.root} if rooted else {}))


def every(n: int):
    """All schedules for n ranks, also with other roots, pieces and aggregations."""
    for op in MEANINGS:
        yield from schedules.of(op, n)
    for root in {1 % n, n - 1}:
        for op in ("broadcast", "reduce"):
            yield schedules.tree(op, n, root)
            yield schedules.ring(op, n, root, pieces=3)
            yield schedules.naive(op, n, root)
        for op in ("gather", "scatter"):
            yield schedules.linear(op, n, root)
    for op in ("all_gather", "reduce_scatter"):
        for aggregate in (1, 2, 4):
            yield schedules.pat(op, n, aggregate)
    for pieces in (2, 5):
        yield schedules.double_tree("all_reduce", n, pieces)


def test_each_schedule_does_what_its_collective_means_and_counts_nobody_twice(subtests):
    for n in RANKS:
        with subtests.test(n=n):
            for schedule in every(n):
                for k in (0, 3):
                    xs = tokens(schedule, k)
                    assert schedule.run(xs) == meaning(schedule, xs), (schedule.name, schedule.op, schedule.root)


def test_a_hierarchy_does_what_its_collective_means_and_takes_what_its_formula_says(subtests):
    for (nodes, gpus), op in product(WORLDS, ("all_reduce", "all_gather", "reduce_scatter")):
        with subtests.test(op, nodes=nodes, gpus=gpus):
            schedule = schedules.hierarchical(op, nodes, gpus)
            xs = tokens(schedule, 3)
            assert schedule.run(xs) == meaning(schedule, xs)
            inside, between, flat = (formulas.figures(op, "ring", n) for n in (gpus, nodes, nodes * gpus))
            assert_figures(schedule, replace(flat, steps=inside.steps + between.steps))
            assert np.allclose(schedule.crossing(gpus), between.sent)


@given(st.integers(1, 17), st.integers(0, 40), st.sampled_from(["SUM", "MAX", "PRODUCT"]), st.randoms())
@settings(max_examples=40, deadline=None)
def test_any_reduction_of_any_length_comes_out(n, k, op, random):
    xs = [np.array([random.randint(-3, 3) for _ in range(k)]) for _ in range(n)]
    wanted = collectives.all_reduce(xs, op)
    for schedule in schedules.of("all_reduce", n):
        for got, want in zip(schedule.run(xs, op), wanted, strict=True):
            assert np.array_equal(got, want), schedule.name


def assert_figures(schedule: Schedule, figures: formulas.Figures) -> None:
    name = (schedule.name, schedule.op, schedule.n)
    assert len(schedule.steps) == figures.steps, name
    assert schedule.traffic().sum() == pytest.approx(figures.total), name
    serial = schedules.seconds(schedule, 1.0, alpha=0.0, beta=1.0)
    if figures.exact:
        assert max(schedule.sent()) == pytest.approx(figures.sent), name
        assert serial == pytest.approx(figures.serial), name
    else:
        assert max(schedule.sent()) <= figures.sent + 1e-9, name
        assert serial <= figures.serial + 1e-9, name


def test_steps_and_bytes_are_those_of_the_closed_formulas(subtests):
    for n in RANKS:
        with subtests.test(n=n):
            for schedule in every(n):
                pieces = {"ring": schedule.chunks, "double tree": schedule.chunks // 2}.get(schedule.name)
                if schedule.name != "PAT":
                    assert_figures(schedule, formulas.figures(schedule.op, schedule.name, n, pieces))
            for aggregate in (None, 1, 2, 4, 8):
                for op in ("all_gather", "reduce_scatter", "all_reduce"):
                    assert_figures(schedules.pat(op, n, aggregate), formulas.figures(op, "PAT", n, aggregate=aggregate))


def test_no_step_makes_a_rank_send_one_chunk_twice_or_send_to_itself(subtests):
    for n in RANKS:
        with subtests.test(n=n):
            for schedule in every(n):
                for step in schedule.steps:
                    assert step, f"{schedule.name}: an empty step"
                    assert all(s.src != s.dst and s.chunks for s in step)
                    pairs = [(s.src, s.dst, c) for s in step for c in s.chunks]
                    assert len(pairs) == len(set(pairs))


def test_a_contribution_that_is_counted_twice_is_seen():
    twice = Schedule("wrong", "all_reduce", 2, 1, ((Send(0, 1, (0,), True),), (Send(1, 0, (0,), True),)))
    xs = tokens(twice, 1)
    assert twice.run(xs) != meaning(twice, xs)
    assert twice.run(xs)[0] == [Origin.of({(0, 0): 2, (1, 0): 1})]


def test_the_ring_is_that_of_nccl():
    """device/all_reduce.h: send chunk i-1, receive, add and send i-j for j = 2…, then i is final and goes on."""
    n = 5
    sent = [[s.chunks for step in schedules.ring("all_reduce", n).steps for s in step if s.src == i] for i in range(n)]
    for i in range(n):
        nccl = [i - 1, *(i - j for j in range(2, n)), i, *(i - j for j in range(1, n - 1))]
        assert sent[i] == [(c % n,) for c in nccl]
    assert all((s.dst - s.src) % n == 1 for step in schedules.ring("all_reduce", n).steps for s in step)


def test_the_two_trees_share_their_inner_ranks_as_nccl_has_it(subtests):
    for n in range(2, 200):
        with subtests.test(n=n):
            inner = []
            for parent in schedules.parents(n):
                assert parent.count(-1) == 1
                assert all(parent.count(r) <= 2 for r in range(n))
                inner.append({p for p in parent if p >= 0})
                for r in range(n):  # every rank hangs on the root
                    seen = 0
                    while parent[r] >= 0 and seen <= n:
                        r, seen = parent[r], seen + 1
                    assert parent[r] == -1
                    assert seen <= math.ceil(math.log2(n))
            assert len(inner[0] & inner[1]) <= n % 2


def test_the_first_tree_is_that_of_nccl():
    assert schedules.parents(8)[0] == [-1, 2, 4, 2, 0, 6, 4, 6]
    assert [r for r, p in enumerate(schedules.parents(13)[0]) if p == 0] == [8]  # the largest power of two below 13


def test_the_far_messages_of_pat_are_small_and_brucks_are_large():
    def farthest(schedule):
        return {min((s.src - s.dst) % 16, (s.dst - s.src) % 16): len(s.chunks) for t in schedule.steps for s in t}

    assert farthest(schedules.pat("all_gather", 16)) == {8: 1, 4: 2, 2: 4, 1: 8}
    assert farthest(schedules.bruck("all_gather", 16)) == {8: 8, 4: 4, 2: 2, 1: 1}


def test_n_cancels_out_of_the_rings_bytes():
    sent = [schedules.ring("all_reduce", n).sent(1.0)[0] for n in range(2, 40)]
    assert all(b < 2 for b in sent)
    assert formulas.figures("all_reduce", "ring", 100_000).sent == pytest.approx(2, rel=1e-4)
    assert formulas.figures("all_reduce", "naive", 100_000).sent == 99_999


def test_the_textbooks_traffic_is_that_of_a_schedule(subtests):
    """Gloo sends all-reduce and reduce-scatter the other way round the ring."""
    for n in RANKS:
        with subtests.test(n=n):
            for root in {0, n - 1}:
                pairs = {
                    "broadcast": schedules.tree("broadcast", n, root),
                    "gather": schedules.linear("gather", n, root),
                    "scatter": schedules.linear("scatter", n, root),
                    "all_gather": schedules.ring("all_gather", n),
                    "all_to_all": schedules.pairwise("all_to_all", n),
                }
                for op, schedule in pairs.items():
                    assert np.allclose(PRIMITIVES[op].traffic(n, 12.0, root), schedule.traffic(12.0)), op
            for op in ("all_reduce", "reduce_scatter"):
                assert np.allclose(PRIMITIVES[op].traffic(n, 12.0), schedules.ring(op, n).traffic(12.0).T), op


def test_a_reduce_on_gloo_brings_everyones_share_of_the_buffer_to_the_root(subtests):
    for n in range(2, 10):
        with subtests.test(n=n):
            matrix = PRIMITIVES["reduce"].traffic(n, float(n), root=1)
            assert matrix.sum(axis=1).tolist() == [n - 1.0 if r == 1 else float(n) for r in range(n)]
            assert np.trace(matrix) == 0


def test_formulas_for_100_000_ranks_need_no_schedule():
    ways = [(op, name) for op, known in formulas.FORMULAS.items() for name in known if op != "send_recv"]
    assert min(formulas.figures(op, name, 2**17).steps for op, name in ways) == 17
    assert formulas.figures("all_reduce", "ring", 100_000).steps == 199_998


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: schedules.ring("gather", 4), "It does all_gather"),
        (lambda: schedules.tree("broadcast", 4, root=4), "Choose a root of 0 to 3"),
        (lambda: schedules.tree("broadcast", 0), "Choose 1 or more"),
        (lambda: schedules.halving_doubling("all_gather", 6), r"schedules\.bruck\('all_gather', 6\)"),
        (lambda: schedules.pat("all_gather", 8, aggregate=3), "Choose 1, 2, 4"),
        (lambda: schedules.ring("all_reduce", 4).run([[1], [2]]), "Give it one for each rank"),
        (lambda: formulas.figures("gather", "ring", 4), "there is: linear"),
        (lambda: formulas.figures("all_gather", "halving-doubling", 6), "Take Bruck's"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(wrong, says):
    with pytest.raises(LabError, match=says):
        wrong()
