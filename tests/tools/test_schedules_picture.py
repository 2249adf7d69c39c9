"""Schedules that draw themselves: their words, their pictures, and what is too large."""

from __future__ import annotations

import base64
import re
import xml.dom.minidom

import pytest

from labkit import draw
from labkit.floor.errors import LabError
from workbook.tools import schedules


def texts(drawn) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn.svg.decode())


def test_the_text_lists_the_steps():
    assert repr(draw(schedules.tree("broadcast", 4))).splitlines() == [
        "tree, broadcast on 4 ranks: 1 chunk, 2 steps, a rank sends 0 S to 2 S",
        "step 1: 0→1 =0",
        "step 2: 0→2 =0 · 1→3 =0",
    ]


def test_added_and_copied_chunks_are_told_apart():
    lines = repr(draw(schedules.ring("all_reduce", 3))).splitlines()
    assert lines[1] == "step 1: 0→1 +2 · 1→2 +0 · 2→0 +1"
    assert lines[-1] == "step 4: 0→1 =2 · 1→2 =0 · 2→0 =1"


@pytest.mark.parametrize("n", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5))])
def test_every_schedule_has_a_picture_that_says_its_steps(n):
    for op in ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"):
        for schedule in schedules.of(op, n):
            drawn = draw(schedule)
            xml.dom.minidom.parseString(drawn.svg)
            assert repr(schedule).splitlines()[0] in texts(drawn)
            assert sum(t.startswith("step ") for t in texts(drawn)) == min(len(schedule.steps), 16)


def test_equal_schedules_have_equal_pictures():
    assert draw(schedules.ring("all_reduce", 4)).svg == draw(schedules.ring("all_reduce", 4)).svg


def test_in_the_end_of_an_all_reduce_each_cell_has_everyones_contribution():
    assert texts(draw(schedules.halving_doubling("all_reduce", 4))).count("4") >= 16


def test_the_trees_of_a_double_tree_are_drawn_above_its_steps():
    assert {"tree 1, half 1 of the buffer", "tree 2, half 2 of the buffer"} <= set(
        texts(draw(schedules.double_tree("all_reduce", 8)))
    )


def test_a_rank_that_is_inner_in_both_trees_is_named():
    def notes(n: int) -> list[str]:
        return [t for t in texts(draw(schedules.double_tree("all_reduce", n))) if t.startswith("Bold circles")]

    assert notes(8) == ["Bold circles are inner ranks, which add and send on: each in one tree."]
    assert notes(5) == [
        "Bold circles are inner ranks, which add and send on: each in one tree; only rank 0 is one in both."
    ]


def test_a_long_title_fits_on_its_card():
    wide = float(
        re.search(r'viewBox="0 0 ([0-9.]+)', draw(schedules.recursive_doubling("all_reduce", 6)).svg.decode())[1]
    )
    assert wide > 36 * 12.2


def test_the_picture_carries_its_words():
    drawn = draw(schedules.ring("all_reduce", 4))
    alt, data = re.match(r'<img alt="([^"]*)".*base64,([^"]*)"', drawn._repr_html_()).groups()
    assert alt == repr(drawn)
    assert base64.b64decode(data) == drawn.svg


def test_of_many_steps_the_first_and_the_last_ones_are_told():
    drawn = draw(schedules.ring("all_reduce", 16))
    assert "…" in repr(drawn).splitlines()
    assert "30 steps; only the first and the last ones are drawn." in texts(drawn)
    assert len(drawn.svg) < 250_000


def test_more_ranks_than_a_picture_holds_are_told_in_words():
    drawn = draw(schedules.tree("broadcast", 40))
    assert drawn._repr_html_() is None
    assert "40 ranks" in repr(drawn)


def test_what_is_no_schedule_is_refused():
    with pytest.raises(LabError, match="Draw one of"):
        draw("ring")
