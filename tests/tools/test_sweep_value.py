"""A sweep's rows become text, a table, a picture and plain data; no rank is started."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from labkit.floor.errors import LabError
from labkit.theory.samples import Timing
from workbook.tools.sweep.plot import rate
from workbook.tools.sweep.show import Row, Sweep


def timing(seconds: float) -> Timing:
    return Timing(((seconds, seconds / 2), (1.2 * seconds, seconds), (0.9 * seconds,) * 2), 10, "Gloo", "cpu")


def sweep(sizes=(1000, 10**6), op="all_reduce", right=True, note="") -> Sweep:
    """Times of exactly 100 µs + 1 ns a byte."""
    rows = [Row(op, 4, s, timing(1e-4 + 1e-9 * s), timing(1e-10 * s), right) for s in sizes]
    return Sweep(op, 4, "float32", "Gloo, 4 CPU ranks on one host", rows, note)


def test_the_text_has_a_line_for_each_size_and_says_what_was_measured_on_what():
    assert repr(sweep()).splitlines() == [
        "all_reduce, float32: Gloo, 4 CPU ranks on one host",
        "     size  time, median      min      p90     algbw      busbw  memory copy",
        "   1000 B        101 µs  90.9 µs   117 µs  9.9 MB/s  14.9 MB/s      10 GB/s",
        "976.6 KiB        1.1 ms   990 µs  1.28 ms  909 MB/s  1.36 GB/s      10 GB/s",
        "Fitted T = a + b · S: a = 100 µs, 1/b = 1 GB/s; off by 0 % at most.",
        "S is the whole buffer of one rank; algbw = S / t, busbw = algbw × 2(n-1)/n, "
        "GB/s = 10⁹ bytes per second (nccl-tests).",
        "Every result was checked and is right.",
    ]


def test_one_message_has_latency_and_price_a_collective_the_line_of_its_own():
    assert "Fitted T = α + β · S: α = 100 µs, 1/β = 1 GB/s" in repr(sweep(op="send_recv"))


def test_one_message_has_one_bandwidth_which_is_no_bus_bandwidth():
    one = sweep(op="send_recv")
    assert repr(one).splitlines()[1].split()[-4:] == ["p90", "S", "/", "t"]
    assert repr(one).splitlines()[2].endswith("9.9 MB/s")
    assert "bandwidth S / t" in one.svg.decode()
    assert "bus" not in f"{one!r} {one.alt} {one.svg.decode()}"


def test_a_wrong_result_and_a_missing_size_are_said():
    told = repr(sweep(right=False, note="You stopped the sweep after 2 of 3 sizes, 6 of 9 repetitions."))
    assert "1000 B ✗" in told
    assert "✗ Wrong results: 1000 B, 976.6 KiB." in told
    assert "You stopped the sweep after 2 of 3 sizes" in told
    assert "right." not in told


def test_the_picture_is_the_same_for_equal_rows_and_carries_its_words():
    one, other = sweep(), sweep()
    assert one.svg == other.svg
    assert ElementTree.fromstring(one.svg).tag.endswith("svg")
    assert "1000 B: 101 µs, 14.9 MB/s" in one.alt
    assert one._repr_html_().startswith('<img alt="all_reduce, float32')


def test_one_size_has_a_table_and_no_picture():
    html = sweep(sizes=[64])._repr_html_()
    assert "<img" not in html
    assert "<table" in html


def test_times_without_bytes_have_no_line_through_them():
    with pytest.raises(LabError, match="no bytes to fit"):
        _ = sweep(sizes=[0], op="barrier").fit


@pytest.mark.parametrize(("gbs", "said"), [(12.34, "12.3 GB/s"), (0.5, "500 MB/s"), (2e-6, "2 kB/s")])
def test_a_bandwidth_is_said_in_the_decimal_unit_that_fits(gbs, said):
    assert rate(gbs) == said
