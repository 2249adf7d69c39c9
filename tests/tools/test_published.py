"""NCCL's model against what others measured: what it meets, and what it misses."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from labkit.floor.errors import LabError
from workbook.tools.costs import H100, choose, nccl
from workbook.tools.costs.estimate import estimate
from workbook.tools.published import LARGE, TABLES, compare, find, judge
from workbook.tools.published.judge import chosen
from workbook.tools.timing import algbw, busbw

GIB = 2**30
FIRST = TABLES[:7]
FIRM = [t for t in FIRST if t.n < 1440]
MODELLED = [t for t in TABLES if t.cluster and t.op in nccl.OPS]


@cache
def compared():
    return compare()


@cache
def judged():
    return judge(again=False)


def test_every_table_names_its_source_and_every_row_is_in_the_comparison():
    assert all("/" in t.source for t in TABLES)
    assert len({t.name for t in TABLES}) == len(TABLES)
    assert len(compared().rows) == sum(len(t.rows) for t in MODELLED)


def test_rows_grow_in_size_and_times_are_above_zero():
    for t in TABLES:
        sizes = [size for size, _ in t.rows]
        assert sizes == sorted(set(sizes)), t.name
        assert all(us > 0 for _, us in t.rows), t.name


def test_a_table_is_found_by_its_name_or_by_a_part_that_no_other_has():
    assert find("8 × H100, p5").name == "8 × H100, p5"
    assert find("2 × lambda").generation == "blackwell"
    with pytest.raises(LabError, match="Choose one of"):
        find("A100,")
    with pytest.raises(LabError, match="No tables"):
        find("TPU")


@pytest.mark.parametrize(
    ("table", "version", "constants"),
    [
        ("16 × H100, 2 × Dell", "2.26.2", "2.28.3"),
        ("16 × A100, 2 × OCI", "2.29.3", "2.29.2"),
        ("8 × A100", "", "2.28.3"),
    ],
)
def test_a_table_says_its_version_of_nccl_and_is_held_against_the_nearest_constants(table, version, constants):
    assert find(table).version == version
    assert nccl.nearest(version).first == constants


@pytest.mark.parametrize(
    ("table", "nbytes", "alg", "bus"),
    [
        ("16 × A100, 2 × p4de", 2147483648, 41.78, 78.33),
        ("16 × H100, 2 × p5", 17179869184, 259.78, 487.09),
        ("8 × A100", 67108864, 98.02, 171.54),
        ("8 × H200", 17179869184, 275.58, 482.26),
        ("72 × GB200", 8589934592, 423.16, 834.57),
        ("128 × GB200", 536870912, 248.92, 493.94),
        ("1440 × GB200", 17179869184, 203.01, 405.74),
    ],
)
def test_the_rows_bandwidths_are_those_that_were_published(table, nbytes, alg, bus):
    (row,) = (r for r in compared().rows if r.table == table and r.nbytes == nbytes)
    assert algbw(nbytes, row.published * 1e-6) == pytest.approx(alg, rel=2e-3)
    assert busbw("all_reduce", row.n, nbytes, row.published * 1e-6) == pytest.approx(bus, rel=2e-3)


@pytest.mark.parametrize("table", [t.name for t in FIRM])
def test_as_it_is_the_model_is_within_25_percent_from_8_gib_on(table):
    every = [r for r in compared().rows if r.table == table]
    rows = [r for r in every if r.nbytes >= 8 * GIB] or [r for r in every if r.nbytes >= GIB]
    assert rows
    assert all(0.75 <= r.ratio <= 1.25 for r in rows), [(r.nbytes, r.ratio) for r in rows]


def test_without_nvls_eight_h200_reach_the_rings_bandwidth():
    # stas00/ml-engineering, network/README.md, SHARP: the same node without it has a busbw of 367.61 GB/s.
    table = choose("all_reduce", 16 * GIB, 8, H100).table
    (ring,) = (t for algorithm, protocol, t in table if (algorithm, protocol) == ("Ring", "Simple"))
    assert busbw("all_reduce", 8, 16 * GIB, ring) == pytest.approx(367.61, rel=0.02)


def test_the_misses_are_known():
    """What the model gets wrong as it is; a better model changes these lines."""
    missed = {t.name: 0 for t in FIRST}
    for r in compare(FIRST).rows:
        bounds = (0.5, 2.0) if r.nbytes < LARGE else (0.75, 1.25)
        missed[r.table] += not bounds[0] <= r.ratio <= bounds[1]
    assert missed == {
        "8 × A100": 6,  # one node's small messages: 32 to 102 µs, and the model says 16 to 36
        "8 × H200": 6,
        "16 × A100, 2 × p4de": 1,
        "16 × H100, 2 × p5": 11,  # the plugin declares 75 µs of latency, and the whole run took 69
        "72 × GB200": 3,
        "128 × GB200": 4,
        "1440 × GB200": 6,  # all of them: too fast by 2.5 to 6
    }


def test_large_messages_are_met_within_4_percent_and_a_few_rows_help():
    as_it_comes, three, six = (judged().off(given)[0] for given in (0, 3, 6))
    assert as_it_comes <= 0.08
    assert three <= 0.055
    assert six <= 0.032
    assert judged().off(0, lambda e: e.nbytes >= LARGE)[0] <= 0.04
    assert "90th percentile" in repr(judged())


def test_errors_are_of_rows_that_were_not_given():
    table = find("16 × H100, 2 × Dell")
    given = {table.rows[i][0] for i in chosen(table, 6)}
    assert len(given) == 6
    assert {table.rows[0][0], table.rows[-1][0]} <= given
    rows = [e for e in judged().errors if e.table is table and e.given == 6]
    assert {e.nbytes for e in rows} == {size for size, _ in table.rows} - given


def test_odd_machines_and_others_libraries_are_in_the_atlas_and_not_in_the_claim():
    assert not find("8 × MI300X").claimed
    assert not find("2048 × GH200, Alps").claimed
    assert {e.table for e in judged().errors} == {t for t in TABLES if t.claimed}


def test_the_largest_run_is_a_miss_that_is_known():
    off = [e.off for e in judged().errors if e.table.n == 1440 and e.given == 0]
    assert min(off) > 0.3, "twenty racks: too fast by a factor of two to three"


def test_most_runs_on_more_than_a_thousand_gpus_take_longer_than_estimated_as_lesson_07_says():
    slower = []
    for table in [t for t in TABLES if t.cluster and t.n > 1000]:
        sizes, us = np.array(table.rows).T
        slower.append(us / (estimate(table.op, sizes, table.n, table.cluster) * 1e6))
    middle = [float(np.median(each)) for each in slower]
    assert len(middle) == 10
    assert sum(m > 1 for m in middle) == 9
    assert sum(1.9 < m < 4.1 for m in middle) >= 6
    assert max(each.max() for each in slower) == pytest.approx(13, rel=0.1)
