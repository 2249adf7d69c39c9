"""The predictions are complete, asked where they belong, and sealed: a question shows nothing of its answer."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest

from labkit.content import predictions
from labkit.content import series as content_series
from labkit.faces import current_lab
from labkit.faces.widgets import Choose, Predict
from labkit.floor.errors import LabError
from labkit.grading.prediction import Option, Prediction, Series, Trap, ask
from tests.notebooks import NOTEBOOKS, sources
from tests.page import page

EVERY = predictions.every().values()
ON_GLOO = {
    n for n, path in NOTEBOOKS.items() if re.search('start\\(.*"gloo"', "\n".join(sources(path, "code")))
}  # always
ON_BOTH = replace(
    ask("""
Which?
(x) one
( ) two
    > No: that is one.
Why: One.
Elsewhere: NCCL has the second one.
On NCCL: two
( ) one
    > That is Gloo's.
Why: Two.
Elsewhere: Gloo has the first one.
"""),
    name="both",
    lesson="02",
)


def sentences(prediction: Prediction) -> Iterator[str]:
    """What only the answer may say, sentence by sentence; those of a few words are left out: they stand anywhere."""
    told = [prediction.why, prediction.elsewhere]
    told += [wrong.reply for wrong in (*prediction.options, *prediction.traps)]
    if there := prediction.nccl:
        told += [there.why, there.elsewhere, *(option.reply for option in there.options)]
    for text in told:
        for sentence in re.split(r"(?<=[.:;!?])\s+|\n", text):
            if len(re.findall("[A-Za-z]{2,}", sentence)) > 5:
                yield sentence.strip()


def shown(prediction: Prediction) -> tuple[str, str]:
    """Return what a page gets of a question, and what it gets once an answer is locked in."""
    asked = Predict(prediction)
    before = page(asked)
    asked.lock(prediction.options[0].text if prediction.options else 5)
    return before, page(asked)


def otherwise(prediction: Prediction) -> Iterator[Prediction]:
    """The same question with other answers, another reason and other replies."""
    options = tuple(Option(option.text, "Because.") for option in prediction.options)
    answers = [option.text for option in options] or [prediction.answer, 7777.25]
    for answer in answers:
        yield replace(prediction, options=options, answer=answer, why="So.", traps=(), elsewhere="", nccl=None)


def test_a_question_shows_the_same_whatever_its_answer(subtests: pytest.Subtests):
    for prediction in EVERY:
        with subtests.test(prediction.name):
            seen = shown(replace(prediction))  # a copy, as the others are
            for other in otherwise(prediction):
                assert shown(other) == seen


def test_a_question_shows_neither_the_reason_nor_a_reply():
    told = []
    for prediction in EVERY:
        seen = page(Predict(prediction)).replace("\\n", " ")
        told += [(prediction.name, s) for s in sentences(prediction) if s in seen or json.dumps(s)[1:-1] in seen]
    assert told == []


def test_no_notebook_says_what_is_said_once_the_learner_has_chosen():
    kept = [" ".join(s.split()) for p in EVERY for s in sentences(p)]
    texts = {path.stem: " ".join(" ".join(sources(path)).split()) for path in NOTEBOOKS.values()}
    assert [(name, sentence) for name, text in texts.items() for sentence in kept if sentence in text] == []


def test_each_answer_is_one_and_every_wrong_one_has_a_reply(subtests: pytest.Subtests):
    for prediction in [*EVERY, *filter(None, (p.nccl for p in EVERY))]:
        with subtests.test(prediction.name, answer=prediction.answer):
            if prediction.options:
                texts = [option.text for option in prediction.options]
                assert len(set(texts)) == len(texts) > 1
                assert prediction.answer in texts
                assert [o.text for o in prediction.options if o.text != prediction.answer and not o.reply] == []
                assert prediction.traps == ()
            else:
                assert isinstance(prediction.answer, float)
                assert not any(prediction.is_right(trap.value) for trap in prediction.traps)


def test_the_questions_of_a_table_have_options():
    assert all(part.options for s in content_series.every().values() for part in s.parts)


def test_where_nccl_does_something_else_both_are_told(subtests: pytest.Subtests):
    for prediction in (p for p in EVERY if p.nccl):
        with subtests.test(prediction.name):
            assert prediction.nccl
            assert prediction.nccl.answer != prediction.answer
            assert prediction.elsewhere
            assert prediction.nccl.elsewhere


def test_it_is_complete(subtests: pytest.Subtests):
    for prediction in EVERY:
        with subtests.test(prediction.name):
            assert prediction.name.isidentifier()
            assert re.fullmatch(r"\d\d[a-z]?|capstone", prediction.lesson)
            assert prediction.question.strip().endswith(("?", "…", ":"))
            assert len(prediction.why.split()) > 5
            for option in prediction.options:
                assert option.text.count("`") % 2 == 0
                assert option.text == option.text.strip()
                assert option.reply == "" or len(option.reply.split()) > 3
                assert "**" not in option.text, "options are plain text: backticks at most"


def test_each_answer_is_told_with_its_reply(subtests: pytest.Subtests):
    for prediction in EVERY:
        for letter, option in prediction.lettered:
            with subtests.test(prediction.name, letter=letter):
                asked = Predict(replace(prediction, name="a_copy"))
                asked.lock(option.text)
                told = repr(asked.reveal())
                assert told.startswith("✓" if option.text == prediction.answer else "✗")
                assert option.reply in told
                assert prediction.why in told
                assert prediction.elsewhere in told


class OnGPUs:
    """A lab that runs, as far as a question asks it: its ranks have NCCL."""

    running, backend = True, "nccl"


DIFFERING = [p for p in EVERY if p.nccl]


@pytest.mark.parametrize("prediction", DIFFERING, ids=lambda p: p.name)
def test_the_answer_is_that_of_the_backend_which_runs_and_the_other_ones_is_told(
    prediction: Prediction, monkeypatch: pytest.MonkeyPatch
):
    assert prediction.nccl
    for running, answer, others in (
        (None, prediction.answer, prediction.elsewhere),
        (OnGPUs(), prediction.nccl.answer, prediction.nccl.elsewhere),
    ):
        monkeypatch.setattr(current_lab, "_current", running)
        for locked in (None, prediction.answer, prediction.nccl.answer):
            asked = Predict(replace(prediction, name="a_copy"))
            if locked is not None:
                asked.lock(locked)
            told = repr(asked.reveal())
            assert told.startswith("No prediction" if locked is None else "✓" if locked == answer else "✗")
            assert others in told
            assert ("Gloo" if running else "NCCL") in others


def test_what_is_asked_does_not_depend_on_the_backend(monkeypatch: pytest.MonkeyPatch):
    before = [shown(p) for p in DIFFERING]
    monkeypatch.setattr(current_lab, "_current", OnGPUs())
    assert [shown(p) for p in DIFFERING] == before


def test_a_question_of_a_table_follows_the_backend_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(current_lab, "_current", OnGPUs())
    asked = Choose(Series("Which?", (ON_BOTH,), name="both", lesson="02"))
    asked.lock("b")
    assert repr(asked.reveal()).startswith("1 of 1 right.")
    assert ON_BOTH.nccl
    assert ON_BOTH.nccl.elsewhere in repr(asked.reveal())


def test_an_answer_on_nccl_counts_for_the_workbooks_own_question(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(current_lab, "_current", OnGPUs())
    noted = []
    monkeypatch.setattr("labkit.faces.progress.predict", lambda *told: noted.append(told))
    for prediction in DIFFERING:
        assert prediction.nccl
        Predict(prediction).lock(prediction.nccl.answer)
    assert noted == [(p.name, p.nccl.answer, True) for p in DIFFERING if p.nccl]


def test_a_notebook_shows_each_question_and_reveals_all_that_it_asks(subtests: pytest.Subtests):
    for path in NOTEBOOKS.values():
        with subtests.test(path.stem):
            asked: dict[str, str] = {}
            for source in sources(path, "code"):
                bare = re.findall(r'^(?:Predict|Choose)\(".*', source, re.MULTILINE)
                assert not bare, f"it asks and cannot reveal: write name = {bare[0]}"
                for variable, kind, name in re.findall(r"(\w+) = (Predict|Choose)\((.*?)\)", source, re.DOTALL):
                    assert re.fullmatch(r'"\w+"', name), f"it asks a question that is none of the workbook's: {name}"
                    assert source.strip().endswith(f"\n{variable}"), f"it does not show {variable}"
                    asked[variable] = kind
                for variable in re.findall(r"(\w+)\.reveal\(\)", source):
                    assert variable in asked, f"it reveals {variable} before it asks, or twice"
                    last = source.strip().endswith(f"{variable}.reveal()")
                    assert last or asked[variable] == "Predict", f"it does not show what {variable} says"
                    del asked[variable]
                assert ".reveal(" not in source.replace(".reveal()", ""), "it gives an answer in a cell's source"
            assert asked == {}, "it asks and does not reveal"


def test_each_question_is_asked_once_in_its_own_lesson_and_no_other_is():
    asked = defaultdict(list)
    for lesson, path in NOTEBOOKS.items():
        for call in re.findall(r'(?:Predict|Choose)\("\w+"\)', "\n".join(sources(path, "code"))):
            asked[call].append(lesson)
    series = content_series.every().values()
    parts = {part.name for s in series for part in s.parts}
    wanted = {f'Predict("{p.name}")': [p.lesson] for p in EVERY if p.name not in parts}
    assert asked == wanted | {f'Choose("{s.name}")': [s.lesson] for s in series}


def test_what_is_asked_of_gloo_alone_is_asked_where_the_ranks_always_run_gloo():
    asked = {p.name: p.lesson for p in EVERY if re.search("on Gloo|with Gloo", p.question)}
    asked |= {s.name: s.lesson for s in content_series.every().values() if "with Gloo" in s.question}
    assert asked
    assert {name: lesson for name, lesson in asked.items() if lesson not in ON_GLOO} == {}


def test_no_lesson_shows_bytes_that_nobody_counted_as_none_sent():
    assert {
        lesson for lesson, path in NOTEBOOKS.items() for s in sources(path, "code") if re.search(r"sent or \[0\]", s)
    } <= ON_GLOO, "on NCCL nothing may be counted: `.sent` is None then, and not 0 bytes"


def test_a_name_that_is_none_is_answered_with_the_nearest_one():
    name = next(iter(predictions.every()))
    with pytest.raises(LabError, match=f"Did you mean '{name}'"):
        Predict(name + "s")


NAPKIN = {  # the sums on the napkin: bytes, GB/s and seconds, from what the question gives
    "algbw_of_a_ring": 25 * 1024 / (2 * 1023),
    "ring_on_nvlink": 900 / 2,
    "eight_bytes_in_the_log": 6.8 + 2 * (7 * 0.6 + 1 * 5.0),
    "ring_of_100000": 2 * 99_999 * 2.1e-6,
    "gradient_of_7b": 2 * 63 / 64 * 7e9 * 2 / (8 * 400e9 / 8) * 1e3,
    "backward_of_7b": 4 * 7e9 * 2 * 4096 / 400e12 * 1e3,
    "tokens_that_hide_it": 2 * 63 / 64 * 7e9 * 2 / 400e9 * 400e12 / (4 * 7e9),
    "fsdp_on_a_slow_network": 3 * 15 / 16 * 7e9 * 2 / (100e9 / 8),
    "bucket_that_pays": 0.1e-3 * 400e9 / (2 * 63 / 64) / 1e6,
    "tokens_to_experts": 4096 * 2 * 4096 * 2 * 56 / 64 / (400e9 / 8) * 1e3,
    "gigabyte_on_100000": 2 * 99_999 / 100_000 * 1e9 / 400e9 * 1e3,
    "one_slow_nic": 8 * 100 / 8,
    "line_of_a_log": 67_108_864 / 24_410e-6 / 1e9 * 2 * 23 / 24,
}
TRAPS = {  # the same sums with one slip in them
    "algbw_of_a_ring": [25, 2 * 25, 25 / 1024],
    "ring_on_nvlink": [900, 900 / 18, 900 / 18 / 2, 900 / 4],
    "eight_bytes_in_the_log": [
        *(6.8 + 7 * 0.6 + 5, 2 * (7 * 0.6 + 5), 6.8 + 5),
        *(6.8 + 2 * (7 * 0.6 + 2 * 5), 2 * (6.8 + 7 * 0.6 + 5)),
    ],
    "ring_of_100000": [99_999 * 2.1e-6, 2 * math.log2(100_000) * 2.1e-6, 2 * 99_999 * 2.1e-3],
    "gradient_of_7b": [
        *(14e9 / 400e9 * 1e3, 2 * 63 / 64 * 28e9 / 400e9 * 1e3),
        *(2 * 63 / 64 * 14e9 / 50e9 * 1e3, 2 * 63 / 64 * 14e9 / 3200e9 * 1e3),
    ],
    "backward_of_7b": [k * 7e9 * 8192 / 400e12 * 1e3 for k in (6, 2, 8)] + [4 * 7e9 * 8192 / 989e12 * 1e3],
    "tokens_that_hide_it": [
        4 * 63 / 64 * 7e9 / bandwidth * flops / (k * 7e9)
        for k, flops, bandwidth in (
            *((6, 400e12, 400e9), (2, 400e12, 400e9), (8, 400e12, 400e9)),
            *((4, 989e12, 400e9), (4, 400e12, 50e9)),
        )
    ],
    "fsdp_on_a_slow_network": [
        *(2 * 15 / 16 * 14e9 / 12.5e9, 4 * 15 / 16 * 14e9 / 12.5e9),
        *(15 / 16 * 14e9 / 12.5e9, 3 / 2 * 14e9 / 12.5e9),
        *(3 * 15 / 16 * 14e9 / 100e9, 3 * 15 / 16 * 28e9 / 12.5e9),
    ],
    "bucket_that_pays": [0.1e-3 * 400e9 / 1e6, 0.1e-3 * 50e9 / (2 * 63 / 64) / 1e6, 0.1e-3 * 50e9 / 1e6],
    "tokens_to_experts": [
        sent * 7 / 8 / bandwidth * 1e3 for sent, bandwidth in ((33.55e6, 50e9), (134.2e6, 50e9), (67.1e6, 400e9))
    ]
    + [67.1e6 / 8 / 50e9 * 1e3],
    "gigabyte_on_100000": [2 * 63 / 64 / 0.4 * 100_000 / 64, 1 / 0.4, 5 + 2 * 99_999 * 2.1e-3],
    "one_slow_nic": [7 * 50 + 12.5, 7 * 50, 12.5, 8 * 50, 100 * 8 / 15, 100 * 15 / 8, 8 * 100, 2 * 100],
    "line_of_a_log": [2.75, 29.5 * 2, 29.5, 2.75 * 23 / 24],
}


@pytest.mark.parametrize("name", NAPKIN)
def test_the_answer_on_the_napkin_is_what_the_sum_makes(name: str):
    prediction = predictions.find(name)
    assert prediction.answer == pytest.approx(NAPKIN[name], rel=0.006)
    digits = f"{prediction.answer:g}"
    assert f"**{digits}" in prediction.why or f"**{digits}.0" in prediction.why, "the reasoning begins with the answer"
    assert [t.value for t in prediction.traps] == pytest.approx(TRAPS[name], rel=0.03)


def test_every_number_to_estimate_in_lesson_07_is_recomputed_here():
    asked = {p.name for p in predictions.every().values() if p.lesson in ("07", "07b") and not p.options}
    assert asked == set(NAPKIN) == set(TRAPS)


@pytest.mark.parametrize("name", NAPKIN)
def test_whoever_falls_into_a_trap_is_told_which(name: str):
    prediction = predictions.find(name)
    for trap in prediction.traps:
        for number in (trap.value, 1.01 * trap.value, f"{trap.value:.3g}"):
            asked = Predict(replace(prediction, name="a_copy"))
            asked.lock(number)
            told = repr(asked.reveal())
            assert told.startswith("✗")
            assert trap.reply in told


DISTANCE = Prediction("How far?", 40.0, "So.", name="q", lesson="02", unit="km", traps=(Trap(20, "One way only."),))


@pytest.mark.parametrize(
    ("said", "reply"),
    [
        (41, ""),
        (20, "One way only."),
        (20.9, "One way only."),
        (23, "Your number is 1.7 times too small."),
        (80, "Your number is 2 times too large. Both directions of a link, or a factor that was left out?"),
        (5, "Your number is 8 times too small. Bits for bytes?"),
        (
            40_000,
            "Your number is 1,000 times too large. A thousand between two units, such as µs and ms, or MB and GB?",
        ),
        (0, ""),
        (-40, ""),
    ],
)
def test_a_wrong_number_is_answered_by_its_trap_or_by_how_far_it_is_off(said: float, reply: str):
    assert DISTANCE.reply(said) == reply


def test_who_locked_nothing_in_reads_of_the_traps_as_well():
    told = repr(Predict(DISTANCE).reveal())
    assert "20 km?\n\nOne way only." in told
