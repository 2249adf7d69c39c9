"""Times that ranks have kept, as dots: what the text says, what is hollow, which scale, how large the picture is."""

from __future__ import annotations

import re

import pytest

from labkit.floor.errors import LabError
from labkit.show.times import Times
from tests import pictures


def test_the_text_has_each_rank_s_median_and_reach():
    times = Times({"readings": [[2e-3, 1e-3, 4e-3], [5e-3, 5e-3]]})
    assert repr(times).splitlines() == [
        "readings",
        "rank 0 │ median 2 ms, from 1 ms to 4 ms, 3 repetitions",
        "rank 1 │ median 5 ms, from 5 ms to 5 ms, 2 repetitions",
    ]


def test_warm_ups_are_hollow_and_not_in_the_median():
    cold, warm = Times({"t": [[1.0, 2e-3, 3e-3]]}), Times({"t": [[1.0, 2e-3, 3e-3]]}, warmup=1)
    assert cold.medians == {"t": [3e-3]}
    assert warm.medians["t"] == [pytest.approx(2.5e-3)]
    assert "2 repetitions after 1 warm-up" in repr(warm)
    assert "one of 1 to warm up" in warm.svg.decode()
    assert "warm up" not in cold.svg.decode()


def test_a_rank_that_only_warmed_up_has_no_median():
    times = Times({"t": [[1e-3], []]}, warmup=2)
    assert times.medians == {"t": [None, None]}
    assert "no repetitions after 1 warm-up" in repr(times)
    assert times.svg


@pytest.mark.parametrize(("longest", "unit"), [(2.0, "time in s"), (2e-3, "time in ms"), (2e-4, "time in µs")])
def test_the_axis_has_the_unit_that_fits_and_begins_at_zero(longest, unit):
    text = Times({"t": [[0.6 * longest, longest]]}).svg.decode()
    assert f">{unit}<" in text
    assert re.search(r">0(\.0+)?</text>", text)


def test_times_far_apart_are_on_a_logarithmic_scale_that_says_so():
    assert "logarithmic" in pictures.measured(4, 3).svg.decode()
    assert "logarithmic" not in pictures.measured(4, 0).svg.decode()


def test_several_lists_stand_over_one_axis():
    both = Times({"quick": [[1e-3], [2e-3]], "slow": [[3e-3], [4e-3]]})
    assert repr(both).splitlines()[:3:2] == ["quick", "rank 1 │ median 2 ms, from 2 ms to 2 ms, 1 repetition"]
    text = both.svg.decode()
    assert text.count(">rank 1<") == 2
    assert text.count(">time in ms<") == 1
    assert ">slow<" in text
    assert "slow: Rank 0: median 3 ms" in both.alt


def test_of_a_thousand_repetitions_some_are_drawn_and_the_picture_says_so():
    many = pictures.measured(4, 3, 1000)
    assert "Of 1,000 repetitions one in 4 is drawn." in many.svg.decode()
    assert len(many.svg) < 100_000


def test_the_picture_carries_its_words_and_is_the_same_again():
    times = pictures.measured(2, 1)
    assert "Rank 1: median" in times._repr_html_()
    assert times.svg == pictures.measured(2, 1).svg


def test_what_is_no_time_is_refused():
    with pytest.raises(LabError, match="finite numbers of seconds"):
        Times({"t": [[1.0, float("nan")]]})
    with pytest.raises(LabError, match="warmup=-1"):
        Times({"t": [[1.0]]}, warmup=-1)
