"""What holds of every exercise: the laws of test_exercises.py and test_training_exercises.py, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import labkit
from labkit.grading.exercise import Exercise, Mutant


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Four ranks for all of them: what one mistake leaves behind would be the next one's misfortune."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_PROGRESS", str(tmp_path_factory.mktemp("progress")))
        with labkit.start(4, timeout=2) as lab:
            yield lab


def each(chosen: Sequence[Exercise]) -> pytest.MarkDecorator:
    """Run a test for each of these exercises."""
    return pytest.mark.parametrize("exercise", chosen, ids=[exercise.name for exercise in chosen])


def each_mistake(chosen: Sequence[Exercise]) -> pytest.MarkDecorator:
    """Run a test for each mistake that is planted in these exercises."""
    mistakes = [(exercise, mutant) for exercise in chosen for mutant in exercise.mutants]
    return pytest.mark.parametrize(
        ("exercise", "mutant"), mistakes, ids=[f"{exercise.name}-{mutant.why}" for exercise, mutant in mistakes]
    )


def solution_is_right(lab: labkit.Lab, exercise: Exercise) -> None:
    """The workbook's solution passes every case."""
    lab.run(exercise.answer.removeprefix("%%px\n"))
    verdict = lab.check(exercise.name)
    assert verdict.state == "right", repr(verdict)
    assert verdict.right == sum(len(list(exercise.inputs(n))) for n in exercise.ranks)


def stub_is_no_solution(lab: labkit.Lab, exercise: Exercise) -> None:
    """What a learner starts from is empty, or a specimen that is wrong."""
    lab.run(exercise.stub.removeprefix("%%px\n"))
    state = lab.check(exercise.name).state
    assert state != "right" if exercise.specimen else state == "not attempted"


def mistake_is_named(lab: labkit.Lab, exercise: Exercise, mutant: Mutant) -> None:
    """The verdict on a planted mistake is what it is said to be, in these words."""
    lab.run(mutant.of(exercise))
    verdict = lab.check(exercise.name)
    assert verdict.state == mutant.verdict, repr(verdict)
    assert mutant.says in repr(verdict)


def ranks_are_well(lab: labkit.Lab) -> None:
    """All four still add up."""
    assert lab.run("y = torch.ones(1)\ndist.all_reduce(y)\nprint(rank, world_size, int(y))") == [
        f"{r} 4 4\n" for r in range(4)
    ]
