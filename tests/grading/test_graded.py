"""What grading found is counted and compared: points, and who has the least of each cost."""

from __future__ import annotations

from labkit.grading.finding import Finding
from labkit.grading.graded import Copy, Fewest, Graded, leaders
from labkit.grading.score import Score


def graded(state: str, score: Score | None = None, name: str = "total") -> Graded:
    return Graded(name, "Add it up", state, f"? {name}: {state}", score=score)


def test_a_right_result_is_a_point_also_where_it_costs_more_than_allowed():
    states = ("right", "costly", "wrong", "deadlock", "forbidden", "not as asked", "not attempted", "not graded")
    assert [graded(state).points for state in states] == [1, 1, 0, 0, 0, 0, 0, 0]
    assert Copy("ada", tuple(map(graded, states))).points == 2


def test_the_least_of_each_cost_leads_and_equal_ones_share_it():
    copies = [
        Copy("ada", (graded("right", Score(4, 64, sent=96, rounds=6, memory=80)),)),
        Copy("bob", (graded("right", Score(4, 64, sent=96, rounds=3)),)),
        Copy("eve", (graded("costly", Score(4, 64, sent=1, rounds=1, memory=1)), graded("wrong", name="other"))),
    ]
    assert leaders(copies) == [
        Fewest("total", "sent", 96, ("ada", "bob")),
        Fewest("total", "rounds", 3, ("bob",)),
        Fewest("total", "memory", 80, ("ada",)),
    ]


def test_in_an_exam_a_mistake_is_wrong_and_not_named():
    for state in ("wrong", "raises", "deadlock", "slow"):
        told = Finding(state, ["Rank 1 waits for rank 0."], right=3, printed="7").in_an_exam()
        assert (told.state, told.says, told.right, told.printed) == ("wrong", [], 0, "")


def test_in_an_exam_the_costs_are_not_shown_and_what_was_not_run_is_told_in_full():
    told = Finding("costly", ["It takes 9 steps."], right=3, score=Score(4, 64, 96, 9)).in_an_exam()
    assert (told.state, told.says, told.right, told.score) == ("costly", [], 3, None)
    missing = Finding("not attempted", ["There is no function total on the ranks yet."])
    assert missing.in_an_exam() is missing
