"""What a run that did not end by itself is called: runs written by hand, no rank is started."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.finding import judged
from labkit.grading.inputs import Case
from labkit.outcome.outcome import Outcome, RankOutcome
from labkit.outcome.why import TOGETHER
from labkit.words import sentence
from tests.recorded import Told

WAITS = {"op": "new_group", "line": 4, "source": "half = dist.new_group(mine)"}


@pytest.mark.parametrize(
    ("waiting", "ended", "state", "says"),
    [
        ((0, 1), "stuck", "deadlock", "Rank 1 could not be freed, so the lab ended what waited there."),
        ((0,), "stuck", "raises", "With 2 ranks: rank 1 died (SIGKILL)."),
        ((0, 1), "", "raises", "With 2 ranks: rank 1 died (SIGKILL)."),
    ],
)
def test_a_rank_that_the_lab_had_to_end_where_it_waited_did_not_die_by_itself(waiting, ended, state, says):
    outcome = Outcome([RankOutcome(0), RankOutcome(1)], ended, {1: "SIGKILL"}, waiting=dict.fromkeys(waiting, WAITS))
    exercise = Exercise("half_sum", "", "", "", lambda xs: xs, "")
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
    waits = {"op": "isend", "line": 4, "source": "work = dist.isend(x, 1 - rank)"}
    outcome = Outcome(ranks, ended, waiting={r: waits for r in range(2) if ended})
    exercise = Exercise("swap", "", "", "", lambda xs: xs, "")
    finding = judged(exercise, Case([np.zeros(2)] * 2), Attempt(outcome), [np.zeros(2)] * 2, "")
    assert finding is not None
    assert finding.state == ("deadlock" if ended else "raises")
    assert finding.says[-1] == sentence([TOGETHER])


@pytest.mark.parametrize("on_gpu", [False, True])
def test_only_where_gloo_carried_the_data_is_a_crash_laid_to_the_bytes_that_it_got(on_gpu: bool):
    answer = {"record": Told(2).meet("all_reduce", enqueued=on_gpu)(0)}
    outcome = Outcome([RankOutcome(0, answer=answer), RankOutcome(1)], "", {1: "SIGABRT"})
    exercise = Exercise("half_sum", "", "", "", lambda xs: xs, "")
    says = judged(exercise, Case([np.zeros(2)] * 2), Attempt(outcome), [np.zeros(2)] * 2, "").says
    assert "With 2 ranks: rank 1 died (SIGABRT)." in says
    assert any("Gloo ends a process like this" in line for line in says) == (not on_gpu)
