"""How much communication is hidden behind computing: laws of intervals, and what counts as what."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from labkit.theory.log import Log
from labkit.theory.overlap import Overlap, common, length, overlaps, union, without
from labkit.theory.record import read
from tests.recorded import Told, told


def found(*ranks: Told) -> list[Overlap]:
    """Each rank's, in milliseconds."""
    each = overlaps(read(told(*ranks)))
    return [
        Overlap(*(round(1e3 * t, 6) for t in (o.computing, o.communicating, o.hidden)), o.open, o.late) for o in each
    ]


def alone(rank: Told) -> Overlap:
    return found(rank)[0]


def some(chance: Random) -> list[tuple[int, int]]:
    return [tuple(sorted((chance.randrange(30), chance.randrange(30)))) for _ in range(chance.randrange(9))]


def moments(intervals) -> set[int]:
    """The unit steps of time that intervals have."""
    return {t for a, b in intervals for t in range(a, b)}


def test_intervals_are_sets_of_moments(subtests):
    for seed in range(200):
        with subtests.test(seed=seed):
            chance = Random(seed)
            x, y = some(chance), some(chance)
            a, b = union(x), union(y)
            assert moments(a) == moments(x)
            assert moments(common(a, b)) == moments(x) & moments(y)
            assert moments(without(a, b)) == moments(x) - moments(y)
            assert length(a) == len(moments(x))
            for result in (a, common(a, b), without(a, b)):
                assert all(p < q for p, q in result), "no empty ones"
            assert all(q < r for (_, q), (r, _) in pairwise(a)), "in order and apart"


def test_what_is_computed_while_a_collective_is_under_way_hides_it():
    rank = Told(1).span("backward", 0, 100).start("all_reduce", 50, 80, (120, 121))
    assert alone(rank) == Overlap(computing=99, communicating=30, hidden=29)  # the call itself took 1 ms


def test_without_the_moment_of_its_end_it_counts_until_its_wait_and_that_is_said():
    rank = Told(1).span("backward", 0, 100).start("all_reduce", 50, None, (120, 121))
    assert alone(rank) == Overlap(computing=99, communicating=71, hidden=49, late=1)


def test_a_blocking_call_in_a_span_is_neither_computing_nor_hidden():
    rank = Told(1).span("backward", 0, 100).meet("all_reduce", 40, 90)
    assert alone(rank) == Overlap(computing=50, communicating=50, hidden=0)


def test_a_wait_in_a_span_is_neither_computing_nor_hidden():
    rank = Told(1).span("backward", 0, 100).start("all_reduce", 10, 60, (30, 70))
    assert alone(rank) == Overlap(computing=59, communicating=50, hidden=19)


def test_what_waits_behind_a_backward_pass_is_no_computing():
    rank = Told(1).span("backward", 0, 100).stand(80, 100).start("all_reduce", 50, 95, (80, 100))
    assert alone(rank) == Overlap(computing=79, communicating=45, hidden=29)


def test_nothing_counts_twice():
    rank = Told(1).span("step", 0, 100).span("backward", 20, 90).span("blocks.0", 30, 50)
    rank.start("all_reduce", 30, 60, (99, 99)).start("all_reduce", 40, 70, (99, 99))
    assert alone(rank) == Overlap(computing=98, communicating=40, hidden=38)


def test_spans_alone_and_communication_alone():
    assert alone(Told(1).span("forward", 5, 25)) == Overlap(computing=20, communicating=0, hidden=0)
    rank = Told(1).meet("all_reduce", 5, 25)
    assert alone(rank) == Overlap(computing=0, communicating=20, hidden=0)
    assert alone(rank).share == 0
    assert alone(Told(1)) == Overlap(0, 0, 0)


def test_calls_of_which_nobody_knows_the_end_are_counted_and_left_out():
    rank = Told(1).span("backward", 0, 100).meet("all_reduce", 10, 10, witnessed=True).start("all_reduce", 20, None)
    assert alone(rank) == Overlap(computing=99, communicating=0, hidden=0, open=2)


def test_what_has_not_ended_lasts_until_the_last_moment_that_is_known():
    rank = Told(1).span("backward", 0, None).meet("barrier", 60, None)
    rank.log.ended = 0.1
    assert alone(rank) == Overlap(computing=60, communicating=40, hidden=0)


def test_a_call_that_failed_ends_where_it_failed():
    rank = Told(1).span("step", 0, 100).meet("all_reduce", 20, 70, error="RuntimeError")
    assert alone(rank) == Overlap(computing=50, communicating=50, hidden=0)
    rank = Told(1).span("step", 0, 100).start("all_reduce", 20, None, (50, 70))
    rank.log.ops[-1].error = "RuntimeError"
    assert alone(rank) == Overlap(computing=79, communicating=50, hidden=29)


def test_each_rank_counts_for_itself():
    busy, idle = Told(2).span("x", 0, 10).start("all_reduce", 1, 9, (10, 10)), Told(2).start("all_reduce", 1, 9, (2, 9))
    assert [o.hidden for o in found(busy, idle)] == [7, 0]
    assert found(busy, idle)[1].communicating == 8


def test_the_moment_of_the_data_is_never_after_the_wait_for_it():
    (op,) = read(told(Told(1).start("all_reduce", 0, 50, (10, 20)))).ops[0]
    assert op.arrived == 0.02
    assert op.ended == 0.02


def test_spans_travel_as_plain_data_and_move_with_the_clock():
    rank = Told(1).span("forward", 10, 20, "forward").span("x", 12, None, error="KeyError").stand(30, 40)
    log = Log.of(rank())
    assert log.spans == rank.log.spans
    record = read(told(rank))
    assert [(s.name, s.of, s.entered, s.left, s.error) for s in record.spans[0]] == [
        ("forward", "forward", 0, 0.01, ""),
        ("x", "", pytest.approx(0.002), None, "KeyError"),
    ]
    assert record.logs[0].stood == [(pytest.approx(0.02), pytest.approx(0.03))]


def test_too_many_spans_are_told():
    rank = Told(1).span("x", 0, 1)
    rank.log.cut = 7
    assert read(told(rank)).notes == ("only the last spans are kept: up to 7 earlier ones per rank are not shown",)
