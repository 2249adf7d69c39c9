"""The predictions are complete, asked where they belong, and sealed: a question shows nothing of its answer."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets
import nbformat
import pytest

from labkit import predictions
from labkit.errors import LabError
from labkit.predictions import Option, Prediction
from labkit.widgets import Predict

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))

every = pytest.mark.parametrize("prediction", predictions.every().values(), ids=lambda prediction: prediction.name)
notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def sources(path: Path, kind: str = "") -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if kind in ("", cell.cell_type)]


def sentences(prediction: Prediction) -> Iterator[str]:
    """What only the answer may say, sentence by sentence; those of a few words are left out: they stand anywhere."""
    for text in (prediction.why, *(option.reply for option in prediction.options)):
        for sentence in re.split(r"(?<=[.:;!?])\s+|\n", text):
            if len(re.findall("[A-Za-z]{2,}", sentence)) > 5:
                yield sentence.strip()


def tree(widget: ipywidgets.Widget) -> Iterator[ipywidgets.Widget]:
    yield from (w for w in (widget, widget.layout, getattr(widget, "style", None)) if isinstance(w, ipywidgets.Widget))
    for child in getattr(widget, "children", ()):
        yield from tree(child)


def shown(prediction: Prediction, lock: str | float | None = None) -> str:
    """All that a front end or a saved notebook gets to see of a question, models' ids left out."""
    asked = Predict(prediction)
    if lock is not None:
        asked.lock(lock)
    bundle: dict[str, Any] = asked._repr_mimebundle_()
    states = [w.get_state() for w in tree(asked)]
    return re.sub("IPY_MODEL_[0-9a-f]+|[0-9a-f]{32}", "id", json.dumps([bundle, repr(asked), states], default=str))


def otherwise(prediction: Prediction) -> Iterator[Prediction]:
    """The same question with other answers, another reason and other replies."""
    options = tuple(Option(option.text, "Because.") for option in prediction.options)
    answers = [option.text for option in options] or [prediction.answer, 7777.25]
    for answer in answers:
        yield replace(prediction, options=options, answer=answer, why="So.")


@every
def test_a_question_shows_the_same_whatever_its_answer(prediction: Prediction):
    lock = prediction.options[0].text if prediction.options else 5
    for other in otherwise(prediction):
        assert shown(other) == shown(prediction)
        assert shown(other, lock) == shown(prediction, lock)


@every
def test_a_question_shows_neither_the_reason_nor_a_reply(prediction: Prediction):
    seen = shown(prediction).replace("\\n", " ")
    assert not [s for s in sentences(prediction) if s in seen or json.dumps(s)[1:-1] in seen]


@notebook
def test_no_notebook_says_what_is_said_once_the_learner_has_chosen(path: Path):
    text = " ".join(" ".join(sources(path)).split())
    found = [s for p in predictions.every().values() for s in sentences(p) if " ".join(s.split()) in text]
    assert found == []


@every
def test_it_is_complete(prediction: Prediction):
    assert prediction.name.isidentifier()
    assert re.fullmatch(r"\d\d", prediction.lesson)
    assert prediction.question.strip().endswith(("?", "…", ":"))
    assert len(prediction.why.split()) > 5
    for option in prediction.options:
        assert option.text.count("`") % 2 == 0
        assert option.text == option.text.strip()
        assert option.reply == "" or len(option.reply.split()) > 3
        assert "**" not in option.text, "options are plain text: backticks at most"


@every
def test_each_answer_is_told_with_its_reply(prediction: Prediction):
    for _, option in prediction.lettered:
        asked = Predict(replace(prediction, name="a_copy"))
        asked.lock(option.text)
        told = repr(asked.reveal())
        assert told.startswith("✓" if option.text == prediction.answer else "✗")
        assert option.reply in told
        assert prediction.why in told


def test_the_module_of_a_lesson_holds_that_lessons_questions():
    for module in Path(predictions.__file__).parent.glob("lesson*.py"):
        held = importlib.import_module(f"labkit.predictions.{module.stem}").PREDICTIONS
        assert {p.lesson for p in held} <= {module.stem.removeprefix("lesson")}


@notebook
def test_a_notebook_asks_what_there_is_and_reveals_all_that_it_asks(path: Path):
    asked: dict[str, str] = {}
    for source in sources(path, "code"):
        for variable, name in re.findall(r"(\w+) = (?:Predict|Choose)\((.*?)\)", source, re.DOTALL):
            assert re.fullmatch(r'"\w+"', name), f"{path.name} asks a question that is none of the workbook's: {name}"
            assert source.strip().endswith(f"\n{variable}"), f"{path.name} does not show {variable}"
            asked[variable] = name.strip('"')
        for variable in re.findall(r"(\w+)\.reveal\(\)", source):
            assert asked.pop(variable, None), f"{path.name} reveals {variable} before it asks, or twice"
        assert ".reveal(" not in source.replace(".reveal()", ""), f"{path.name} gives an answer in a cell's source"
    assert not asked, f"{path.name} asks and does not reveal"


@every
def test_it_is_asked_once_in_its_own_lesson(prediction: Prediction):
    in_series = [f'Choose("{s.name}")' for s in predictions.series().values() if prediction in s.parts]
    pattern = re.compile(re.escape(*(in_series or [f'Predict("{prediction.name}")'])))
    places = [path.name[:2] for path in NOTEBOOKS for _ in pattern.findall("\n".join(sources(path, "code")))]
    assert places == [prediction.lesson]


def test_a_name_that_is_none_is_answered_with_the_nearest_one():
    name = next(iter(predictions.every()))
    with pytest.raises(LabError, match=f"Did you mean '{name}'"):
        Predict(name + "s")


@pytest.mark.parametrize(
    "facts",
    [
        {"options": (Option("one"), Option("two"))},
        {"options": (Option("one", "No."), Option("one", "No."))},
        {"options": (Option("one", "No."),)},
        {"answer": "three"},
        {"options": (), "answer": "two"},
    ],
    ids=["a wrong option without a reply", "options alike", "one option", "an answer that is no option", "no number"],
)
def test_an_incomplete_prediction_is_refused(facts: dict[str, Any]):
    sound: dict[str, Any] = {"options": (Option("one", "No."), Option("two")), "answer": "two", **facts}
    with pytest.raises(AssertionError):
        Prediction("q", "02", "Which?", why="", **sound)
