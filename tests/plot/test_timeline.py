"""The space–time diagram of records written by hand: its text, its alternative text, its picture."""

from __future__ import annotations

import base64
import re
import xml.dom.minidom

import pytest

from labkit.plot import timeline as picture
from labkit.plot.sheet import extent
from labkit.show.timeline import Timeline
from tests import pictures
from tests.recorded import Told, told


@pytest.fixture
def late():
    return Timeline(told(*(Told(3).meet("all_reduce", start, 205, reduce="sum", line=3) for start in (0, 1, 200))))


def test_the_text_says_first_what_is_the_same_in_every_run(late):
    facts, times = repr(late).split("\n\n")
    assert facts == "ranks 0–2 │ all_reduce(sum) 4 bytes, line 3"
    assert times.splitlines()[-1] == "ranks 0, 1 waited 199 ms to 200 ms for rank 2 in all_reduce (line 3)"


def test_the_alternative_text_says_who_waited_for_whom_and_how_long(late):
    assert "ranks 0, 1 waited 199 ms to 200 ms for rank 2" in late.alt
    assert "Space–time diagram of 3 ranks" in late._repr_html_()


def test_the_picture_is_wellformed_and_says_the_same(late):
    picture = base64.b64decode(re.search(r'base64,([^"]+)"', late._repr_html_())[1]).decode()
    xml.dom.minidom.parseString(picture)
    for words in ("rank 0", "all_reduce · line 3", "waits 200 ms for rank 2", "ms since the first operation"):
        assert words in picture


def test_equal_records_have_equal_pictures():
    def again():
        return Timeline(told(Told(2).send(1, 0, 3), Told(2).recv(0, 2, 3))).svg

    assert again() == again()


def test_messages_and_what_nobody_took_are_told():
    timeline = Timeline(told(Told(2).send(1, line=1), Told(2).recv(0, tag=3, line=4)))
    assert "rank 0 │ send → rank 1 4 bytes, line 1" in timeline.facts
    assert "no rank received what rank 0 sent to rank 1 (line 1)" in timeline.facts
    assert "rank 0 sent nothing that rank 1 could receive (line 4)" in timeline.facts


def test_a_rank_that_never_came_is_named():
    timeline = Timeline(told(Told(2).meet("barrier", 0, 900, error="RuntimeError"), Told(2)))
    assert "rank 1 never came to barrier (line 2) of rank 0" in timeline.facts
    assert "rank 0 waited 900 ms in barrier (line 2) for rank 1, which never came" in timeline.times
    assert "✗ never came to barrier" in timeline.svg.decode()


def test_ranks_that_call_different_operations_are_named():
    timeline = Timeline(told(Told(2).meet("barrier"), Told(2).meet("all_reduce")))
    assert (
        "ranks called different operations: barrier (line 2) of rank 0; all_reduce (line 2) of rank 1" in timeline.facts
    )


def test_a_sub_group_is_named():
    timeline = Timeline(told(Told(3).meet("barrier", ranks=[0, 2]), Told(3), Told(3).meet("barrier", ranks=[0, 2])))
    assert timeline.facts.startswith("ranks 0, 2 │ barrier 4 bytes, in the group of ranks 0, 2, line 2\nrank 1")


def test_an_empty_cell_has_a_picture_too():
    timeline = Timeline(told(Told(2), Told(2)))
    assert timeline.facts == "ranks 0, 1 │ nothing"
    assert timeline.svg


@pytest.mark.parametrize("n", [1, 2, 8])
def test_one_to_eight_ranks_have_a_picture(n):
    xml.dom.minidom.parseString(Timeline(told(*(Told(n).meet("barrier", r, n + 1) for r in range(n)))).svg)


def test_hundreds_of_operations_have_a_picture_of_bearable_size():
    def busy(n=200):
        rank = Told(2)
        for i in range(n):
            rank.meet("all_reduce", 10 * i, 10 * i + 5)
        return rank

    assert len(Timeline(told(busy(), busy())).svg) < 300_000


def late_receiver():
    """A send that lasts a second, as rank 1 comes late; and its receive at the picture's right edge."""
    a = Told(2).meet("barrier", 3, 14, line=4).send(1, 15, 1013, line=7)
    b = Told(2).meet("barrier", 11, 15, line=4).recv(0, 1012, 1016, line=10)
    return Timeline(told(a, b))


@pytest.mark.parametrize("made", [late_receiver, pictures.crossing])
def test_no_arrow_runs_through_a_label(made):
    record = made().record
    ax = picture.draw(record)
    arrows = [(t.xyann, t.xy) for t in ax.texts if getattr(t, "arrow_patch", None) and t.xy[1] > 1]
    labels = [t for t in ax.texts if " · " in t.get_text()]
    assert arrows
    assert len(labels) == sum(map(len, record.ops))
    for label in labels:
        left, y = label.get_position()
        right = left + extent(label.get_text(), 7.5)
        for (x0, y0), (x1, y1) in arrows:
            steps = [(x0 + (x1 - x0) * k / 50, y0 + (y1 - y0) * k / 50) for k in range(51)]
            assert not [p for p in steps if left < p[0] < right and abs(p[1] - y) < 0.12], label.get_text()


def test_from_a_second_on_the_axis_counts_seconds():
    assert "s since the first operation was entered" in words_of(late_receiver())
    assert {"0.0", "0.2", "1.0"} <= words_of(late_receiver())
    assert "ms since the first operation was entered" in words_of(pictures.crossing())


def words_of(timeline):
    return set(re.findall(r"<text[^>]*>([^<]*)</text>", timeline.svg.decode()))
