"""The planted mistakes are what `tests.mistakes` says they are: its reader refuses what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from labkit.content import exercises
from labkit.floor.errors import LabError
from labkit.grading.exercise import exercise
from labkit.theory import collectives
from tests.mistakes import every, named, read

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist


@exercise("Total", collectives.all_reduce, given="import math")
def total(x):
    """Return the sum of all ranks' x."""
    # yours
    y = x.clone()
    for z in (y,):
        dist.all_reduce(z)
    # end
    return y


FIVE = """
wrong | hands back its own | lacks rank 1 | dist.all_reduce(z) → pass
wrong | adds nothing up | lacks rank 1
    for z in (y,) → for z in ()
wrong | takes it twice | twice
    -     for z in (y,):
    +     for z in (y, y):
              dist.all_reduce(z)
raises | has no y | NameError | y = x.clone() →
deadlock | leaves rank 0 out | without it
    def total(x):
        if rank:

            dist.all_reduce(x)
        return x
"""


def test_a_mistake_is_an_edit_or_whole_lines_or_a_function_of_its_own():
    mistakes = read(total, FIVE)
    assert [(m.verdict, m.why, m.says) for m in mistakes][-2:] == [
        ("raises", "has no y", "NameError"),
        ("deadlock", "leaves rank 0 out", "without it"),
    ]
    edited = [("        dist.all_reduce(z)", "        pass"), ("(y,)", "()"), ("(y,)", "(y, y)"), ("y = x.clone()", "")]
    assert [m.source for m in mistakes[:4]] == [total.before + total.code.replace(old, new) for old, new in edited]
    assert mistakes[4].source == (
        f"{total.before}def total(x):\n    if rank:\n\n        dist.all_reduce(x)\n    return x\n"
    )


@pytest.mark.parametrize(
    ("entry", "refusal"),
    [
        ("wrong | does | says", "is not: verdict"),
        ("wrong | does", "is not: verdict"),
        ("wrong | does | says | ", "is not: verdict"),
        ("wrong | does | says | y → z\n    y → z", "is not: verdict"),
        ("wrnog | does | says | return y → return x", "there is no verdict 'wrnog'"),
        ("wrong | does |  | return y → return x", "it says nothing"),
        ("wrong | does | says | (w,) → (x,)", r"'\(w,\)' is 0 times"),
        ("wrong | does | says | x → y", "'x' is 3 times"),
        ("wrong | does | says | return y", "defines no function total"),
        ("wrong | does | says\n    -     return z\n    +     return x", r"return z.n' is 0 times"),
        ("wrong | does | says | return y → return (y", "is not Python"),
        ("wrong | does | says | def total → def sum", "defines no function total"),
        ("wrong | does | says\n    def sum(x):\n        return x", "defines no function total"),
        ("wrong | does | says | return y →  return y", "'does' and 'the solution' are alike"),
        ("wrong | does | says | Return the sum → Add up", "'does' and 'the solution' are alike"),
        ("wrong | has no y | says | return y → return x", "'has no y' and 'has no y' are alike"),
        ("wrong | does | says | dist.all_reduce(z) → pass  # !", "'does' and 'hands back its own' are alike"),
    ],
)
def test_a_mistake_that_cannot_be_one_is_refused(entry: str, refusal: str):
    with pytest.raises(ValueError, match=f"(?s)^total.*{refusal}"):
        read(total, f"{FIVE}{entry}\n")


def test_too_few_and_those_that_end_all_alike_are_refused():
    entries = FIVE.strip().split("\nraises")[0]
    with pytest.raises(ValueError, match="total has 3 planted mistakes"):
        read(total, entries)
    with pytest.raises(ValueError, match="all its mistakes are 'wrong'"):
        read(total, f"{entries}\nwrong | squares | is 100 | return y → return y * y")


def test_slips_are_mistakes_that_the_check_names():
    mistakes = read(total, named({"hands back its own": ("dist.all_reduce(z)", "pass")}) + FIVE.split("\n", 2)[2])
    assert (mistakes[0].verdict, mistakes[0].says) == ("wrong", "hands back its own")
    assert mistakes[0].source == read(total, FIVE)[0].source


def test_every_exercise_has_some_and_none_is_refused():
    assert every().keys() == exercises.every().keys()


def test_an_exercise_without_mistakes_and_mistakes_of_another_lesson_are_refused(monkeypatch):
    known = exercises.every()
    monkeypatch.setattr(exercises, "every", lambda: {**known, "total": total})
    with pytest.raises(ValueError, match="No mistakes are planted for total"):
        every.__wrapped__()
    changed = {**known, "halo": replace(known["halo"], lesson="03")}
    monkeypatch.setattr(exercises, "every", lambda: changed)
    monkeypatch.setattr(exercises, "find", changed.__getitem__)
    with pytest.raises(ValueError, match=r"halo stands in lesson02.*an exercise of lesson 03"):
        every.__wrapped__()
    monkeypatch.undo()
    with monkeypatch.context() as alone:
        alone.setattr(exercises, "_all", {"halo": known["halo"]})
        with pytest.raises(LabError, match="There is no exercise"):
            every.__wrapped__()
