"""Whole clusters: laws of the formulas, and that their cost does not grow with the number of ranks."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

from workbook.tools import formulas
from workbook.tools.costs import A100, GB200, H100, choose, flat
from workbook.tools.costs.machine import Cluster
from workbook.tools.costs.predict import OPS, times

ONE = Cluster("one rank a node", 1, 100.0, 1, 10.0)  # nothing but a network of 10 GB/s


def lines(call) -> int:
    """How many lines of Python run in a call: what a clock would tell, without the clock."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # a collection runs hypothesis's own callback: nine lines, at any moment
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


@pytest.mark.parametrize("op", OPS)
def test_a_hundred_thousand_ranks_run_no_more_python_than_a_thousand(op):
    times(op, 1e9, 10, H100)  # what only a first call does
    few, many = (lines(lambda: times(op, 1e9, n, H100)) for n in (1_000, 100_000))  # noqa: B023
    assert few == many


def test_the_textbook_too_takes_arrays_without_a_loop_over_ranks():
    flat("all_reduce", 1e6, np.arange(2, 10), 1e-5, 1e-9)
    few, many = (lines(lambda: flat("all_reduce", 1e6, np.arange(2, n), 1e-5, 1e-9)) for n in (100, 100_000))  # noqa: B023
    assert few == many


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_with_one_rank_a_node_a_hierarchy_is_what_it_has_between_nodes(op):
    found = times(op, 1e8, 64, ONE)
    assert found["hierarchical, ring between nodes"] == pytest.approx(found["flat ring"])
    alike = flat(op, 1e8, 64, ONE.network_latency * 1e-6, 1e-10)
    assert found["flat ring"] == pytest.approx(float(alike["ring"]))


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 4), (8, 8), (20, 72)])
def test_a_hierarchy_has_the_steps_and_the_bytes_between_nodes_of_the_closed_formula(op, nodes, gpus):
    inside, between = formulas.figures(op, "ring", gpus), formulas.figures(op, "ring", nodes)
    alike = Cluster("alike", gpus, 1e9, gpus, 10.0, nvlink_latency=1.0, network_latency=1.0)  # 1 µs per step anywhere
    found = times(op, np.array([0, 1e9]), nodes * gpus, alike, ("Simple",))
    latency, moved = found["hierarchical, ring between nodes"]
    assert latency == pytest.approx((inside.steps + between.steps) * 1e-6)
    out = between.sent / gpus
    assert moved - latency == pytest.approx(out * 1e9 / (alike.rail * 1e9)), "each rank has a rail of its own"


def test_small_messages_are_priced_with_the_protocol_for_small_messages():
    ring = times("all_reduce", 8, 100_000, H100)["flat ring"]
    (nccls,) = (t for a, p, t in choose("all_reduce", 8, 100_000, H100).table if (a, p) == ("Ring", "LL"))
    assert ring == pytest.approx(nccls, rel=0.01)
    simple = times("all_reduce", 8, 100_000, H100, ("Simple",))["flat ring"]
    assert simple > 3 * ring
    large = times("all_reduce", 1e10, 8, H100)["flat ring"]
    assert large == pytest.approx(float(times("all_reduce", 1e10, 8, H100, ("Simple",))["flat ring"]))


def test_a_tree_in_pieces_pays_for_the_time_in_which_it_fills():
    ends = times("all_reduce", np.array([0.0, 1e15]), 1024, H100, ("Simple",))["double tree"]
    middle = times("all_reduce", 1e9, 1024, H100, ("Simple",))["double tree"]
    assert middle > 1.1 * (ends[0] + ends[1] * 1e9 / 1e15)


def test_inside_one_node_there_is_no_network():
    for op in OPS:
        slow = times(op, 1e8, 8, H100.but(rail=0.001, network_latency=1e6))
        assert slow == times(op, 1e8, 8, H100)


def test_a_hierarchy_beats_the_flat_ring_the_more_the_more_nodes_there_are():
    def gain(n):
        found = times("all_reduce", 1e6, n, H100)
        return found["flat ring"] / found["hierarchical, ring between nodes"]

    assert 1 < gain(16) < gain(128) < gain(1024)


def test_a_ring_pays_for_every_rank_and_a_tree_for_every_doubling():
    def latency(n, name):
        return times("all_reduce", 1, n, H100)[name]

    assert latency(80_000, "flat ring") / latency(8_000, "flat ring") == pytest.approx(10, rel=0.01)
    assert latency(80_000, "double tree") / latency(8_000, "double tree") < 1.5


def test_no_algorithm_moves_more_than_the_networks_and_nvlinks_bytes_allow():
    for cluster in (A100, H100, GB200):
        for name, t in times("all_reduce", 1e12, 1440, cluster).items():
            out_of_a_node = 1e12 * (1 if name == "double tree" else 2 * (1 - 1 / 20)) / (cluster.network * 1e9)
            inside = 2e12 * (1 - 1 / cluster.gpus_per_node) / (cluster.nvlink * 1e9)
            assert t >= 0.999 * max(inside, min(out_of_a_node, inside)), name


def test_oversubscription_counts_only_between_nodes():
    over = H100.but(oversubscription=4)
    assert times("all_gather", 1e9, 8, over) == times("all_gather", 1e9, 8, H100)
    slow, fast = (times("all_gather", 1e12, 800, c)["flat ring"] for c in (over, H100))
    assert slow > 3 * fast


def test_a_grid_of_sizes_and_ranks_is_one_call():
    sizes, ranks = np.logspace(3, 9, 40), np.array([8, 64, 100_000])[:, None]
    for op in OPS:
        for name, grid in times(op, sizes, ranks, H100).items():
            assert grid.shape == (3, 40)
            assert grid[2, 39] == pytest.approx(times(op, sizes[39], 100_000, H100)[name])
