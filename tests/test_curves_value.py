"""What ranks recorded becomes text, words and a picture; no rank is started."""

from __future__ import annotations

from math import nan
from xml.etree import ElementTree

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.plot.curves import ticks
from labkit.show.curves import Curves

FALLING = [3.0, 2.5, 2.25]


def test_the_text_says_how_many_different_curves_there_are_and_where_each_begins_and_ends():
    assert repr(Curves({"apart": {0: FALLING, 1: [3.0, 2.0, 2.5]}, "together": {0: FALLING, 1: FALLING}})) == (
        "apart · 2 different curves\n"
        "rank 0 │ 3.00 → 2.25 (3 values)\n"
        "rank 1 │ 3.00 → 2.50 (3 values)\n"
        "together · ranks 0, 1: one curve\n"
        "rank 0 │ 3.00 → 2.25 (3 values)\n"
        "rank 1 │ 3.00 → 2.25 (3 values)"
    )


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        ({0: FALLING, 1: [*FALLING[:2], 2.2501]}, "ranks 0, 1: one curve"),
        ({0: FALLING, 1: [*FALLING[:2], 2.26]}, "2 different curves"),
        ({0: FALLING, 1: [4, 4, 4], 2: FALLING, 3: FALLING[:2]}, "3 different curves, ranks 0, 2 alike"),
        ({2: FALLING}, "rank 2"),
        ({0: FALLING, 1: [3.0, nan, nan]}, "2 different curves; rank 1: not all of it finite"),
        ({0: [nan, nan], 1: [nan, nan]}, "ranks 0, 1: one curve; ranks 0, 1: not all of it finite"),
    ],
)
def test_lines_that_nobody_can_tell_apart_are_one_curve(lines: dict[int, list[float]], note: str):
    curves = Curves({"x": lines})
    assert repr(curves).splitlines()[0] == f"x · {note}"
    assert note in curves.alt
    assert ElementTree.fromstring(curves.svg).tag.endswith("svg")


def test_the_picture_is_the_same_for_equal_values_and_carries_its_words():
    one, other = (Curves({"loss": {0: FALLING, 1: np.array(FALLING)}}, every=5) for _ in range(2))
    assert one.svg == other.svg
    assert one._repr_html_().startswith(
        '<img alt="Values over steps, a line a rank. loss, ranks 0, 1: one curve: rank 0'
    )


@pytest.mark.parametrize("value", [3.0, [], "losses", [[1.0], [2.0]], None, [FALLING, [1.0]]])
def test_what_is_no_list_of_numbers_is_said_with_the_next_action(value: object):
    with pytest.raises(LabError, match=r"'x' on rank 1 is no list of numbers to draw. Append one number a step"):
        Curves({"x": {0: FALLING, 1: value}})


@pytest.mark.parametrize(("low", "high"), [(0, 0), (5, 5), (-3.2, 1.1), (1e-7, 3e-7), (1, 1e30), (2.4999, 2.5001)])
def test_ticks_enclose_the_values_and_are_few(low: float, high: float):
    found = ticks(low, high)
    assert 2 <= len(found) <= 8
    assert found[0] <= low + 1e-9 * abs(low)
    assert found[-1] >= high - 1e-9 * abs(high)
    assert len(set(found)) == len(found)
