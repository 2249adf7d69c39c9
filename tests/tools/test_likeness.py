"""Which published machine a log resembles, and what is said of machines that fall short; of broken ones, too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.nccl_log import printed
from workbook.tools import costs
from workbook.tools.atlas.likeness import between, resembles, sold, verdict
from workbook.tools.atlas.nccl_tests import Log, read
from workbook.tools.published import TABLES, Table, find

DELL = find("16 × H100, 2 × Dell")
ALL_REDUCES = [t for t in TABLES if t.op == "all_reduce" and t.cluster and "GB200" not in t.name]


def log_of(table: Table, slower: float = 1.0, gpu: str = "") -> Log:
    return read(printed(table, gpu, slower, each=table.cluster.gpus_per_node if table.cluster else 8))


def said(log: Log) -> str:
    return " ".join(verdict(log).findings)


def changed(log: Log, factor) -> Log:
    """The log with each time times factor(size)."""
    return replace(log, rows=tuple((size, us * factor(size)) for size, us in log.rows))


def test_a_tables_own_log_resembles_it_most(subtests):
    for table in ALL_REDUCES:
        with subtests.test(table.name):
            found = resembles(log_of(table))
            assert found[0].table is table
            assert found[0].off < 1.01
            assert found[0].told == "within 1 % of it at all sizes"


def test_how_near_it_is_is_told_from_where_on():
    slow = changed(log_of(DELL), lambda size: 1.04 if size >= 2**26 else 2.0)
    (first,) = [like for like in resembles(slow) if like.table is DELL]
    assert first.since == 2**26
    assert first.told == "within 4 % of it from 64 MiB on; below, 2 times as long as it at the median"


def test_no_table_of_one_node_is_held_against_several_hosts():
    eight = replace(log_of(find("8 × H100, p5")), hosts=2)
    assert all(like.table.nodes > 1 for like in resembles(eight))
    alone = verdict(eight, [t for t in TABLES if t.n != 8])
    assert "GPUs: bus bandwidths are compared" in alone.resemblance


def test_an_operation_that_nobody_published_has_the_model_alone():
    log = replace(log_of(DELL), op="reduce")
    found = verdict(log, [DELL])
    assert not found.likenesses
    assert "Only the model" in found.resemblance
    assert all(band.best is None and band.to_model for band in found.bands)


def test_what_the_model_does_not_know_is_left_out():
    found = verdict(replace(log_of(DELL), op="send_recv"))
    assert all(band.to_model is None for band in found.bands)
    assert repr(found)


def test_each_band_has_the_best_table_of_its_kind_and_the_model():
    found = verdict(log_of(DELL, 2.0))
    assert [band.name for band in found.bands] == ["small", "middle", "large"]
    for band in found.bands:
        assert band.best is not None
        assert band.best.generation == "hopper"
        assert band.to_best == pytest.approx(2, rel=0.1)
        assert band.to_model == pytest.approx(2, rel=0.35)


def test_a_healthy_machine_is_not_called_slow():
    assert not any("bandwidth of" in finding or "GB/s" in finding for finding in verdict(log_of(DELL)).findings)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (lambda size: 8 / 7 if size > 2**22 else 1, "one NIC of eight"),
        (lambda size: 2.0 if size > 2**22 else 1, "two GPUs share a NIC"),
        (lambda size: 4.0 if size > 2**22 else 1, "GPUDirect RDMA"),
        (lambda size: 10.0 if size > 2**16 else 1, "1 NIC of 400 Gb/s can carry (50 GB/s); such servers have 8"),
        (lambda size: 150.0 if size > 2**16 else 3, "TCP sockets"),
        (lambda size: 3.0 if size < 2**20 else 1, "Small messages take 3 times"),
        (lambda size: 2.0 if 2**20 <= size < 2**26 else 1, "Only messages in the middle"),
        (lambda size: 2.0 if size == 2**20 else 1, "1 MiB takes"),
        (lambda size: 9.0 if size == 2**15 else 1, "Something disturbed the run"),
        (lambda size: 1.4 if size >= 2**32 else 1, "Bus bandwidth falls"),
    ],
)  # fmt: skip
def test_a_shape_is_told_by_what_it_usually_means(factor, words):
    smooth = replace(log_of(DELL), rows=log_of(DELL).rows[6:])  # without its spikes at 8 B and 256 B
    assert said(smooth) == ""
    assert words in said(changed(smooth, factor))


def test_pcie_in_place_of_nvlink():
    slow = changed(log_of(find("8 × H100, p5")), lambda size: 12.0 if size > 2**16 else 1)
    assert "is the speed of PCIe" in said(slow)


def test_rings_in_place_of_nvls():
    slow = changed(log_of(find("8 × H100, p5")), lambda size: 1.3 if size > 2**16 else 1)
    assert "NVLS" in said(slow)


def test_one_process_for_many_gpus_is_the_first_suspect_for_latency():
    slow = replace(changed(log_of(find("8 × H100, p5")), lambda size: 3.0 if size < 2**20 else 1), per_process=8)
    assert "One process launches for 8 GPUs" in said(slow)


def test_wrong_results_come_first():
    log = replace(log_of(DELL), wrong=((2**20, 12.0),))
    assert verdict(log).findings[0].startswith("#wrong is not 0: NCCL delivered wrong numbers at 1 MiB (12 elements).")
    assert "not checked" in said(replace(log_of(DELL), checked=False))


def test_sockets_that_nccl_names_are_no_guess():
    slow = replace(changed(log_of(DELL), lambda size: 100.0), network="Socket")
    assert "NCCL says that it used sockets" in said(slow)


def test_short_runs_are_asked_to_go_on():
    log = log_of(DELL)
    assert "bandwidth cannot be judged" in said(replace(log, rows=log.rows[:12]))


def test_two_nodes_over_tcp_as_published():
    """Polaris, 2 × 4 A100, NCCL 2.18 without its plugin (argonne-lcf/alcf-nccl-tests, results_polaris)."""
    rows = ((1048576, 414.7), (16777216, 4142.9), (134217728, 25283.0), (1073741824, 198842.0))
    found = verdict(Log("all_reduce", 8, rows, hosts=2, gpu="A100-SXM4-40GB", per_process=1))
    assert found.cluster is not None
    assert found.cluster.gpus_per_node == 4
    assert any("TCP sockets" in finding for finding in found.findings)


def test_the_machine_is_the_one_that_the_gpu_is_sold_in():
    assert sold(log_of(DELL)) == costs.H100
    assert sold(replace(log_of(DELL), network="AWS Libfabric")) == costs.RENTED["H100 EFA"]
    gh200 = sold(replace(log_of(DELL), gpu="GH200 120GB", hosts=4))
    assert gh200 is not None
    assert (gh200.gpus_per_node, gh200.rails) == (4, 4)
    assert sold(replace(log_of(DELL), gpu="Tesla T4")) is None
    rack = sold(replace(log_of(DELL), gpu="GB200", n=64, hosts=16))
    assert rack is not None
    assert rack.gpus_per_node == 72


def test_between_two_rows_lies_a_straight_line_on_logarithmic_scales():
    assert between(((1, 1.0), (100, 100.0)), np.array([10.0])) == pytest.approx([10.0])
    assert between(((1, 7.0), (4, 7.0)), np.array([2.0])) == pytest.approx([7.0])
