"""What a run that did not end by itself is called: runs written by hand, no rank is started."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.floor.words import sentence
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.finding import judged
from labkit.grading.inputs import Case
from labkit.outcome.outcome import Outcome, RankOutcome, Waiting
from labkit.outcome.sentences import TOGETHER
from labkit.show.verdict import Verdict
from tests.recorded import Told

WAITS = Waiting("new_group", 4, source="half = dist.new_group(mine)")


@pytest.mark.parametrize(
    ("waiting", "ended", "state", "says"),
    [
        ((0, 1), "stuck", "deadlock", "Rank 1 could not be freed, so the lab ended its process."),
        ((0,), "stuck", "raises", "With 2 ranks: rank 1 died (SIGKILL)."),
        ((0, 1), "", "raises", "With 2 ranks: rank 1 died (SIGKILL)."),
    ],
)
def test_a_rank_that_the_lab_had_to_end_where_it_waited_did_not_die_by_itself(waiting, ended, state, says):
    outcome = Outcome([RankOutcome(0), RankOutcome(1)], ended, {1: "SIGKILL"}, waiting=dict.fromkeys(waiting, WAITS))
    exercise = Exercise("half_sum", lambda xs: xs)
    finding = judged(exercise, Case([np.zeros(2)] * 2), Attempt(outcome), [np.zeros(2)] * 2, "")
    assert finding.state == state
    assert says in finding.says
    waits = "Ranks 0, 1 wait in new_group, line 4: half = dist.new_group(mine)."
    assert (waits in finding.says) == (state == "deadlock")


@pytest.mark.parametrize("ended", ["", "stuck"])
def test_an_answer_by_single_calls_that_nccl_could_not_bring_together_is_told_so(ended):
    raised = {"ename": "DistBackendError", "raised": "lab" if ended else "operation"}
    begun = [Told(2).send(1 - r, 0, 9, error="DistBackendError", enqueued=True, asynchronous=True) for r in range(2)]
    ranks = [RankOutcome(r, answer={"record": begun[r](r), "error": ("", "", {})}, **raised) for r in range(2)]
    waits = Waiting("isend", 4, source="work = dist.isend(x, 1 - rank)")
    outcome = Outcome(ranks, ended, waiting={r: waits for r in range(2) if ended})
    exercise = Exercise("swap", lambda xs: xs)
    finding = judged(exercise, Case([np.zeros(2)] * 2), Attempt(outcome), [np.zeros(2)] * 2, "")
    assert finding is not None
    assert finding.state == ("deadlock" if ended else "raises")
    assert finding.says[-1] == sentence([TOGETHER])


@pytest.mark.parametrize("on_gpu", [False, True])
def test_only_where_gloo_carried_the_data_is_a_crash_laid_to_the_bytes_that_it_got(on_gpu: bool):
    answer = {"record": Told(2).meet("all_reduce", enqueued=on_gpu)(0)}
    outcome = Outcome([RankOutcome(0, answer=answer), RankOutcome(1)], "", {1: "SIGABRT"})
    exercise = Exercise("half_sum", lambda xs: xs)
    says = judged(exercise, Case([np.zeros(2)] * 2), Attempt(outcome), [np.zeros(2)] * 2, "").says
    assert "With 2 ranks: rank 1 died (SIGABRT)." in says
    assert any("Gloo ends a process like this" in line for line in says) == (not on_gpu)


def test_an_argument_that_is_changed_is_shown_as_it_is_afterwards():
    x = [np.array([1.0, 2.0]), np.array([10.0, 20.0])]
    total = sum(x)
    answers = [{"out": total, "kept": [total], "dtype": "float64", "record": Told(2)(r)} for r in range(2)]
    outcome = Outcome([RankOutcome(r, answer=answer) for r, answer in enumerate(answers)])
    exercise = Exercise("hello", lambda xs, **_: [sum(xs)] * len(xs), keeps_input=True)
    finding = judged(exercise, Case(x), Attempt(outcome), [total, total], "")
    assert finding is not None
    assert finding.says[0] == "With 2 ranks: on ranks 0, 1 the argument is changed, and must stay as it is."
    assert "rank 1 │ [10, 20] → the argument afterwards: [11, 22]   should be: [10, 20]" in repr(
        Verdict(exercise, finding)
    )


def test_numbers_that_differ_are_shown_with_digits_enough_to_differ_and_options_as_they_were_given():
    came, want = [1.9e9, 2.95312e10], [1.9e9, 3.0e10]
    answers = [{"out": came, "kept": [], "dtype": "", "record": Told(2)(r)} for r in range(2)]
    outcome = Outcome([RankOutcome(r, answer=answer) for r, answer in enumerate(answers)])
    exercise = Exercise("price", lambda xs, **_: [want] * len(xs))
    case = Case([()] * 2, options={"parameters": 7.5e9, "stage": 3})
    finding = judged(exercise, case, Attempt(outcome), [want, want], "")
    assert finding is not None
    verdict = Verdict(exercise, finding)
    row = "rank 0 │ parameters=7.5e+09, stage=3 → [1.9e+09, 2.95e+10]   should be: [1.9e+09, 3e+10]"
    assert row in repr(verdict)
    assert "2.95e+10" in verdict._repr_html_()
