"""Travelling through records written by hand, without a browser."""

from __future__ import annotations

import re
import xml.dom.minidom
from itertools import pairwise

import pytest

from labkit.errors import LabError
from labkit.outcome.outcome import Outcome, RankOutcome, Waiting
from labkit.plot import svg
from labkit.plot import travel as plot
from labkit.plot.sheet import LEAST
from labkit.show.travel import Travel
from labkit.theory.record import Held
from tests.recorded import Told, told


def rank(value, start, end, name="x"):
    return Told(2).meet("all_reduce", start, end, held=[Held(name, (1,), [value], [3.0])])


@pytest.fixture
def travel():
    return Travel(told(rank(1.0, 0, 30), rank(2.0, 20, 40)))


def test_its_text_tells_the_moments_and_how_it_ended(travel):
    assert repr(travel).splitlines() == [
        "0: before the first operation",
        "1: rank 0 calls all_reduce (line 2)",
        "2: rank 1 calls all_reduce (line 2)",
        "3: rank 0 leaves all_reduce (line 2): x [1] → [3]",
        "4: rank 1 leaves all_reduce (line 2): x [2] → [3]",
        "",
        "moment 4 of 4:",
        "ranks 0, 1: computing; x = [3]",
    ]


def test_it_opens_at_the_end_and_steps_to_both_ends_and_no_further(travel):
    back, on = travel.children[1].children[1:3]
    seen = [travel.step]
    for button in [on, *[back] * 5, on]:
        button.click()
        seen.append(travel.step)
    assert seen == [4, 4, 3, 2, 1, 0, 0, 1]


def test_a_moment_says_who_waits_for_whom_and_marks_what_has_just_changed(travel):
    assert "in all_reduce (line 2), waiting for rank 1" in travel.frame(1)
    assert "dashed" in travel.frame(1)
    assert "waiting" not in travel.frame(2)
    assert re.search(r"font-weight: bold\">3</span> was \[1\]", travel.frame(3))
    assert "was" not in travel.frame(4).split("</tr>")[1]


def test_the_cursor_goes_to_the_right_and_the_picture_stays(travel):
    places, pictures = [], set()
    for step in range(5):
        travel.go(step)
        places.append(float(re.search(r"left: ([\d.]+)%", travel._cursor.value)[1]))
        pictures.add(travel._stage.value)
    assert places == sorted(set(places))
    assert len(pictures) == 1
    assert "rank 0 calls all_reduce (line 2)" in pictures.pop()


def test_it_shows_without_a_front_end_and_carries_its_words(travel):
    bundle = travel._repr_mimebundle_()
    assert bundle["text/plain"] == repr(travel)
    assert 'alt="All ranks' in bundle["text/html"]
    assert "moment 4 of 4" in bundle["text/html"]
    assert "<style onload" not in bundle["text/html"]


def test_after_a_hang_it_ends_where_the_ranks_stood():
    hung = Told(2).meet("all_reduce", 0, 90, error="RuntimeError")
    freed = RankOutcome(0, ename="RuntimeError", raised="lab")
    outcome = Outcome([freed, RankOutcome(1)], ended="stuck", waiting={0: Waiting("all_reduce")})
    travel = Travel(told(hung, Told(2)), outcome)
    assert travel.does(travel.count, 0) == "in all_reduce (line 2), waiting for rank 1"
    assert b"RuntimeError" not in plot_of(travel)
    assert b"RuntimeError" in plot_of(Travel(told(hung, Told(2))))


def plot_of(travel):
    return svg.svg(plot.draw(plot.axes(travel.moments), travel.moments, 0))


def test_a_rank_without_a_record_says_why():
    travel = Travel([*told(rank(1.0, 0, 1)), None, {}], Outcome([], dead={2: "SIGKILL"}))
    assert [travel.does(0, r) for r in range(3)] == [
        "computing",
        "no answer, so nothing of it is known",
        "died (SIGKILL)",
    ]


def test_many_moments_are_drawn_in_several_pictures_whose_words_do_not_cross():
    log = Told(1)
    for k in range(150):
        log.meet("all_reduce", 2 * k, 2 * k + 1)
    travel = Travel(told(log))
    assert travel.count + 1 == 301
    assert len({travel.drawn(k) for k in range(301)}) == -(-301 // plot.COLUMNS)
    ax = plot.draw(plot.axes(travel.moments), travel.moments, 4 * plot.COLUMNS)
    assert min(text.get_fontsize() for text in ax.texts) >= LEAST
    numbers = sorted((t.get_position()[0], t.get_text()) for t in ax.texts if t.get_text().isdigit())
    assert all(b[0] - a[0] > 0.3 for a, b in pairwise(numbers))
    assert len(repr(travel).splitlines()) < 50


def test_its_picture_is_well_formed_and_the_same_every_time(travel):
    assert travel.drawn(0) == Travel(told(rank(1.0, 0, 30), rank(2.0, 20, 40))).drawn(0)
    xml.dom.minidom.parseString(plot_of(travel))


def test_long_names_and_long_tensors_are_cut_and_say_how_much_is_left_out():
    travel = Travel(told(Told(1).meet("all_reduce", held=[Held("a" * 60, (60,), list(range(60)), list(range(60)))])))
    assert "44 more" in travel.frame(1)
    assert "a" * 29 not in travel.frame(1)


def test_without_operations_it_says_what_to_do():
    with pytest.raises(LabError, match=r"Run one that communicates first"):
        Travel(told(Told(2), Told(2)))
