"""What a run cost, the least beside it and the best before it; how the verdict shows them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Least, exercise
from labkit.grading.inputs import Case
from labkit.grading.score import Score, scored
from labkit.outcome.outcome import Outcome, RankOutcome
from labkit.show.score import Costs, in_short
from labkit.theory import collectives
from tests.recorded import Told, told

RING = Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 2 * (n - 1), memory=lambda n, S: S)


@exercise("Total", collectives.all_reduce, least=RING)
def total(x): ...


SCORE = Score(4, 400, 600.0, 6, 400)


def of(*ranks: Told, least: Least | None = RING) -> Score | None:
    report = Outcome([RankOutcome(r, answer={"record": plain}) for r, plain in enumerate(told(*ranks))])
    case = Case([np.zeros(100, dtype="float32")] * len(ranks))
    return scored(replace(total, least=least), case, Attempt(report))


def test_messages_and_collectives_follow_one_another():
    ring = [
        Told(2).send(1 - r, bytes=200, done=3).recv(1 - r).send(1 - r, bytes=200, done=9).recv(1 - r) for r in (0, 1)
    ]
    assert of(*ring) == Score(2, 400, 400.0, 2)
    twice = [Told(3).meet("all_reduce", bytes=300).meet("barrier", bytes=None) for _ in range(3)]
    assert of(*twice) == Score(3, 400, 400.0, 2, textbook=True)


def test_without_a_call_and_without_a_least_there_is_nothing_to_tell():
    assert of(Told(2), Told(2), least=None) is None
    assert of(Told(2), Told(2)) == Score(2, 400, 0.0, 0)
    assert of(Told(2).send(1), Told(2).recv(0), least=None).sent == 4


def test_what_kernels_move_is_the_busiest_ranks_and_all_that_is_scored():
    kernels = replace(total, least=Least(moved=lambda n, S: (n + 2) * S), counts_messages=False)
    report = Outcome([RankOutcome(r, answer={"record": plain}) for r, plain in enumerate(told(Told(2), Told(2)))])
    for r, moved in enumerate((1600, 2000)):
        report.ranks[r].answer["record"]["moved"] = moved
    case = Case([np.zeros(100, dtype="float32")] * 2)
    score = scored(kernels, case, Attempt(report))
    assert score == Score(2, 400, None, None, moved=2000)
    assert score.least(kernels) == {"moved": 1600}
    costs = shown(score, score.least(kernels))
    assert "bytes read and written by its kernels: 2,000 (least possible: 1,600)" in costs
    assert "It can be done with fewer bytes" in costs
    assert in_short({"n": 2, "size": 400, "moved": 2000.0}) == "2,000 bytes read and written"
    for mine in report.ranks:
        mine.answer["record"]["moved"] = None
    assert scored(kernels, case, Attempt(report)) is None, "on a GPU nothing counts them"


def test_a_small_float_is_counted_as_the_case_names_it():
    assert Case([np.zeros(8, "float32")], dtype="bfloat16").size == 16
    assert Case([(np.zeros(8, "float32"), np.zeros(2, "int64"))] * 2).size == 48
    assert Case([()]).size == Case([()]).item == 0


def test_the_least_is_what_the_exercise_knows_of_it():
    assert SCORE.least(total) == {"sent": 600, "rounds": 6, "memory": 400}
    assert SCORE.least(replace(total, least=Least(rounds=lambda n: n))) == {"rounds": 4}
    assert SCORE.least(replace(total, least=None)) == {}


def test_the_best_is_the_lowest_of_each_on_the_most_ranks():
    first = SCORE.best(None)
    assert first == {"n": 4, "size": 400, "sent": 600.0, "rounds": 6, "memory": 400}
    assert Score(4, 400, 1200.0, 2, None).best(first) == {**first, "rounds": 2}
    assert Score(4, 400, 100.0, 9, 500).best(first) == {**first, "sent": 100.0}
    assert Score(2, 200, 100.0, 1, 1).best(first) is None, "two ranks do not compare with four"
    assert Score(8, 800, 9e3, 9, 900).best(first)["n"] == 8
    assert Score(4, 404, 700.0, 6, 404).best(first)["sent"] == 700.0, "the exercise has another input by now"


def test_less_than_there_can_be_is_neither_shown_nor_kept():
    assert SCORE.below(total) == {}
    for cost, value in {"sent": 500.0, "rounds": 5.0, "memory": 300.0}.items():
        cheaper = replace(SCORE, **{cost: value})
        assert list(cheaper.below(total)) == [cost]
        believed = cheaper.believed(total)
        assert believed == replace(SCORE, **{cost: None})
        assert cost not in believed.best(None)
        assert f"{value:.0f}" not in shown(believed, believed.least(total))


def shown(score: Score, least: dict[str, float], best=None) -> str:
    return repr(Costs(score, least, best))


def test_each_figure_stands_beside_the_least_and_the_best():
    least, best = SCORE.least(total), {"n": 4, "size": 400, "sent": 600.0, "rounds": 6, "memory": 400}
    more = replace(SCORE, sent=1200.0, memory=800, textbook=True)
    assert shown(more, least, best) == (
        "With 4 ranks, 400 bytes of input per rank: bytes sent by the busiest rank: 1,200 (least possible: 600) · "
        "steps: 6 (least possible: 6) · bytes of memory at the peak: 800 (least possible: 400). "
        f"Your best: {in_short(best)}. For a collective, the bytes are the textbook's figure, and the call counts as "
        "one step. "
        "It can be done with fewer bytes and less memory."
    )
    html = Costs(more, least, best)._repr_html_()
    assert html.count("<tr>") == 4
    assert "<th" in html
    assert "your best" in html
    assert "your best" not in Costs(more, least, {**best, "n": 8})._repr_html_()
    assert "least possible" not in Costs(more, {}, None)._repr_html_()


def test_only_what_is_true_is_said_of_the_least():
    least = SCORE.least(total)
    assert "No solution that the exercise allows takes less." in shown(SCORE, least)
    assert "less" not in shown(replace(SCORE, memory=440), least), "a small tensor or two is not an invitation"
    assert "less" not in shown(replace(SCORE, memory=None), {"rounds": 6})
    assert "memory" not in shown(replace(SCORE, memory=None), least)


def test_of_what_is_not_as_the_card_asks_it_is_not_said_how_near_it_comes_to_the_least():
    for cheaper in (SCORE, replace(SCORE, rounds=9)):
        said = repr(Costs(cheaper, {"rounds": 6}, None, allowed=False))
        assert "least possible: 6" in said
        assert not any(words in said for words in ("No solution", "can be done"))
