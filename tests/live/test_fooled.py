"""A wrong function is not called right, whatever it does to be; a right one is, however it is written."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import labkit
from labkit.content import exercises
from labkit.grading.exercise import Exercise
from tests.live.fooling import EXERCISES, HONEST, TOOLS, TRICKS, Trick

ALL = exercises.every()


@pytest.fixture(scope="module")
def lab(own_progress):
    """Four ranks for all of them: what one trick leaves behind would be the next one's misfortune."""
    with labkit.start(4, timeout=2) as lab:
        yield lab


@pytest.fixture
def token() -> Iterator[str]:
    """What the names of a trick's files begin with; the files go when the test ends."""
    token = secrets.token_hex(4)
    yield token
    for folder in (tempfile.gettempdir(), "/dev/shm"):
        for file in Path(folder).glob(f"{token}-*"):
            file.unlink()


def source(exercise: Exercise, bent: str, token: str) -> str:
    """A cell with the exercise's function, which does what `bent` does."""
    solution = exercise.answer.removeprefix("%%px\n").replace(f"def {exercise.name}(", "def right(")
    tools = TOOLS.format(token=token) + f"NAME = {exercise.name!r}\n"
    return "\n".join([tools, solution, EXERCISES[exercise.name], bent])


def ids(name: str) -> str:
    return f"lesson{ALL[name].lesson}-{name}"


@pytest.mark.parametrize("name", EXERCISES, ids=ids)
@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.why)
def test_a_wrong_function_is_judged_as_what_it_is(lab: labkit.Lab, name: str, trick: Trick, token: str):
    lab.run(source(ALL[name], trick.source, token))
    verdict = lab.check(name)
    state, says = trick.but.get(name, (trick.state, trick.says))
    assert verdict.state == state, repr(verdict)
    assert says in " ".join(verdict.says), repr(verdict)


@pytest.mark.parametrize("name", EXERCISES, ids=ids)
@pytest.mark.parametrize("bent", HONEST.values(), ids=HONEST)
def test_a_right_function_is_right_however_it_is_written(lab: labkit.Lab, name: str, bent: str, token: str):
    lab.run(source(ALL[name], bent, token))
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)
    if verdict.score:
        least = verdict.score.least(ALL[name])
        taken = {cost: getattr(verdict.score, cost) for cost in least}
        assert all(taken[cost] is None or taken[cost] >= least[cost] for cost in least), repr(verdict)
