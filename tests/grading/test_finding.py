"""What a run that did not end by itself is called: runs written by hand, no rank is started."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.finding import judged
from labkit.grading.inputs import Case
from labkit.outcome.outcome import Outcome, RankOutcome
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


@pytest.mark.parametrize("on_gpu", [False, True])
def test_only_where_gloo_carried_the_data_is_a_crash_laid_to_the_bytes_that_it_got(on_gpu: bool):
    answer = {"record": Told(2).meet("all_reduce", enqueued=on_gpu)(0)}
    outcome = Outcome([RankOutcome(0, answer=answer), RankOutcome(1)], "", {1: "SIGABRT"})
    exercise = Exercise("half_sum", "", "", "", lambda xs: xs, "")
    says = judged(exercise, Case([np.zeros(2)] * 2), Attempt(outcome), [np.zeros(2)] * 2, "").says
    assert "With 2 ranks: rank 1 died (SIGABRT)." in says
    assert any("Gloo ends a process like this" in line for line in says) == (not on_gpu)
