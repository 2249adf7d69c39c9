"""The picture of computing beside communicating, from records written by hand; its text; and what it leaves alone."""

from __future__ import annotations

import re
import xml.dom.minidom
from itertools import pairwise

import pytest

from labkit.plot import rows
from labkit.plot.svg import svg
from labkit.plot.timeline import draw
from labkit.show.timeline import Timeline
from labkit.theory.record import read
from tests import pictures
from tests.recorded import Told, told


def texts(timeline: Timeline) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", timeline.svg.decode())


def rows_of(*ranks: Told) -> list[rows.Row]:
    record = read(told(*ranks))
    return rows.rows(record, rows.scale(record))


@pytest.fixture
def step() -> Timeline:
    """One bucket that leaves in the backward pass of two ranks, and is back before it ends."""
    each = (
        Told(2)
        .span("forward", 0, 40, "forward")
        .span("backward", 40, 100, "backward")
        .span("blocks.0", 41, 99, "backward")
        .start("all_reduce", 60, 90, (100, 101))
        for _ in range(2)
    )
    return Timeline(told(*each))


def test_without_spans_the_picture_and_the_text_are_those_of_the_operations_alone():
    def cell(there: float | None) -> Timeline:
        return Timeline(
            told(*(Told(2).start("all_reduce", 1, there, (5, 9)).meet("barrier", 10 + r, 12) for r in (0, 1)))
        )

    noted, plain = cell(3), cell(None)
    assert noted.svg == plain.svg == svg(draw(plain.record))
    assert repr(noted) == repr(plain)
    assert noted.alt == plain.alt
    assert "hidden" not in noted.alt


def test_the_text_says_the_spans_in_the_facts_and_how_much_is_hidden_in_the_times(step):
    facts, times = repr(step).split("\n\n")
    assert facts.splitlines() == [
        "ranks 0, 1 │ forward spans: forward",
        "ranks 0, 1 │ backward spans: backward, blocks.0",
        "ranks 0, 1 │ all_reduce 4 bytes, line 2, waited for in line 9",
    ]
    said = "computed for 99 ms; communication was under way for 30 ms, 29 ms of it (97 %) hidden behind computing"
    assert [f"rank {r} {said}" in times.splitlines() for r in (0, 1)] == [True, True]
    assert f"rank 1 {said}" in step.alt


def test_the_numbers_are_there_too(step):
    assert [(round(o.computing, 6), round(o.hidden, 6)) for o in step.overlap] == [(0.099, 0.029)] * 2
    assert step.overlap[0].share == pytest.approx(29 / 30)


def test_the_picture_names_spans_and_numbers_collectives_and_says_what_is_hidden(step):
    found = texts(step)
    assert found.count("forward · 40 ms") == 2
    assert found.count("blocks.0 · 58 ms") == 2
    assert found.count("1 · 4 B") == 2
    assert found.count("97 % of 30 ms") == 2
    for words in ("forward pass", "backward pass", "communication hidden behind computing", "rank 1"):
        assert words in found
    assert "waits for another rank" not in found


def test_forward_and_backward_differ_without_colour(step):
    forward, backward = r"url\(#", "<pattern"
    only = Timeline(told(Told(1).span("forward", 0, 40, "forward"))).svg.decode()
    assert not re.search(forward, only)
    assert backward not in only
    assert re.search(forward, step.svg.decode())


def test_every_picture_is_wellformed_and_the_same_twice(subtests):
    names = [name for name in pictures.names() if name.startswith("lanes")]
    assert names
    for name in names:
        with subtests.test(name):
            first = pictures.drawn(name)
            assert pictures.drawn.__wrapped__(name) == first
            xml.dom.minidom.parseString(first)
            assert len(first) < 300_000


def test_a_bar_is_dark_where_the_rank_did_not_compute_and_light_where_it_did():
    rank = Told(1).span("x", 0, 50).span("y", 80, 100).start("all_reduce", 20, 100, (100, 101))
    ((bar,),) = [row.bars for row in rows_of(rank)]
    assert [look for *_, look in bar.pieces] == ["exposed", "hidden", "exposed", "hidden"]  # the call itself first
    x = rows.Scale(1.03 * 0.101, rows.LEFT, rows.WIDE - rows.RIGHT)
    assert [a for a, *_ in bar.pieces] == pytest.approx([x(0.02), x(0.021), x(0.05), x(0.08)])
    assert (bar.pieces[0][0], bar.pieces[-1][1]) == (bar.start, bar.end)


def test_pieces_fill_a_bar_without_a_gap():
    for row in rows_of(*(Told(2).span("x", 0, 30).span("y", 60, 99).meet("all_reduce", 20 + r, 70) for r in (0, 9))):
        for bar in row.bars:
            assert bar.pieces[0][0] == bar.start
            assert bar.pieces[-1][1] == bar.end
            assert all(p[1] == q[0] for p, q in pairwise(bar.pieces))


def test_a_rank_that_came_late_is_seen_on_the_bars_of_the_others():
    early, late = (Told(2).span("x", 0, 10 + 50 * r).meet("all_reduce", 10 + 50 * r, 80) for r in (0, 1))
    first, second = rows_of(early, late)
    assert [look for *_, look in first.bars[0].pieces] == ["waited", "exposed"]
    assert [look for *_, look in second.bars[0].pieces] == ["exposed"]


def test_operations_at_the_same_time_lie_on_tracks_of_their_own_and_later_ones_on_the_first():
    rank = Told(1).span("x", 0, 100)
    for start, there in ((0, 50), (10, 60), (20, 70), (95, 99)):
        rank.start("all_reduce", start, there, (100, 100))
    assert [bar.track for bar in rows_of(rank)[0].bars] == [0, 1, 2, 0]


def test_spans_lie_below_those_that_they_are_in():
    rank = (
        Told(1).span("step", 0, 100).span("forward", 0, 40).span("a", 0, 20).span("b", 20, 40).span("backward", 40, 99)
    )
    assert {span.name: level for span, level in rows_of(rank)[0].spans} == {
        "step": 0, "forward": 1, "a": 2, "b": 2, "backward": 1,
    }  # fmt: skip


def test_a_collective_has_the_same_number_on_every_rank():
    a = Told(3).span("x", 0, 9).meet("barrier", 0, 5, ranks=[0, 2]).meet("all_reduce", 6, 9)
    b = Told(3).span("x", 0, 9).meet("all_reduce", 1, 9)
    c = Told(3).span("x", 0, 9).meet("barrier", 2, 5, ranks=[0, 2]).meet("all_reduce", 7, 9)
    found = [[bar.words[-1] for bar in row.bars] for row in rows_of(a, b, c)]
    assert found == [["1", "2"], ["2"], ["1", "2"]]


def test_an_end_that_nobody_knows_is_left_open_and_said():
    timeline = Timeline(told(Told(1).span("backward", 0, 50).meet("all_reduce", 10, 10, witnessed=True)))
    assert "it is not known when its data was there" in texts(timeline)
    assert "?" in texts(timeline)
    assert "(not counted: 1 operation with no record of when the data was there)" in timeline.times
    assert "1 operation with no record of when" in timeline.alt


def test_what_an_exception_left_says_so():
    timeline = Timeline(told(Told(1).span("backward", 0, 50, error="KeyError")))
    assert "✗ KeyError" in texts(timeline)
    assert "spans: backward (ended with KeyError)" in timeline.facts
    assert "and communicated nothing" in timeline.times


def test_fifty_four_small_messages_at_once_have_room():
    rank = Told(1).span("backward", 0, 100, "backward")
    for k in range(54):
        rank.start("all_reduce", k, 100, (100, 101))
    (row,) = rows_of(rank)
    assert row.left_out == 0
    assert row.tracks == 54
    assert row.height < 8


def test_what_there_is_no_room_for_is_counted():
    rank = Told(1).span("deep", 0, 90)
    for k in range(5):
        rank.span(f"deeper {k}", k, 90 - k)
    timeline = Timeline(told(rank))
    (note,) = [words for words in texts(timeline) if words.startswith("not drawn")]
    assert "2 of the spans" in note
    assert "deeper 4" in timeline.facts
