"""A wrong function is not called right, whatever it does to be; a right one is, however it is written."""

from __future__ import annotations

import secrets

import pytest

import labkit
from labkit import exercises
from labkit.grading.exercise import Exercise
from tests.live.fooling import EXERCISES, HONEST, TOOLS, TRICKS, Trick

ALL = exercises.every()


@pytest.fixture(scope="module")
def lab(own_progress):
    """Four ranks for all of them: what one trick leaves behind would be the next one's misfortune."""
    with labkit.start(4, timeout=2) as lab:
        yield lab


def source(exercise: Exercise, bent: str) -> str:
    """A cell with the exercise's function, which does what `bent` does."""
    solution = exercise.answer.removeprefix("%%px\n").replace(f"def {exercise.name}(", "def right(")
    tools = TOOLS.format(token=secrets.token_hex(4)) + f"NAME = {exercise.name!r}\n"
    return "\n".join([tools, solution, EXERCISES[exercise.name], bent])


def ids(name: str) -> str:
    return f"lesson{ALL[name].lesson}-{name}"


@pytest.mark.parametrize("name", EXERCISES, ids=ids)
@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.why)
def test_a_wrong_function_is_judged_as_what_it_is(lab: labkit.Lab, name: str, trick: Trick):
    lab.run(source(ALL[name], trick.source))
    verdict = lab.check(name)
    state, says = trick.but.get(name, (trick.state, trick.says))
    assert verdict.state == state, repr(verdict)
    assert says in " ".join(verdict.says), repr(verdict)


@pytest.mark.parametrize("name", EXERCISES, ids=ids)
@pytest.mark.parametrize("bent", HONEST.values(), ids=HONEST)
def test_a_right_function_is_right_however_it_is_written(lab: labkit.Lab, name: str, bent: str):
    lab.run(source(ALL[name], bent))
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)
    if verdict.score:
        least = verdict.score.least(ALL[name])
        taken = {cost: getattr(verdict.score, cost) for cost in least}
        assert all(taken[cost] is None or taken[cost] >= least[cost] for cost in least), repr(verdict)
