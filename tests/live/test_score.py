"""What a right solution cost: counted on live ranks, held against the least possible, and the learner's best kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

import labkit
from labkit.content import exercises
from labkit.faces import progress
from labkit.grading.exercise import Exercise, Least
from tests.live.cheapest import CHEAPEST, invited
from tests.live.versions import GLOO_ALL_TO_ALL


@pytest.fixture(scope="module")
def lab():
    with labkit.start(4, timeout=5) as lab:
        yield lab


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path))
    return tmp_path


def scored(lab, monkeypatch, exercise: Exercise, n: int):
    """The verdict on what the ranks have, on the largest input for n ranks alone."""
    case = max(exercise.inputs(n), key=lambda case: case.size)
    monkeypatch.setitem(exercises.every(), exercise.name, replace(exercise, ranks=(n,), inputs=lambda _: [case]))
    verdict = lab.check(exercise.name)
    assert verdict.state == "right", verdict
    assert (verdict.score.n, verdict.score.size) == (n, case.size)
    return verdict


@pytest.mark.parametrize(
    ("name", "cost", "source"),
    [
        pytest.param(*one, id=f"{one[0]}-{one[1]}", marks=GLOO_ALL_TO_ALL if "dist.all_to_all(" in one[2] else ())
        for one in CHEAPEST
    ],
)
def test_what_the_workbooks_solution_does_not_reach_can_be_reached(lab, monkeypatch, name, cost, source):
    exercise = exercises.find(name)
    monkeypatch.setitem(exercises.every(), name, replace(exercise, ranks=(max(exercise.ranks),)))
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", verdict
    assert cost not in invited(verdict)


COUNTED = [
    ("ring_all_reduce", 4, 6168, 6, 4112 * 1.5, False),  # the total, a chunk that comes, and one that is still held
    ("hello_sum", 3, 4 / 3 * 3084, 1, 3084, True),
    ("ring_all_gather", 3, 2 / 3 * 3084, 2, 0, False),
]


@pytest.mark.parametrize(("name", "n", "sent", "rounds", "memory", "textbook"), COUNTED)
def test_the_figures_are_those_that_one_counts_by_hand(lab, monkeypatch, name, n, sent, rounds, memory, textbook):
    exercise = exercises.find(name)
    lab.run(exercise.answer.removeprefix("%%px\n"))
    verdict = scored(lab, monkeypatch, exercise, n)
    score = verdict.score
    assert (score.sent, score.rounds, score.memory, score.textbook) == (sent, rounds, memory, textbook)
    assert ("the textbook's figure" in repr(verdict)) == textbook


def test_the_largest_input_on_most_ranks_is_the_one_that_is_told(lab):
    progress.change("naive_all_reduce", shown=True)
    lab.run(exercises.find("naive_all_reduce").answer.removeprefix("%%px\n"))
    verdict = lab.check("naive_all_reduce")
    assert verdict.says == []
    assert (
        "With 4 ranks, 4,112 bytes of input per rank: bytes sent by the busiest rank: 12,336 (least possible: 12,336) "
        "· steps: 6 (least possible: 6) · bytes of memory at the peak: 8,224 (least possible: 8,224)." in repr(verdict)
    )
    assert "No solution that the exercise allows takes less." in repr(verdict)
    assert "Your best" not in repr(verdict), "the solution that was shown is nobody's best"


def test_the_best_is_kept_figure_by_figure_and_shown(lab, place):
    gathers = "def hello_sum(x):\n    return sum(comms.all_gather(x))"
    twice = "def hello_sum(x):\n    dist.barrier()\n    return comms.all_reduce(x)"
    lab.run(gathers)
    first = repr(lab.check("hello_sum"))
    assert "bytes sent by the busiest rank: 12,336 (least possible: 6,168)" in first
    assert "It can be done with fewer bytes and less memory." in first
    lab.run(twice)
    second = lab.check("hello_sum")
    assert "steps: 2 (least possible: 1)" in repr(second)
    assert "Your best: 6,168 bytes sent, 1 step, 4,112 bytes of memory." in repr(second)
    assert ">your best</th>" in second._repr_html_()
    lab.run("def hello_sum(x):\n    return -comms.all_reduce(x)")
    assert lab.check("hello_sum").score is None, "what is wrong has no score"
    best = {"n": 4, "size": 4112, "sent": 6168.0, "rounds": 1, "memory": 4112}
    assert progress.read()["hello_sum"]["best"] == best
    assert "6,168 bytes sent, 1 step, 4,112 bytes of memory" in repr(lab.progress("00"))
    assert "6,168 bytes sent" in lab.progress("00")._repr_html_()


def test_what_is_costly_has_a_score_and_no_best(lab):
    lab.run(exercises.find("naive_all_reduce").code.replace("naive_all_reduce", "ring_all_reduce"))
    verdict = lab.check("ring_all_reduce")
    assert (verdict.state, verdict.score.rounds, verdict.score.sent) == ("costly", 6, 3 * 4112)
    assert "It can be done with fewer bytes and less memory." in repr(verdict)
    assert "best" not in progress.read()["ring_all_reduce"]


def test_a_function_of_ones_own_is_scored_where_a_least_is_given(lab):
    lab.run("def mine(x):\n    return comms.all_reduce(x)")
    assert lab.check("mine", means="all_reduce").score is None
    verdict = lab.check("mine", means="all_reduce", least=Least(rounds=lambda n: 1))
    assert "steps: 1 (least possible: 1)" in repr(verdict)


def test_a_function_whose_last_run_does_not_end_well_has_a_score_without_memory(lab):
    """The run that counts memory is one more, in which a function may go wrong that sees how it is counted."""
    lab.run(
        "def hello_sum(x):\n    if rank == 0 and torch._C._len_torch_dispatch_stack():\n        raise ValueError\n"
        "    return comms.all_reduce(x)"
    )
    verdict = lab.check("hello_sum")
    assert (verdict.state, verdict.score.sent, verdict.score.memory) == ("right", 6168, None)
    assert "memory" not in repr(verdict).partition("\n")[2].partition("Next")[0].replace("memory of", "")
    assert lab.run("y = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y))") == ["4\n"] * 4


@pytest.mark.parametrize("name", ["shed_gradients", "zero3_layer"])
def test_what_the_backward_pass_does_after_the_call_is_not_told_as_no_memory(lab, name):
    lab.run(exercises.find(name).answer.removeprefix("%%px\n"))
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)
    assert verdict.score.rounds == exercises.find(name).least.rounds(4)
    assert verdict.score.memory is None
    assert "memory at the peak" not in repr(verdict.score), "nor is it on the card"
    assert "memory" not in progress.read()[name]["best"] or progress.read()[name]["best"]["memory"] is None
