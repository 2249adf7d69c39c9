"""algbw and busbw as nccl-tests defines them."""

from __future__ import annotations

import pytest

from labkit.floor.errors import LabError
from workbook.tools import timing
from workbook.tools.timing import busbw, busbw_factor, size


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 100_000])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(n):
    assert busbw_factor("all_reduce", n) == busbw_factor("reduce_scatter", n) + busbw_factor("all_gather", n)


def test_with_a_bandwidth_optimal_algorithm_busbw_is_the_links_bandwidth_for_any_number_of_ranks():
    link = 25e9
    for n in (2, 3, 8, 1000):
        seconds = 2 * (n - 1) / n * 1e9 / link
        assert busbw("all_reduce", n, 1e9, seconds) == pytest.approx(25)


@pytest.mark.parametrize(
    ("n", "nbytes", "microseconds", "algbw", "bus"),
    [  # rows that nccl-tests itself printed; the sources stand in workbook.tools.published
        (8, 67108864, 684.6, 98.02, 171.54),
        (16, 268435456, 7201.7, 37.27, 69.89),
        (72, 536870912, 1806.7, 297.16, 586.06),
    ],
)
def test_rows_that_nccl_tests_printed_come_out_as_printed(n, nbytes, microseconds, algbw, bus):
    assert timing.algbw(nbytes, microseconds * 1e-6) == pytest.approx(algbw, rel=1e-3)
    assert busbw("all_reduce", n, nbytes, microseconds * 1e-6) == pytest.approx(bus, rel=1e-3)


def test_every_operation_that_gathers_or_scatters_counts_the_whole():
    assert {op for op in timing.OPS if size(op, 4, 1) == 4} == {"gather", "all_gather", "scatter", "reduce_scatter"}


@pytest.mark.parametrize(("op", "n", "says"), [("barrier", 4, "no data"), ("sum", 4, "Choose one"), ("reduce", 0, "1")])
def test_what_has_no_bandwidth_is_refused(op, n, says):
    with pytest.raises(LabError, match=says):
        busbw_factor(op, n)
