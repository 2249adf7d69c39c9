"""α-β-γ: the closed formulas against the schedules, and against each other."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.floor.errors import LabError
from workbook.tools import formulas, schedules
from workbook.tools.costs import ALGORITHMS, seconds

A, B = 1e-5, 1e-9
NAMES = [(op, name) for op, known in ALGORITHMS.items() for name in known]
SCHEDULED = [
    (op, s.name)
    for op in ALGORITHMS
    if op not in ("barrier", "send_recv")
    for s in schedules.of(op, 8)
    if (op, s.name) not in formulas.PIPELINED
]


def test_all_that_theory_schedules_has_for_any_number_of_ranks_has_costs():
    known = {(op, s.name) for op in ALGORITHMS if op not in ("barrier", "send_recv") for s in schedules.of(op, 6)}
    missing = known - set(NAMES)
    assert missing <= {("all_reduce", "Bruck"), ("reduce_scatter", "Bruck")}


def test_the_figures_of_an_array_of_ranks_are_those_of_each(subtests):
    for op, name in [(op, name) for op, known in formulas.FORMULAS.items() for name in known]:
        with subtests.test(name, op=op):
            ranks = np.array([*range(1, 70), 1000, 1024, 99_999, 100_000])
            if (op, name) in (("reduce_scatter", "halving-doubling"), ("all_gather", "halving-doubling")):
                ranks = 2 ** np.arange(18)
            found, each = formulas.figures(op, name, ranks), [formulas.figures(op, name, int(n)) for n in ranks]
            for what in ("steps", "sent", "total", "serial", "added"):
                assert getattr(found, what).tolist() == [getattr(f, what) for f in each], what


def test_what_is_added_is_what_the_busiest_rank_adds_in_the_schedule(subtests: pytest.Subtests):
    """The formulas count what the critical path adds; both ways of a bidirectional ring add at one rank."""
    for (op, name), n in product(SCHEDULED, (2, 3, 4, 5, 8, 13, 16)):
        if name == "halving-doubling" and op != "all_reduce" and n & (n - 1):
            continue  # alone it needs a power of two
        with subtests.test(name, op=op, n=n):
            (schedule,) = (s for s in schedules.of(op, n) if s.name == name)
            total = sum(
                max(np.bincount([s.dst for s in step for _ in s.chunks if s.reduce], minlength=1))
                for step in schedule.steps
            )
            assert formulas.figures(op, name, n).added == pytest.approx(total / schedule.chunks)


def test_one_rank_costs_nothing_and_more_bytes_or_ranks_never_cost_less(subtests):
    for op, name in NAMES:
        with subtests.test(name, op=op):
            sizes, ranks = np.array([0, 1, 1e3, 1e6, 1e9]), 2 ** np.arange(12)
            assert seconds(op, name, 1, 1e9, A, B) == 0
            assert (np.diff(seconds(op, name, 8, sizes, A, B)) >= 0).all()
            assert (np.diff(seconds(op, name, ranks, 1e6, A, B)) >= -1e-12).all()


@given(st.integers(2, 500), st.floats(1, 1e10))
def test_a_pipeline_is_as_fast_as_the_best_number_of_pieces(n, nbytes):
    for op, name in (("broadcast", "ring"), ("all_reduce", "double tree")):
        got = float(seconds(op, name, n, nbytes, A, B))
        cuts = np.unique(np.logspace(0, 6, 300).astype(int))
        best = min(formulas.figures(op, name, n, pieces=int(c)).seconds(A, nbytes * B) for c in cuts)
        assert got <= best * (1 + 1e-9)
        assert best <= got * 1.1


def test_two_ranks_have_nobody_to_pass_pieces_on_to():
    for op in ("broadcast", "reduce"):
        assert float(seconds(op, "ring", 2, 1e9, A, B)) == pytest.approx(A + 1e9 * B)


def test_n_cancels_out_of_the_rings_bytes_and_not_out_of_its_latency():
    few, many = (seconds("all_reduce", "ring", n, np.array([0, 1e9]), A, B) for n in (64, 6400))
    assert many[1] - many[0] == pytest.approx(few[1] - few[0], rel=0.02)
    assert many[0] > 90 * few[0]


def test_an_all_reduce_costs_a_reduce_scatter_and_an_all_gather():
    n, size = np.array([2, 7, 64]), 1e7
    parts = seconds("reduce_scatter", "ring", n, size, A, B, 1e-10) + seconds(
        "all_gather", "ring", n, size, A, B, 1e-10
    )
    assert seconds("all_reduce", "ring", n, size, A, B, 1e-10) == pytest.approx(parts)


def test_gloos_reduce_scatter_costs_as_much_as_its_all_reduce():
    assert seconds("reduce_scatter", "as an all-reduce", 4, 1e6, A, B) == seconds("all_reduce", "ring", 4, 1e6, A, B)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(LabError, match="all_gather"):
        seconds("all_sum", "ring", 4, 1, A, B)
    with pytest.raises(LabError, match="halving-doubling"):
        seconds("all_reduce", "star", 4, 1, A, B)
