"""Some exercises say of a wrong result which mistake gives it. No ranks: it runs right here."""

import sys
from typing import Any

import pytest

from labkit.content import exercises
from labkit.grading.exercise import Exercise, exercise
from labkit.grading.inputs import Case
from labkit.rank.known_mistakes import by_slips
from tests import mistakes
from tests.mistakes import Mistake

NAMED = ("bytes_out_of_hosts", "stage_memory", "mates", "leaves_host", "fewest_micro", "what_is_wrong", "stage_price")
MISTAKES = [
    pytest.param(mistake, id=f"{name}-{mistake.why}")
    for name in NAMED
    for mistake in mistakes.every()[name]
    if mistake.verdict == "wrong"
]


def told(exercise: Exercise, source: str) -> str:
    """What is said of a function on the first input on which it is wrong; "" if nothing is."""
    space: dict[str, Any] = {"world_size": 2, "rank": 0}
    exec(source, space)
    vars(sys.modules[exercise.function.__module__]).update(world_size=2)  # as on ranks
    called = by_slips(exercise, space[exercise.name])
    for case in exercise.inputs(2):
        args = case.xs[0] if isinstance(case.xs[0], tuple) else (case.xs[0],)
        try:
            called(*args, **case.options)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_named(mistake: Mistake):
    assert f" {mistake.why}" in told(mistake.exercise, mistake.source)


@pytest.mark.parametrize("name", NAMED)
def test_nothing_is_said_of_the_solution(name: str):
    assert told(exercises.find(name), exercises.find(name).code) == ""


def test_a_mistake_that_an_earlier_input_would_have_shown_is_not_named():
    slips = {
        "adds 2": ("2 * x", "x + 2"),
        "squares a number above 1": ("2 * x", "x * x + (x == 2) if x > 1 else 2 * x"),
        "adds 3 to a number above 1": ("2 * x", "x + 3 if x > 1 else 2 * x"),
        "adds 3": ("2 * x", "x + 3"),
    }

    @exercise(
        "Twice",
        lambda xs, **_: [2 * x[0] for x in xs],
        inputs=lambda n: [Case([(1,)] * n), Case([(2,)] * n), Case([(0,)] * n)],
        slips=slips,
    )
    def twice(x):
        return 2 * x

    assert told(twice, "def twice(x):\n    return x + 2\n").endswith("if the function adds 2")
    said = told(twice, "def twice(x):\n    return 5 if x == 2 else 2 * x\n")
    assert said.endswith("if the function squares a number above 1, or if it adds 3 to a number above 1")
    assert told(twice, "def twice(x):\n    return 7\n") == ""
