"""Every exercise's solution is right on live ranks at a cost that its card allows; every planted mistake is named.

The scheduler in conftest.py, above tests/, gives a lesson's exercises to one worker and the next lesson's to another.
"""

from __future__ import annotations

import pytest

import labkit
from labkit.content import exercises
from labkit.grading.exercise import Exercise
from tests import mistakes
from tests.live.cheapest import hold_to_the_least, runs_of_checks
from tests.live.other_ways import OTHER_WAYS
from tests.live.versions import GLOO_ALL_TO_ALL, GROUP_AFTER_LOCAL_ONE
from tests.mistakes import Mistake
from tests.nccl_exchanges import faults

ALL = exercises.every()
# What they are about are sends that do not wait, which hold on NCCL with short messages: lesson 12 says so.
SHORT = {"one_f_one_b", "run_ops", "split_order", "interleaved_order"}


@pytest.fixture(scope="module")
def lab(own_progress):
    """Four ranks for all of them: what one mistake leaves behind would be the next one's misfortune."""
    with labkit.start(4, timeout=2) as lab:
        yield lab


def named(exercise: Exercise) -> str:
    """How the name of its tests begins: with its lesson, for the scheduler."""
    return f"lesson{exercise.lesson}-{exercise.name}"


CALLS = {"dist.all_to_all(": GLOO_ALL_TO_ALL, "use_local_synchronization=True": GROUP_AFTER_LOCAL_ONE}
EACH = pytest.mark.parametrize("exercise", ALL.values(), ids=map(named, ALL.values()))
EACH_MISTAKE = pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(mistake, id=f"{named(mistake.exercise)}-{mistake.why}")
        for planted in mistakes.every().values()
        for mistake in planted
    ],
)


@EACH
def test_the_solution_is_right(lab: labkit.Lab, monkeypatch: pytest.MonkeyPatch, exercise: Exercise):
    lab.run(exercise.answer.removeprefix("%%px\n"))
    runs = runs_of_checks(monkeypatch)
    verdict = lab.check(exercise.name)
    assert verdict.state == "right", repr(verdict)
    assert verdict.right == sum(len(list(exercise.inputs(n))) for n in exercise.ranks)
    if exercise.least:
        hold_to_the_least(exercise, verdict, runs)
    short = exercise.name in SHORT
    assert {case.n: found for case, ran in runs if ran.record and (found := faults(ran.record, short))} == {}


@EACH
def test_the_stub_is_not_attempted_yet_and_a_specimen_is_broken(lab: labkit.Lab, exercise: Exercise):
    lab.run(exercise.stub.removeprefix("%%px\n"))
    state = lab.check(exercise.name).state
    assert state != "right" if exercise.specimen else state == "not attempted"


@EACH_MISTAKE
def test_the_mistake_is_named_for_what_it_is(lab: labkit.Lab, mistake: Mistake):
    lab.run(mistake.source)
    verdict = lab.check(mistake.exercise.name)
    assert verdict.state == mistake.verdict, repr(verdict)
    assert mistake.says in " ".join(verdict.says), repr(verdict)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        pytest.param(
            name, source, id=f"{named(ALL[name])}-{i}", marks=[mark for call, mark in CALLS.items() if call in source]
        )
        for i, (name, source) in enumerate(OTHER_WAYS)
    ],
)
def test_another_right_way_is_right(lab: labkit.Lab, name: str, source: str):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


@pytest.mark.parametrize("lesson", sorted({exercise.lesson for exercise in ALL.values()}), ids="lesson{}-".format)
def test_after_all_of_them_the_ranks_are_well(lab: labkit.Lab, lesson: str):
    assert lab.run("y = torch.ones(1)\ndist.all_reduce(y)\nprint(rank, world_size, int(y))") == [
        f"{r} 4 4\n" for r in range(4)
    ]
