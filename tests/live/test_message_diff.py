"""`lab.exercise(name).steps()`: the learner's messages beside the workbook's, whatever the learner's function does."""

from __future__ import annotations

import pytest

import labkit
from labkit.content import exercises
from labkit.show.card import Note
from labkit.show.message_diff import Beside
from tests import mistakes

NAME = "ring_reduce_scatter"


@pytest.fixture(scope="module")
def lab(own_progress):
    with labkit.start(4, timeout=2) as lab:
        yield lab


def planted(why: str) -> str:
    return mistakes.find(NAME, why).source


def played(lab, source: str, name: str = NAME) -> Beside:
    lab.run(source)
    beside = lab.exercise(name).steps()
    assert isinstance(beside, Beside), beside
    return beside


@pytest.mark.parametrize("name", [e.name for e in exercises.every().values() if e.lesson == "06"])
def test_the_workbooks_own_solution_sends_the_same(lab, name):
    beside = played(lab, exercises.find(name).answer.removeprefix("%%px\n"), name)
    assert beside.same
    assert "Your result is right" in repr(beside)
    assert beside.count == beside.films[1].count > 1


def test_what_is_not_written_is_told_with_what_to_do_next(lab):
    lab.run(f"globals().pop({NAME!r}, None)")
    task = lab.exercise(NAME)
    note = task.steps()
    assert isinstance(note, Note)
    assert "There is no function ring_reduce_scatter on the ranks yet" in repr(note)
    lab.run(exercises.find(NAME).stub.removeprefix("%%px\n"))
    assert "write what belongs in place of the … in line" in repr(task.steps())
    lab.use(NAME)
    assert "is the workbook's. Run the cell with your own again." in repr(task.steps())


def test_a_step_that_lacks_is_marked_in_the_workbooks_picture(lab):
    beside = played(lab, planted("stops a step early"))
    assert "on rank 0 element 0 is 0, and should be 60" in repr(beside)
    assert "a message from rank 0 to rank 1 is missing (and 3 more like it)" in repr(beside)
    assert [film.count for film in beside.films] == [2, 3]
    assert [len(film.marks) for film in beside.films] == [0, 4]


def test_other_numbers_are_marked_in_the_learners_picture(lab):
    beside = played(lab, planted("overwrites instead of adding"))
    assert set(beside.films[0].marks.values()) == {"≠ data"}
    assert "rank 0 sends element 2 of rank 3 to rank 1, and not element 2 of ranks 0,3" in repr(beside)


def test_a_hang_plays_what_was_sent_until_then_and_the_ranks_are_well(lab):
    beside = played(lab, planted("sends first, then receives"))
    assert "It hangs with 4 ranks." in repr(beside)
    assert "no rank receives what goes from rank 0 to rank 1" in repr(beside)
    assert b"no recv" in beside.films[0].svg(0)
    assert lab.run("y = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y))") == ["4\n"] * 4


def test_a_function_that_raises_plays_what_was_sent_until_then(lab):
    stops = exercises.find(NAME).code.replace("        into += room", "        into += room\n        assert step < 2")
    beside = played(lab, stops)
    assert "AssertionError" in repr(beside)
    assert beside.films[0].count == 2


def test_forbidden_calls_send_no_messages_of_their_own(lab):
    lab.run(planted("all-reduces and keeps a chunk"))
    note = lab.exercise(NAME).steps()
    assert isinstance(note, Note)
    assert "it calls dist.all_reduce. Write it with send and receive" in repr(note)


def test_the_last_cell_is_the_learners_run_and_nothing_of_the_workbooks_stays(lab):
    played(lab, planted("stops a step early"))
    assert lab.last.steps().count == 2
    assert lab.run("print(any(name.startswith('workbooks_') for name in globals()))") == ["False\n"] * 4


def test_a_verdict_that_is_not_right_names_it(lab):
    lab.run(planted("stops a step early"))
    assert 'lab.exercise("ring_reduce_scatter").steps()` plays your messages' in repr(lab.check(NAME))
    lab.run(planted("all-reduces and keeps a chunk"))
    assert "plays your messages" not in repr(lab.check(NAME)), "it has none"


def test_too_few_ranks_are_told():
    with labkit.start(2, timeout=2) as two:
        assert "This needs 4 ranks" in repr(two.exercise(NAME).steps())
