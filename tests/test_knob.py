"""A knob over plain values, driven without a browser: what it calls, what it shows, what it refuses."""

from __future__ import annotations

import sys
import threading

import ipywidgets
import numpy as np
import pytest
from IPython.display import Markdown

import labkit
from labkit.faces.knob import Knob
from labkit.floor.errors import CellError, LabError


class Drawn:
    """Something that draws itself."""

    def __init__(self, what: object) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"drawn {self.what}"

    def _repr_html_(self) -> str:
        return f"<b>{self.what}</b>"


class Pictured(Drawn):
    _repr_html_ = None  # type: ignore[assignment]

    def _repr_svg_(self) -> str:
        return f'<svg xmlns="http://www.w3.org/2000/svg"><text>{self.what}</text></svg>'


@pytest.fixture
def called() -> list[object]:
    return []


@pytest.fixture
def knob(called: list[object]) -> Knob:
    def show(cap: float) -> Drawn:
        called.append(cap)
        return Drawn(1 / cap)

    return Knob(show, cap=[1, 4, 0])


def test_it_is_one_of_labkits_public_names():
    assert labkit.Knob is Knob


def test_the_first_value_is_shown_when_it_is_made(knob, called):
    assert called == [1]
    assert repr(knob) == "cap: 1\ndrawn 1.0"
    assert "<b>1.0</b>" in knob._picture.value


@pytest.mark.parametrize("how", ["go", "slider"])
def test_a_move_calls_the_function_once_and_shows_what_it_returns(knob, called, how):
    if how == "go":
        knob.go(cap=4)
    else:
        knob._controls["cap"].index = 1  # what the page says after a drag or a key
    assert called == [1, 4]
    assert repr(knob) == "cap: 4\ndrawn 0.25"
    assert "<b>0.25</b>" in knob._picture.value
    assert knob.values == {"cap": 4}


def test_several_controls_moved_from_code_are_one_call():
    called = []
    knob = Knob(lambda **values: called.append(values), n=[1, 2], op=["sum", "max"], async_=[False, True])
    knob.go(n=2, op="max", async_=True)
    assert called == [{"n": 1, "op": "sum", "async_": False}, {"n": 2, "op": "max", "async_": True}]
    knob.go()
    assert called[2:] == called[1:2], "without a value it is computed once more"


def test_it_begins_where_it_is_told_to_and_calls_things_by_their_names():
    knob = Knob(
        lambda cap, hook: None, cap=[0.1, 25, 24_000], hook=[None, "fp16"], start={"cap": 25},
        labels={"cap": "bucket size"}, units={"cap": "MiB"},
    )  # fmt: skip
    assert repr(knob) == "bucket size: 25 MiB, hook: none"
    cap = knob._controls["cap"]
    assert [label for label, _ in cap.options] == ["0.1 MiB", "25 MiB", "24,000 MiB"]
    assert cap.description == "bucket size"


def test_numbers_are_on_a_slider_that_tells_of_its_end_and_words_in_a_list():
    knob = Knob(lambda **values: None, cap=np.array([1, 25]), op=("sum", "max"), async_=[True, False], one=[3])
    cap, *others = knob._controls.values()
    assert isinstance(cap, ipywidgets.SelectionSlider)
    assert cap.continuous_update is False, "or every place that a drag passes would run code on the ranks"
    assert all(isinstance(control, ipywidgets.Dropdown) for control in others)
    assert type(knob.values["cap"]) is int


def test_what_is_printed_displayed_and_returned_is_shown_in_this_order_and_nowhere_else(capsys):
    def show(n):
        print("a <b> on", n, "ranks")
        print("take care", file=sys.stderr)
        return f"{n} < 9"

    knob = Knob(show, n=[2])
    assert repr(knob) == "n: 2\na <b> on 2 ranks\ntake care\n2 < 9"
    assert "a &lt;b&gt; on 2 ranks" in knob._picture.value
    assert "2 &lt; 9" in knob._picture.value
    assert capsys.readouterr() == ("", "")


def test_where_nothing_is_returned_it_shows_what_was_printed():
    assert repr(Knob(lambda n: print("ranks:", n), n=[2])) == "n: 2\nranks: 2"


def test_values_are_shown_in_their_richest_form():
    html = Knob(lambda n: Pictured(n), n=[2])._picture.value
    assert 'alt="drawn 2"' in html
    assert "data:image/svg+xml;base64," in html
    assert "<strong>2</strong>" in Knob(lambda n: Markdown(f"**{n}**"), n=[2])._picture.value
    assert repr(Knob(lambda n: {"ranks": n}, n=[2])).endswith("{'ranks': 2}")


def test_a_mistake_after_a_move_is_said_and_the_knob_stays_usable(knob, called):
    knob._controls["cap"].index = 2
    assert repr(knob) == "cap: 0\nZeroDivisionError: division by zero"
    assert 'role="alert"' in knob._picture.value
    assert "<b>" not in knob._picture.value, "the picture of another value"
    knob._controls["cap"].index = 1
    assert repr(knob) == "cap: 4\ndrawn 0.25"
    assert called == [1, 0, 4]


def test_a_mistake_from_code_is_raised_where_it_was_made_and_said_too(knob):
    with pytest.raises(ZeroDivisionError):
        knob.go(cap=0)
    assert repr(knob) == "cap: 0\nZeroDivisionError: division by zero"
    knob.go(cap=4)
    assert repr(knob) == "cap: 4\ndrawn 0.25"
    with pytest.raises(ZeroDivisionError):
        Knob(lambda cap: 1 / cap, cap=[0, 1])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LabError("Rank 2 <died>. Call lab.heal()."), "Rank 2 <died>. Call lab.heal()."),
        (CellError("rank 1: ValueError: no", "traceback", ["the others wait"]),
         "rank 1: ValueError: no\n  · the others wait"),
        (KeyError("x"), "KeyError: 'x'"),
        (AssertionError(), "AssertionError"),
        (KeyboardInterrupt(), "You stopped it. Move the knob to begin again."),
    ],
)  # fmt: skip
def test_mistakes_are_readable(error, said):
    def show(n):
        if n == 2:
            raise error

    knob = Knob(show, n=[1, 2])
    knob._controls["n"].index = 1
    assert repr(knob) == f"n: 2\n{said}"
    assert "&lt;died&gt;" in knob._picture.value or "<died>" not in said


def test_of_moves_that_come_while_it_runs_the_last_one_counts():
    """A page's moves come on a thread of their own: the function never runs twice at once."""
    called, begun, go_on = [], threading.Event(), threading.Event()

    def show(n):
        called.append(n)
        if n == 1:
            begun.set()
            assert go_on.wait(30)
        return n

    knob = Knob(show, n=[0, 1, 2, 3, 4])
    moving = threading.Thread(target=lambda: setattr(knob._controls["n"], "index", 1))
    moving.start()
    assert begun.wait(30)
    assert "n: 1: running" in knob._said.value
    for index in (2, 3, 4):
        knob._controls["n"].index = index
        assert f"n: {index}: waits" in knob._said.value
    assert called == [0, 1]
    go_on.set()
    moving.join(30)
    assert called == [0, 1, 4]
    assert repr(knob) == "n: 4\n4"
    assert knob._said.value == ""


def test_a_function_that_moves_its_own_knob_is_called_again_behind_itself():
    called = []

    def show(n):
        called.append(n)
        if n == 1:
            knob.go(n=2)
            called.append("end of 1")

    knob = Knob(show, n=[0, 1, 2])
    knob.go(n=1)
    assert called == [0, 1, "end of 1", 2]


def test_it_shows_without_a_kernel_and_carries_its_words(knob):
    knob.go(cap=4)
    bundle = knob._repr_mimebundle_()
    assert bundle["text/plain"] == "cap: 4\ndrawn 0.25"
    assert "cap: 4" in bundle["text/html"]
    assert "<b>0.25</b>" in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_keys_pressed_in_it_do_not_reach_the_notebook(knob):
    assert "stopPropagation" in knob.children[-1].value


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({}, "needs something to choose"),
        ({"cap": []}, "not a list to choose from"),
        ({"cap": 25}, "not a list to choose from"),
        ({"cap": "fast"}, "not a list to choose from"),
        ({"cap": [1, [2]]}, r"\[2\], which no slider can show"),
        ({"cap": [1, 2, 1.0]}, "1.0 twice"),
        ({"cap": [0, False]}, "False twice"),
        ({"cap": [1, float("nan")]}, r"nan twice, or it is not a number \(nan\)"),
        ({"size": [1, 2]}, "does not take size: .*Name its parameters"),
        ({"cap": [1, 2], "start": {"size": 1}}, "start: this knob has no 'size'. It has cap"),
        ({"cap": [1, 2], "start": {"cap": 3}}, "cap=3 is not on this knob. Choose 1 or 2"),
        ({"cap": [1, 2], "units": {"size": "B"}}, "units: this knob has no 'size'"),
        ({"cap": [1, 2], "labels": {"size": "B"}}, "labels: this knob has no 'size'"),
    ],
)
def test_bad_choices_are_refused_with_good_ones(choices, said):
    with pytest.raises(LabError, match=said):
        Knob(lambda cap: cap, **choices)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(LabError, match="cannot be called"):
        Knob("lab.run", cap=[1])


@pytest.mark.parametrize(
    ("where", "said"), [({"size": 1}, "no 'size'"), ({"cap": 2}, "1, 4 or 0"), ({"cap": True}, "True is not")]
)
def test_a_place_that_it_does_not_have_is_refused_and_nothing_moves(knob, called, where, said):
    with pytest.raises(LabError, match=said):
        knob.go(**where)
    assert called == [1]
