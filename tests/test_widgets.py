"""The prediction, driven without a browser."""

from dataclasses import replace

import pytest

from labkit.content import predictions
from labkit.faces import progress
from labkit.faces.widgets import Predict
from labkit.floor.errors import LabError
from labkit.grading.prediction import Option, Prediction, Trap

ONE_OR_TEN = Prediction(
    name="one_or_ten",
    lesson="99",
    question="What does <rank 1> hold in `x`?",
    options=(
        Option("6", "The others' parts are in it as well."),
        Option("10"),
        Option("what it `brought`", "It is overwritten."),
    ),
    answer="10",
    why="10, since **all** parts are added.",
)
MESSAGES = Prediction("How much is sent?", 24, "24 MiB: 6 messages of 4 MiB.", name="messages", lesson="99", unit="MiB")


@pytest.fixture
def question():
    return Predict(ONE_OR_TEN)


@pytest.fixture
def number():
    return Predict(MESSAGES)


def said(question, choice):
    """What the page says when its reader presses the button."""
    question.said = {"choice": choice, "nth": (question.said or {"nth": 0})["nth"] + 1}


def test_nothing_is_locked_in_at_first(question, number):
    assert (question.choice, number.choice) == (None, None)
    said(number, "")
    assert number.choice is None
    assert "is not a number" in number.replied


def test_the_button_locks_the_choice_for_good(question):
    said(question, "b")
    assert question.choice == "10"
    assert question.data["locked"] == {"choice": 1, "words": "b. 10"}
    with pytest.raises(LabError, match="Run its cell again"):
        question.lock("a")
    said(question, "a")
    assert "Run its cell again" in question.replied
    assert question.choice == "10"


@pytest.mark.parametrize("choice", ["z", -1, None, ["b"]])
def test_what_no_page_says_locks_nothing_in(question, choice):
    with pytest.raises((KeyError, TypeError)):
        said(question, choice)
    assert question.choice is None


@pytest.mark.parametrize("said", ["c", "C.", "what it brought", "What it `brought`"])
def test_an_option_is_named_by_its_letter_or_its_words(question, said):
    question.lock(said)
    assert question.choice == "what it `brought`"
    assert question.data["locked"]["choice"] == 2
    assert question.data["options"][2] == "what it <code>brought</code>"


def test_an_option_may_be_given_as_a_number_and_one_that_is_none_is_refused_with_those_that_are(question):
    options = r"a\. 6\nb\. 10\nc\. what it `brought`"
    with pytest.raises(LabError, match=rf"'7' is not one of .* Choose a letter: lock\(\"b\"\)\.\n{options}$"):
        question.lock(7)
    question.lock(10)
    assert question.choice == "10"


@pytest.mark.parametrize("typed", ["24", "24 MiB", " 2.4e1 mib"])
def test_a_number_is_locked_in_with_or_without_its_unit(number, typed):
    said(number, typed)
    assert number.choice == 24
    assert number.data["locked"]["words"] == "24 MiB"


@pytest.mark.parametrize("typed", ["many", "24 <b>", "nan", "1 2", "-"])
def test_what_is_no_number_is_said_under_the_field_and_can_be_mended(number, typed):
    said(number, typed)
    assert number.choice is None
    assert number.replied.startswith("<span role='alert'>")
    assert "is not a number" in number.replied
    assert "<b>" not in number.replied
    said(number, "30")
    assert number.choice == 30


@pytest.mark.parametrize(("said", "meant"), [("1,170", 1170), ("1,170.5 MiB", 1170.5), ("12,345,678", 12345678)])
def test_commas_part_thousands(number, said, meant):
    number.lock(said)
    assert number.choice == meant


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("1,17", r"Write 1\.17 if you mean that"),
        ("0,170", r"Write 0\.170 if you mean that"),
        ("1,1705", r"Write 1\.1705"),
        ("2,5e3", r"Write 2\.5e3"),
        ("1.5,000", "Leave out the commas"),
        ("1,17,000", "Leave out the commas"),
    ],
)
def test_a_comma_that_stands_for_a_point_is_refused_with_a_sentence(number, said, why):
    with pytest.raises(LabError, match=f"has a comma, which parts thousands here, as in 1,170. {why}"):
        number.lock(said)
    assert number.choice is None


def test_a_number_is_not_negative_unless_the_answer_or_a_trap_is(number):
    with pytest.raises(LabError, match="'-1' is negative, and what is asked for is not"):
        number.lock("-1")
    for loss in (replace(MESSAGES, answer=-24), replace(MESSAGES, traps=(Trap(-2, "That is the other way round."),))):
        assert loss.choice("-1") == -1


def test_a_prediction_that_was_right_says_so_and_why(question):
    question.lock("b")
    assert repr(question.reveal()) == "✓ You predicted b. 10. That is right.\n\n10, since **all** parts are added."
    assert "<strong>all</strong>" in question.reveal()._repr_html_()
    assert "details" not in question.reveal()._repr_html_()


def test_a_wrong_choice_gets_its_own_reply_and_no_other(question):
    question.lock("c")
    told = repr(question.reveal())
    assert told.startswith(
        "✗ You predicted c. what it `brought`, but the answer is b.\n\nIt is overwritten.\n\n10, since"
    )
    assert "The others' parts" not in told
    assert "what it <code>brought</code>" in question.reveal()._repr_html_()


@pytest.mark.parametrize(
    ("said", "begins"),
    [
        (24, "✓ You predicted 24 MiB. That is right.\n"),
        (28, "✓ You predicted 28 MiB. That is close enough: the answer is 24 MiB.\n"),
        (29, "✗ You predicted 29 MiB, but the answer is 24 MiB.\n"),
    ],
)
def test_a_number_may_be_a_little_off(number, said, begins):
    number.lock(said)
    assert repr(number.reveal()).startswith(begins)


def test_without_a_number_it_asks_for_one(number):
    assert repr(number.reveal()).startswith("No prediction was locked in. In a running notebook, type a number")


def test_without_a_choice_the_answer_is_folded_away_and_one_may_still_choose(question):
    folded = question.reveal()
    assert repr(folded).startswith("No prediction was locked in. In a running notebook, choose an answer above")
    shown, hidden = folded._repr_html_().split("<details>")
    assert "10" not in shown
    for told in ("The answer is b. 10.", "The others&#x27; parts", "It is overwritten.", "<strong>all</strong>"):
        assert told.replace("&#x27;", "'") in hidden.replace("&#x27;", "'").replace("&#39;", "'")
    question.lock("a")
    told = repr(question.reveal())
    assert told.startswith("✗ You chose a. 6 when the answer was already there to read, but the answer is b.")


def test_what_is_locked_in_after_the_answer_was_there_is_not_called_predicted(question):
    question.reveal()
    question.lock("b")
    told = repr(question.reveal())
    assert told.startswith("✓ You chose b. 10 when the answer was already there to read. That is right.")
    assert "predicted" not in told


def test_the_question_cannot_write_html_and_stands_on_a_static_page_with_its_letters(question, number):
    bundle, _ = question._repr_mimebundle_()
    assert bundle["text/plain"] == "Predict: What does <rank 1> hold in `x`?\n  a. 6\n  b. 10\n  c. what it brought"
    assert "<li><b>b.</b> 10</li><li><b>c.</b> what it <code>brought</code></li>" in bundle["text/html"]
    assert "&lt;rank 1&gt; hold in <code>x</code>" in bundle["text/html"]
    assert "&lt;rank 1&gt;" in question.data["question"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "a number, in MiB" in number._repr_mimebundle_()[0]["text/plain"]


def test_the_notebook_keeps_which_of_the_workbooks_questions_it_was_and_of_ones_own_nothing(question, number):
    ours = Predict("late_receiver")
    assert ours._repr_mimebundle_()[1] == {"labkit": {"kind": "predict", "name": "late_receiver"}}
    assert ours.reveal()._repr_mimebundle_()[1] == {"labkit": {"kind": "answer", "name": "late_receiver"}}
    for own in (question, question.reveal(), number, Predict(replace(predictions.find("late_receiver")))):
        assert own._repr_mimebundle_()[1] == {}


def test_a_question_of_ones_own_is_not_among_the_workbooks(question, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "work"))
    question.lock("a")
    question.reveal()
    assert not (tmp_path / "work").exists()


def test_a_first_answer_that_is_no_option_any_more_is_told_in_its_words(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path))
    monkeypatch.setattr(predictions, "every", lambda: {"one_or_ten": ONE_OR_TEN})
    progress.predict("one_or_ten", "5 in an earlier wording", False)
    later = Predict(ONE_OR_TEN)
    later.lock("b")
    assert "The first time you predicted 5 in an earlier wording." in repr(later.reveal())


def test_the_first_answer_counts_and_is_told_after_another_one(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path))
    monkeypatch.setattr(predictions, "every", lambda: {"one_or_ten": ONE_OR_TEN})
    first, second = Predict(ONE_OR_TEN), Predict(ONE_OR_TEN)
    first.lock("a")
    assert progress.predicted() == {"one_or_ten": {"first": "6", "right": False}}
    assert "first time" not in repr(first.reveal())
    assert "first time" not in repr(second.reveal())
    second.lock("b")
    assert progress.predicted()["one_or_ten"]["right"] is False
    assert "The first time you predicted a. 6." in repr(second.reveal())
    assert "first time" not in repr(second) + str(second.data)
