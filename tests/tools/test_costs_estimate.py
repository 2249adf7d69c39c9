"""The estimate of what NCCL takes: its laws, and how a few rows of one's own move it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.floor.errors import LabError
from workbook.tools.costs import A100, GB200, H100, RENTED, calibrate, estimate
from workbook.tools.costs.estimate import OPS, times
from workbook.tools.published import find

CLUSTERS = st.sampled_from(list(RENTED.values()))
SIZES = 2.0 ** np.arange(3, 35)


@given(CLUSTERS, st.sampled_from(OPS), st.integers(2, 200_000), st.floats(1, 1e12), st.floats(1, 1e3))
def test_more_bytes_are_never_faster_and_no_time_is_nothing(cluster, op, n, nbytes, more):
    less, greater = estimate(op, np.array([nbytes, nbytes * more]), n, cluster)
    assert 0 < less <= greater < np.inf


@given(CLUSTERS, st.sampled_from(OPS), st.integers(1, 12), st.integers(3, 34))
def test_twice_the_nodes_are_never_faster(cluster, op, k, size):
    few, many = (
        estimate(op, 2.0**size, n, cluster)
        for n in (2**k * cluster.gpus_per_node, 2 ** (k + 1) * cluster.gpus_per_node)
    )
    assert many >= few * (1 - 1e-9)


@given(CLUSTERS, st.sampled_from(OPS), st.floats(1e6, 1e12), st.floats(1, 8))
def test_a_slower_network_is_never_faster(cluster, op, nbytes, over):
    n = 4 * cluster.gpus_per_node
    slow = estimate(op, nbytes, n, cluster.but(oversubscription=over))
    assert slow >= estimate(op, nbytes, n, cluster) * (1 - 1e-9)


@pytest.mark.parametrize("op", OPS)
def test_a_grid_is_one_call_and_a_hundred_thousand_ranks_are_finite(op):
    grid = estimate(op, SIZES, np.array([8, 64, 100_000])[:, None], H100)
    assert grid.shape == (3, len(SIZES))
    assert np.isfinite(grid).all()
    assert grid[2, 30] == pytest.approx(estimate(op, SIZES[30], 100_000, H100))
    assert isinstance(estimate(op, 1024, 8, H100), float)


def test_no_message_is_faster_than_its_bytes_over_what_nvlink_and_the_nics_carry():
    for cluster in RENTED.values():
        n = 2 * cluster.gpus_per_node
        assert estimate("all_gather", 1e12, n, cluster) >= 1e12 * (n - 1) / n / (cluster.network * 1e9)
        assert estimate("broadcast", 1e12, cluster.gpus_per_node, cluster) >= 1e12 / (cluster.nvlink * 1e9)


@pytest.mark.parametrize("op", OPS)
def test_with_one_gpu_a_node_no_protocol_sends_faster_than_the_one_nic(op):
    alone = H100.but(gpus_per_node=1, rails=1, rail=12.5)
    least = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5, "all_to_all": 0.5}.get(op, 1.0)  # of S
    assert (estimate(op, SIZES, 2, alone) >= least * SIZES / 12.5e9).all()


def test_one_thread_that_launches_for_eight_takes_eight_launches():
    alone, eight = (estimate("all_reduce", 8, 8, A100.but(gpus_per_process=g)) for g in (1, 8))
    assert eight - alone > 10e-6
    assert estimate("all_reduce", 1e10, 8, A100.but(gpus_per_process=8)) == pytest.approx(
        estimate("all_reduce", 1e10, 8, A100), rel=0.01
    )


def test_nccl_algo_leaves_one_way():
    ring = H100.but(algorithm="Ring")
    assert all(way.startswith("Ring") for way in times("all_reduce", 1e6, 16, ring))
    assert estimate("all_reduce", 1e9, 16, ring) > estimate("all_reduce", 1e9, 16, H100)


def test_what_it_does_not_know_is_refused():
    with pytest.raises(LabError, match="all_reduce"):
        estimate("barrier", 1, 8, H100)
    with pytest.raises(LabError, match="two or more"):
        estimate("all_reduce", 1, 1, H100)
    with pytest.raises(LabError, match="tcpxo"):
        H100.but(fabric="carrier pigeon")


@settings(max_examples=25)
@given(st.floats(0.6, 1.8), st.floats(0.85, 1.15), st.sampled_from([A100, H100, GB200]))
def test_three_rows_bring_back_a_machine_that_differs_in_latency_and_bandwidth(latency, bandwidth, cluster):
    sizes = np.array([1e3, 4e6, 8e9])
    theirs = [
        (float(s), 1e6 * float(t)) for s, t in zip(sizes, _other(sizes, cluster, latency, bandwidth), strict=True)
    ]
    mine = calibrate("all_reduce", 16, cluster, theirs)
    between = np.array([1e4, 1e5, 6e7, 1e9])
    assert mine.seconds(between) == pytest.approx(_other(between, cluster, latency, bandwidth), rel=0.12)


def _other(sizes, cluster, latency, bandwidth):
    small = estimate("all_reduce", 1.0, 16, cluster)
    return small * (latency - 1) + estimate("all_reduce", sizes / bandwidth, 16, cluster)


def test_rows_that_the_estimate_meets_change_nothing():
    rows = [(s, 1e6 * estimate("all_gather", s, 64, H100)) for s in (1e3, 1e6, 1e9)]
    mine = calibrate("all_gather", 64, H100, rows)
    assert mine.own.latency == pytest.approx(1, abs=1e-3)
    assert mine.own.bandwidth == pytest.approx(1, abs=1e-3)
    assert mine.off == pytest.approx([0, 0, 0], abs=1e-3)


def test_what_no_factor_explains_stays_near_the_row_that_showed_it():
    sizes = np.array([2.0**k for k in (10, 14, 18, 22, 26, 30)])
    plain = estimate("all_reduce", sizes, 16, H100) * 1e6
    odd = plain * [1, 1, 1.3, 1, 1, 1]  # slow around 256 KiB alone
    mine = calibrate("all_reduce", 16, H100, list(zip(sizes, odd, strict=True)))
    at = np.array([2.0**12, 2.0**18, 2.0**28])
    ratio = mine.seconds(at) / estimate("all_reduce", at, 16, H100)
    assert ratio[1] > 1.2
    assert ratio[[0, 2]] == pytest.approx([1, 1], abs=0.08)


def test_a_row_that_a_larger_message_beats_counts_as_that_one():
    rows = [(s, 1e6 * estimate("all_reduce", s, 16, H100)) for s in (8.0, 2.0**19, 2.0**30)]
    larger = rows[1][1]
    spike, equal = (calibrate("all_reduce", 16, H100, [(8.0, us), *rows[1:]]) for us in (500 * larger, larger))
    assert spike.seconds(SIZES) == pytest.approx(equal.seconds(SIZES))


def test_one_bad_row_among_good_ones_does_little():
    table = find("16 × H100, 2 × Nebius")
    good = [row for row in table.rows if row[0] in (64, 2**14, 2**20, 2**24, 2**28, 2**32)]
    spoilt = [(size, us * (10 if size == 2**20 else 1)) for size, us in good]
    sizes, us = np.array([row for row in table.rows if row[0] not in dict(good) and row[0] > 1024]).T
    off = {
        name: np.abs(calibrate("all_reduce", 16, H100, rows).seconds(sizes) * 1e6 / us - 1)
        for name, rows in (("good", good), ("spoilt", spoilt))
    }
    assert np.median(off["good"]) < 0.08
    assert np.median(off["spoilt"]) < 0.16


@given(st.lists(st.tuples(st.floats(1, 1e10), st.floats(1, 1e6)), min_size=1, max_size=8), CLUSTERS)
@settings(max_examples=25)
def test_calibrated_more_bytes_are_never_faster_whatever_the_rows(rows, cluster):
    mine = calibrate("all_reduce", 2 * cluster.gpus_per_node, cluster, rows)
    found = mine.seconds(SIZES)
    assert (np.diff(found) >= 0).all()
    assert (found > 0).all()
    assert len(mine.off) == len(rows)


def test_it_says_in_words_what_it_found():
    mine = calibrate("all_reduce", 16, H100, [(1024, 60), (2**23, 212), (2**30, 4531)])
    assert mine.latency == pytest.approx(60e-6, rel=0.1)
    assert 200 < mine.bandwidth < 400
    assert "16 GPUs" in repr(mine)
    assert "algbw up to" in repr(mine)


@pytest.mark.parametrize("rows", [[], [(0, 1)], [(8, -1)], [(8, float("nan"))]])
def test_rows_that_nobody_measured_are_refused(rows):
    with pytest.raises(LabError, match="bytes and µs"):
        calibrate("all_reduce", 16, H100, rows)
