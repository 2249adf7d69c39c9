"""The strip and the prediction, driven without a browser."""

import threading
import time

import pytest

from labkit.errors import LabError
from labkit.widgets import STATES, Predict, Strip

IDLE = {"rank": 0, "state": "idle", "op": None, "line": None, "seconds": 0.0}
BUSY = {"rank": 1, "state": "collective", "op": "all_reduce", "line": 2, "seconds": 4.7}


def until(true, seconds=3.0):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


@pytest.fixture
def strip():
    made = []

    def make(poll, n=2, period=0.01):
        made.append(Strip(poll, n, period))
        return made[-1]

    yield make
    for s in made:
        s.close()


def test_the_strip_says_what_each_rank_does_in_words(strip):
    s = strip(lambda: [BUSY, IDLE])
    assert until(lambda: "all_reduce" in s.value)
    assert 'aria-label="rank 0: idle; rank 1: in all_reduce, line 2, 4 s"' in s.value


def test_the_strip_follows_the_ranks(strip):
    now = [[IDLE]]
    s = strip(lambda: now[0])
    assert until(lambda: "rank 0: idle" in s.value)
    now[0] = [{**IDLE, "state": "dead"}]
    assert until(lambda: "rank 0: dead" in s.value)


def test_every_state_has_a_colour_a_shape_and_words_of_its_own():
    assert len(STATES) == len({c for c, _, _ in STATES.values()}) == len({s for _, s, _ in STATES.values()})
    assert len({w for _, _, w in STATES.values()}) == len(STATES)


def test_nothing_is_redrawn_where_nothing_changed(strip):
    seconds = iter([4.1, 4.2, 4.9, 5.0])
    drawn = []
    s = strip(lambda: [{**BUSY, "seconds": next(seconds, 5.0)}], period=60)
    assert until(lambda: "4 s" in s.value)
    s.observe(drawn.append, "value")
    for _ in range(3):
        s.refresh()
    assert len(drawn) == 1


def test_the_strip_ends_when_it_is_closed_or_stopped_or_cannot_ask(strip):
    asked = []

    def fail():
        raise RuntimeError("the lab has stopped")

    for poll, end in [
        (lambda: asked.append(0) or [IDLE], Strip.stop),
        (lambda: asked.append(0) or [IDLE], Strip.close),
        (fail, lambda s: None),
    ]:
        before = set(threading.enumerate())
        s = strip(poll, 1)
        until(lambda: "idle" in s.value or "stopped" in s.value)  # noqa: B023
        end(s)
        assert until(lambda: set(threading.enumerate()) <= before)  # noqa: B023
    assert "The strip has stopped: the lab has stopped" in s.value


def test_the_strip_does_not_keep_the_kernel_alive(strip):
    before = set(threading.enumerate())
    strip(lambda: [IDLE])
    assert all(t.daemon for t in set(threading.enumerate()) - before)


def test_the_strips_text_is_the_same_every_time(strip):
    assert strip(lambda: [IDLE], 4)._repr_mimebundle_()["text/plain"] == "a live strip of 4 ranks"


def test_an_error_cannot_write_html(strip):
    def fail():
        raise RuntimeError("<script>")

    s = strip(fail)
    assert until(lambda: "stopped" in s.value)
    assert "<script" not in s.value


@pytest.fixture
def question():
    return Predict("What does <rank 1> hold?", [6, 10])


def test_nothing_is_locked_in_at_first(question):
    assert question.choice is None
    assert question._button.disabled


def test_picking_is_not_yet_locking(question):
    question._radio.value = "10"
    assert question.choice is None
    assert not question._button.disabled


def test_the_button_locks_the_choice_for_good(question):
    question._radio.value = "10"
    question._button.click()
    assert question.choice == "10"
    assert question._radio.disabled
    assert question._button.disabled
    with pytest.raises(LabError, match="Run its cell again"):
        question.lock(6)
    assert question.choice == "10"


def test_no_answer_is_shown_before_it_is_revealed(question):
    question.lock(6)
    shown = question._said.value + repr(question)
    assert "6" in shown
    assert not any(word in shown for word in ("✓", "✗", "answer"))


def test_the_verdict_compares_the_choice_with_the_answer(question):
    question.lock(6)
    verdict = question.reveal(10, "Partial sums stay behind.")
    assert repr(verdict) == "✗ You predicted: 6. The answer: 10. Partial sums stay behind."
    right = Predict("?", ["a", "b"])
    right.lock("a")
    assert right.reveal("a") == "✓ As you predicted: a."


def test_without_a_choice_the_answer_is_told_and_the_question_closed(question):
    assert question.reveal(10) == "The answer: 10. No prediction was locked in."
    with pytest.raises(LabError):
        question.lock(10)
    assert question.choice is None


def test_an_option_that_is_none_is_refused_and_those_that_are_stand_on_lines_of_their_own(question):
    with pytest.raises(LabError, match=r"7 is no option\. Choose one of these:\n'6'\n'10'$"):
        question.lock(7)


def test_a_static_page_lists_the_question_and_the_options(question):
    bundle = question._repr_mimebundle_()
    assert bundle["text/plain"] == "Predict: What does <rank 1> hold?\n  ( ) 6\n  ( ) 10"
    assert "<li>6</li><li>10</li>" in bundle["text/html"]
    assert "&lt;rank 1&gt;" in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_keys_pressed_in_it_do_not_reach_the_notebook(question):
    assert "stopPropagation" in question.children[0].value
