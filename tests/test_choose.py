"""A table of questions: it gives nothing away, takes some answers now and others later, and replies to each choice."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from labkit.content import predictions, series
from labkit.faces import progress
from labkit.faces.widgets import Choose
from labkit.floor.errors import LabError
from labkit.grading.prediction import Option, Prediction, Series
from tests.page import page


def part(name: str, answer: str) -> Prediction:
    options = tuple(Option(o, "" if o == answer else f"Not {o} of {name}.") for o in ("`send`", "recv", "<nothing>"))
    return Prediction(f"{name} asks <you>:", answer, f"So it is in {name}.", options, name=name, lesson="99")


TWO = Series("Who `does` it?", (part("first", "recv"), part("second", "`send`")), name="two", lesson="99")


@pytest.fixture
def two():
    return Choose(TWO)


def shown(series: Series) -> tuple[str, str]:
    """Return what a page gets of the questions, and what it gets once each has an answer locked in."""
    asked = Choose(series)
    before = page(asked)
    asked.lock(" ".join("a" for _ in series.parts))
    return before, page(asked)


def test_it_shows_the_same_whatever_the_answers(subtests: pytest.Subtests):
    def other(p: Prediction, k: int) -> Prediction:
        options = tuple(Option(option.text, "Because.") for option in p.options)
        return replace(p, options=options, answer=options[k % len(options)].text, why="So.")

    for each in (TWO, *series.every().values()):
        with subtests.test(each.name):
            seen = shown(replace(each))  # a copy, as the others are
            for k in range(4):
                assert shown(replace(each, parts=tuple(other(p, k) for p in each.parts))) == seen


def test_no_answer_is_more_frequent_by_its_letter_or_its_length(subtests: pytest.Subtests):
    """Who always takes the same letter, or the longest option, gets less than half of them right."""
    for each in series.every().values():
        with subtests.test(each.name):
            letters = [next(letter for letter, o in p.lettered if o.text == p.answer) for p in each.parts]
            assert max(map(letters.count, letters)) <= len(letters) / 2
            longest = [max(p.options, key=lambda o: len(o.text)).text == p.answer for p in each.parts]
            assert sum(longest) <= len(longest) / 2


def test_some_are_locked_in_now_and_the_others_later(two: Choose):
    two.lock("- b")
    assert two.choices == [None, "recv"]
    assert two.data["locked"] == [None, 1]
    assert repr(two.reveal()).startswith("0 of 1 right. 1 question still open: choose above")
    assert "So it is in first." not in repr(two.reveal()) + two.reveal()._repr_html_()
    with pytest.raises(LabError, match="Question 2 is already locked in"):
        two.lock("b a")
    assert two.choices == [None, "recv"]
    two.lock(["recv", None])
    assert two.choices == ["recv", "recv"]
    assert two.data["locked"] == [1, 1]
    assert repr(two.reveal()).startswith("1 of 2 right.\n")


def test_each_choice_may_be_an_argument_of_its_own(two: Choose):
    two.lock("c", None)
    two.lock("-", "recv")
    assert two.choices == ["<nothing>", "recv"]
    with pytest.raises(LabError, match=r'this is for 3\. Give a letter for each, .* such as lock\("- b"\)'):
        Choose(TWO).lock("a", "b", "c")


def test_its_text_says_how_to_lock_without_a_mouse_and_what_it_says_to_type_works(two: Choose):
    said = repr(two).splitlines()[-1]
    assert said.startswith("No mouse? ")
    (letters,) = re.findall(r'lock\("(.*)"\)', said)
    two.lock(letters)
    assert two.choices == [None, "recv"]


def test_the_button_locks_what_is_chosen_and_an_error_is_gone_once_it_is_mended(two: Choose):
    two.said = {"choices": ["a", None], "nth": 1}
    assert two.choices == ["`send`", None]
    two.said = {"choices": ["b", None], "nth": 2}
    assert two.replied == (
        "<span role='alert'>Question 1 is already locked in. Give - for it, or run the cell above again.</span>"
    )
    two.said = {"choices": [None, "c"], "nth": 3}
    assert two.choices == ["`send`", "<nothing>"]
    assert two.replied is None


def test_each_choice_gets_its_own_reply_and_every_answer_its_reason(two: Choose):
    two.lock("c a")
    told = repr(two.reveal())
    assert "✗ **c. <nothing>.** Not <nothing> of first.\n\n**b. recv.** So it is in first." in told
    assert "✓ **a. `send`.** So it is in second." in told
    assert "Not `send` of first" not in told
    html = two.reveal()._repr_html_()
    assert "&lt;nothing&gt;" in html
    assert "<nothing>" not in html
    assert "details" not in html


def test_where_nothing_was_chosen_the_answers_are_folded_away(two: Choose):
    shown, hidden = two.reveal()._repr_html_().split("<details>")
    assert "No prediction was locked in" in shown
    assert "So it is" not in shown
    assert "So it is in second." in hidden
    assert "Not recv of second." in hidden


@pytest.mark.parametrize(
    ("said", "error"),
    [("a", "There are 2 questions, and this is for 1"), ("a z", "'z' is not one of the options"), ("a a a", "for 3")],
)
def test_what_does_not_fit_is_refused_and_nothing_is_locked_in(two: Choose, said: str, error: str):
    with pytest.raises(LabError, match=error):
        two.lock(said)
    assert two.choices == [None, None]


def test_the_first_choice_of_each_of_the_workbooks_questions_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "work"))
    Choose(TWO).lock("a a")
    assert not (tmp_path / "work").exists(), "a series of one's own does not count"
    monkeypatch.setattr(predictions, "every", lambda: {p.name: p for p in TWO.parts})
    Choose(TWO).lock("a -")
    Choose(TWO).lock("b a")
    kept = progress.predicted()
    assert kept == {"first": {"first": "`send`", "right": False}, "second": {"first": "`send`", "right": True}}


def test_html_in_a_question_is_shown_and_the_notebook_keeps_which_of_the_workbooks_series_it_was(two: Choose):
    bundle, meta = two._repr_mimebundle_()
    assert "&lt;you&gt;" in bundle["text/html"]
    assert "&lt;you&gt;" in two.data["parts"][0]["question"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert meta == two.reveal()._repr_mimebundle_()[1] == {}
    ours = Choose("eight_situations")
    assert ours._repr_mimebundle_()[1] == {"labkit": {"kind": "choose", "name": "eight_situations"}}
    assert ours.reveal()._repr_mimebundle_()[1] == {"labkit": {"kind": "answers", "name": "eight_situations"}}


def test_a_name_that_is_none_is_answered_with_the_nearest_one():
    with pytest.raises(LabError, match="Did you mean 'eight_situations'"):
        Choose("eight_situation")


def test_what_is_marked_is_marked_in_questions_and_options_and_reads_well_in_a_list(two: Choose):
    bold = replace(
        two._series.parts[0], question="Who sends to **all** ranks?", options=(Option("**one**", "No."), Option("recv"))
    )
    shown = page(asked := Choose(replace(two._series, parts=(bold,))))
    assert "Who sends to <b>all</b> ranks?" in shown
    assert asked.data["parts"][0]["options"] == ["a. one", "b. recv"]
    assert "**" not in shown + repr(asked)
