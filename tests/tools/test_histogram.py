"""Whole numbers that ranks have kept, counted: what the text says, how high a bar is, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.floor.errors import LabError
from tests import pictures
from workbook.tools.histogram.plot import Counts, up, values
from workbook.tools.histogram.show import Histogram


def test_the_text_has_each_ranks_mean_and_largest_and_how_many_times_each_value_occurs():
    counted = Histogram({"staleness": {1: [0, 2, 2], 2: [1], 3: []}, "bounded": {2: [1, 1]}})
    assert repr(counted).splitlines() == [
        "staleness",
        "rank 1 │ mean 1.33, largest 2, 3 values (0: 1 time, 2: 2 times)",
        "rank 2 │ mean 1, largest 1, 1 value (1: 1 time)",
        "rank 3 │ no values",
        "bounded",
        "rank 2 │ mean 1, largest 1, 2 values (1: 2 times)",
    ]
    assert "bounded: Rank 2: mean 1, largest 1, 2 values (1: 2 times)." in counted.alt
    assert counted.counts["staleness"] == {1: {0: 1, 2: 2}, 2: {1: 1}, 3: {}}
    assert counted.largest["staleness"] == {1: 2, 2: 1}


def test_numbers_that_are_names_have_no_mean():
    counted = Histogram({"expert": {0: [3, 0, 3], 1: []}}, mean=False)
    said = ["expert", "rank 0 │ 3 values (0: 1 time, 3: 2 times)", "rank 1 │ no values"]
    assert repr(counted).splitlines() == said
    assert not any("mean" in word.text for word in pictures.words(counted.svg))


def test_the_picture_carries_its_words_and_is_the_same_for_equal_numbers():
    one, other = Histogram({"x": {0: [1, 2]}}), Histogram({"x": {0: np.array([2.0, 1.0])}})
    assert one.svg == other.svg
    assert "How many times each value occurs, a bar for each rank. x: Rank 0" in one._repr_html_()
    drawn = [word.text for word in pictures.words(one.svg)]
    assert drawn.count("x") == 2, "the heading, and the name of the axis"
    assert "mean 1.5, largest 2" in drawn


def test_the_axis_begins_at_zero_and_panels_share_it():
    panels = Histogram({"near": {0: [3]}, "far": {0: [9]}})._panels
    assert values(panels).first == 0
    assert values(panels).last == 9
    assert values([Counts("x", {0: {-3: 1, 2: 1}}, {}, {})]).first == -3


@pytest.mark.parametrize("ranks", [1, 4, 16])
def test_of_many_values_several_share_a_bar_and_none_is_lost(ranks):
    counted = Histogram({"x": {r: list(range(r, 1000, 7)) for r in range(ranks)}})
    axis = values(counted._panels)
    assert axis.many * ranks <= 170
    for counts in counted.counts["x"].values():
        assert sum(axis.counted(counts)) == len(counts)
    assert "–" in axis.said(0)
    assert all(len(line) < 400 for line in repr(counted).splitlines())


def test_few_values_have_a_bar_each():
    axis = values(Histogram({"x": {r: list(range(40)) for r in range(4)}})._panels)
    assert (axis.width, axis.many) == (1, 40)


@pytest.mark.parametrize("value", [3, "123", ["1"], [1.5], None, [[1]], {"a": 1}, [float("nan")], [float("inf")]])
def test_what_is_no_list_of_whole_numbers_is_refused(value):
    with pytest.raises(LabError, match=r"'x' on rank 2 is not a list of whole numbers. Append one at a time"):
        Histogram({"x": {0: [1], 2: value}})


@pytest.mark.parametrize("tallest", [1, 2, 3, 9, 47, 999, 12345])
def test_figures_at_the_side_are_few_and_whole(tallest):
    found = up(tallest)
    assert found[0] == 0
    assert 2 <= len(found) <= 7
    assert found[-1] <= tallest


def test_nothing_at_all_is_drawn_as_nothing():
    assert "no values" in repr(Histogram({"x": {0: []}}))
    assert Histogram({"x": {0: []}}).svg
