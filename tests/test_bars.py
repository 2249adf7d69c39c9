"""Bytes that ranks hold as stacked bars: what the text says, how long a bar is, what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from labkit.floor.errors import LabError
from labkit.plot.bars import LOOKS, ticks
from labkit.plot.sheet import RANKS
from labkit.show.bars import Bars
from tests import pictures

DDP = {"weights": 4096, "gradients": 4096, "optimizer": 8192}
ZERO1 = [{**DDP, "optimizer": size} for size in (3072, 1024)]


def test_the_text_has_every_total_and_what_it_is_made_of():
    bars = Bars({"ddp": [DDP, DDP], "zero1": ZERO1}, formula={"ddp": 16384, "zero1": [11264, 9216]})
    assert repr(bars).splitlines() == [
        "ddp · the formula says 16 KiB per rank",
        "ranks 0, 1 │ 16 KiB: weights 4 KiB, gradients 4 KiB, optimizer 8 KiB",
        "zero1 · the formula says 11 KiB and 9 KiB per rank",
        "rank 0 │ 11 KiB: weights 4 KiB, gradients 4 KiB, optimizer 3 KiB",
        "rank 1 │ 9 KiB: weights 4 KiB, gradients 4 KiB, optimizer 1 KiB",
    ]
    assert bars.totals == {"ddp": [16384, 16384], "zero1": [11264, 9216]}


def test_the_words_of_the_picture_say_the_same_as_the_text():
    bars = Bars({"ddp": [DDP, DDP], "zero1": ZERO1}, formula={"ddp": 16384})
    assert "zero1: Rank 0: 11 KiB: weights 4 KiB, gradients 4 KiB, optimizer 3 KiB. Rank 1: 9 KiB" in bars.alt
    assert "ddp · the formula says 16 KiB per rank" in bars._repr_html_()
    drawn = [word.text for word in pictures.words(bars.svg)]
    for said in ("16 KiB", "11 KiB", "9 KiB", "formula: 16 KiB", "weights", "optimizer", "rank 1", "zero1"):
        assert said in drawn


def test_all_bars_are_on_one_scale():
    widths = bar_widths(Bars({"all": [{"a": 4000}], "half": [{"a": 2000}], "none": [{"a": 0}]}))
    assert sorted(widths) == [pytest.approx(max(widths) / 2, abs=1), max(widths)]


def bar_widths(bars: Bars) -> list[int]:
    """How long the bars are, from the axis on: each has a ground and an edge."""
    boxes = re.findall(r'd="m774 \d+h(\d+)v152h-', bars.svg.decode())
    return sorted({int(width) for width in boxes})


def test_colours_mean_ranks_and_what_is_in_a_bar_has_none():
    grounds = {ground for ground, _, _ in LOOKS} | {ink for _, _, ink in LOOKS}
    assert not grounds & set(RANKS)
    assert len({(ground, hatch) for ground, hatch, _ in LOOKS}) == len(LOOKS)
    drawn = Bars({"x": [DDP]}).svg.decode()
    assert drawn.count(RANKS[0].lower()) == 1, "the chip at the foot of its bar"


def test_a_formula_is_drawn_beside_its_own_bars_alone():
    without = Bars({"ddp": [DDP], "zero1": [DDP]})
    one = Bars({"ddp": [DDP], "zero1": [DDP]}, formula={"ddp": 16000})
    assert "formula" not in without.svg.decode()
    assert [w.text for w in pictures.words(one.svg)].count("formula: 15.62 KiB") == 1


def test_equal_bytes_give_an_equal_picture_and_numpys_numbers_are_numbers():
    one, other = Bars({"x": [{"a": 7}]}), Bars({"x": [{"a": np.float32(7)}]})
    assert one.svg == other.svg
    assert Bars({"x": [{}]}).totals == {"x": [0]}


@pytest.mark.parametrize("value", [3.0, [1, 2], "weights", None])
def test_what_is_no_dict_is_refused(value):
    with pytest.raises(LabError, match=r"'x' on rank 1 is a \w+, not a dict .* x = footprint\(model, optimizer\)\."):
        Bars({"x": [DDP, value]})


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf"), "4 KiB", None, True, [3]])
def test_what_is_no_number_of_bytes_is_refused(size):
    with pytest.raises(LabError, match=r"x\['weights'\] on rank 0 is .* Keep numbers, 0 or more"):
        Bars({"x": [{"weights": size}]})


@pytest.mark.parametrize("formula", [{"ddp": -1}, {"ddp": [1, 2, 3]}, {"ddp": "16 Ψ"}, {"zero": 1}, [3]])
def test_a_formula_that_fits_no_bar_is_refused(formula):
    with pytest.raises(LabError, match="formula"):
        Bars({"ddp": [DDP, DDP]}, formula)


@pytest.mark.parametrize("most", [0, 1, 3, 999, 1023, 1024, 450 * 1024, 2**20, 3.3e9, 2**50])
def test_ticks_are_few_and_round_and_not_beyond_the_longest_bar(most):
    found = ticks(most)
    assert found[0] == 0
    assert 2 <= len(found) <= 7
    assert 0.5 * (most or 1) <= found[-1] <= (most or 1) * (1 + 1e-9)


def test_one_bar_stands_for_ranks_that_hold_the_same():
    alike, apart = (Bars({"held": [{"weights": 4}, {"weights": size}]}).svg for size in (4, 5))
    assert (b">each rank<" in alike, b">rank 1<" in alike) == (True, False)
    assert (b">each rank<" in apart, b">rank 1<" in apart) == (False, True)
