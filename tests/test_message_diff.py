"""A learner's messages beside the workbook's, over records written by hand, driven without a browser."""

from __future__ import annotations

import xml.dom.minidom

import pytest

from labkit.show.message_diff import Beside
from labkit.theory.record import read
from tests.recorded import Told, told

RIGHT = ("x", [0.0, 1.0]), ("x", [10.0, 11.0]), ("x", [20.0, 21.0])


def record(elements, received=True):
    """Rank 0 sends one of its numbers to rank 1, then rank 1 one of its own to rank 2, and so on."""
    ranks = [Told(3) for _ in range(3)]
    own = [rank.buffer(name, values) for rank, (name, values) in zip(ranks, RIGHT, strict=True)]
    rooms = [rank.buffer("room", [0.0], first="recv") for rank in ranks]
    for k, i in enumerate(elements):
        src, dst = k % 3, (k + 1) % 3
        when = {"issued": 100 * k, "done": 100 * k + 50}
        ranks[src].send(dst, view=(own[src], i, 1), **when)
        if received or k < len(elements) - 1:
            ranks[dst].recv(src, view=(rooms[dst], 0, 1), landed=[RIGHT[src][1][i]], **when)
    return read(told(*ranks))


def beside(elements, received=True):
    return Beside("relay", record(elements, received), record([0, 1]), "**Wrong.**", "Mend your cell.")


@pytest.fixture
def other_chunk():
    return beside([1, 1])


def test_the_same_messages_are_said_to_be_the_same():
    same = beside([0, 1])
    assert same.same
    assert "It sends the same messages as the workbook's, step by step." in repr(same)
    assert "chunk" not in repr(same)


def test_its_text_lists_the_steps_of_both_with_what_differs(other_chunk):
    assert repr(other_chunk).splitlines() == [
        "**Wrong.**",
        "What differs from the workbook's: Step 1: rank 0 sends element 1 of rank 0 to rank 1, and not element 0 of "
        "rank 0.",
        "Mend your cell.",
        "your relay, step 1: 0→1 [1] (≠ chunk)",
        "the workbook's, step 1: 0→1 [0]",
        "your relay, step 2: 1→2 [11]",
        "the workbook's, step 2: 1→2 [11]",
    ]


def test_of_a_right_run_what_differs_is_no_mistake():
    other = Beside("relay", record([1, 1]), record([0, 1]), "**Right.**", "Check it.", fine=True)
    assert "What differs from the workbook's, though other messages can be just as right: Step 1:" in repr(other)


def test_a_message_that_differs_is_dashed_and_has_a_word(other_chunk):
    mine, right = (film.svg(0).decode() for film in other_chunk.films)
    assert "≠ chunk" in mine
    assert "stroke-dasharray" in mine.partition("≠ chunk")[0]
    assert "≠" not in right


def test_what_is_missing_is_marked_on_the_workbooks_side():
    lacks = beside([0])
    assert lacks.count == 2
    assert "missing" in lacks.films[1].svg(1).decode()
    assert "missing" not in lacks.films[0].still.decode()
    assert "the workbook's, step 2: 1→2 [11] (missing)" in repr(lacks)


def test_a_message_that_nobody_takes_is_drawn_and_told():
    hangs = beside([0, 1], received=False)
    assert "no recv" in hangs.films[0].svg(1).decode()
    assert "no rank receives what goes from rank 1 to rank 2" in repr(hangs)


def test_one_slider_moves_both_and_a_side_that_ends_early_stays_at_its_end():
    lacks = beside([0])
    lacks._repr_mimebundle_()
    assert [frame.count("<img") for frame in lacks.data["frames"]] == [2, 2, 2]
    assert ["after step 1" in frame for frame in lacks.data["frames"]] == [False, True, True]
    assert "What differs" in lacks.data["head"]
    lacks.go(7)
    assert lacks.step == 2


def test_it_shows_without_a_front_end_and_carries_its_words(other_chunk):
    bundle, _ = other_chunk._repr_mimebundle_()
    assert bundle["text/plain"] == repr(other_chunk)
    assert bundle["text/html"].count("<img") == 2
    assert "application/vnd.jupyter.widget-view+json" in bundle
    for film in other_chunk.films:
        xml.dom.minidom.parseString(film.still)


def test_many_differences_are_cut_short():
    many = beside([1, 0, 1, 0, 1, 0])
    assert "more difference" in many.summary
    assert len(many.summary) < 800
