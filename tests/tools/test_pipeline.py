"""Pipeline schedules keep the laws of their papers: their bubbles, what they keep, and that nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product

import pytest

from labkit.floor.errors import LabError
from workbook.tools import pipeline
from workbook.tools.pipeline import SPLIT, UNITS, Box, alive, bubble, play

SIZES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, 3, 4, 8, 24)]
MORE = [(p, m) for p, m in SIZES if m >= p]
GROUPS = [(p, m, v) for p, m in MORE if m % p == 0 for v in (2, 3, 4)]


def whole(schedule: pipeline.Schedule) -> float:
    """When the last operation ends."""
    return max(box.end for mine in schedule.played for box in mine)


def test_the_bubble_is_p_minus_1_of_m_plus_p_minus_1_turns(subtests):
    for schedule, (p, m) in product((pipeline.gpipe, pipeline.one_f_one_b), SIZES):
        with subtests.test(schedule.__name__, p=p, m=m):
            assert schedule(p, m).bubble == pytest.approx((p - 1) / (m + p - 1))
            assert whole(schedule(p, m)) == pytest.approx(3 * (m + p - 1))


def test_v_chunks_divide_the_idle_turns_by_v(subtests):
    for p, m, v in GROUPS:
        with subtests.test(p=p, m=m, v=v):
            found = pipeline.interleaved(p, m, v)
            assert found.bubble == pytest.approx((p - 1) / (v * m + p - 1))
            assert found.chunks == v


def test_a_split_backward_pass_leaves_a_third_of_the_idle_time(subtests):
    for p, m in MORE:
        with subtests.test(p=p, m=m):
            assert pipeline.zero_bubble(p, m).bubble == pytest.approx((p - 1) / (3 * m + p - 1))


def test_gpipe_keeps_all_micro_batches_and_1f1b_as_many_as_there_are_stages_from_here_on(subtests):
    for p, m in SIZES:
        with subtests.test(p=p, m=m):
            assert pipeline.gpipe(p, m).alive == (m,) * p
            assert pipeline.one_f_one_b(p, m).alive == tuple(min(m, p - r) for r in range(p))


def test_zero_bubble_keeps_no_more_on_any_rank_than_1f1b_on_the_first(subtests):
    for p, m in SIZES:
        with subtests.test(p=p, m=m):
            assert max(pipeline.zero_bubble(p, m).alive) == pipeline.one_f_one_b(p, m).alive[0]


def test_interleaving_keeps_p_and_a_v_th_of_p_minus_1_micro_batches_on_the_first_rank(subtests):
    for p, m, v in GROUPS:
        with subtests.test(p=p, m=m, v=v):
            most = pipeline.interleaved(p, m, v).alive[0] / v
            assert most <= p + (p - 1) / v + 1e-9
            assert m == p or most == pytest.approx(p + (p - 1) / v)


def test_every_operation_is_there_once_and_runs_after_what_it_needs(subtests):
    for name, (p, m) in product(pipeline.SCHEDULES, [(p, m) for p, m in SIZES if m % p == 0]):
        with subtests.test(name, p=p, m=m):
            schedule = pipeline.SCHEDULES[name](p, m)
            kinds = "FBW" if schedule.split else "FB"
            for order in schedule.orders:
                assert Counter(order) == {(k, i, c): 1 for k in kinds for i in range(m) for c in range(schedule.chunks)}
            ends = {(b.kind, b.micro, b.chunk * p + b.rank): b for mine in schedule.played for b in mine}
            for (kind, i, stage), box in ends.items():
                before = {"F": ("F", stage - 1), "B": ("B", stage + 1), "W": ("B", stage)}[kind]
                if (before[0], i, before[1]) in ends:
                    assert ends[before[0], i, before[1]].end <= box.start + 1e-9
            for mine in schedule.played:
                assert all(a.end <= b.start + 1e-9 for a, b in pairwise(mine)), "one at a time"


def test_all_the_work_is_played_however_it_is_cut():
    for schedule, units in (
        (pipeline.gpipe(4, 8), UNITS),
        (pipeline.interleaved(4, 8, 2), UNITS),
        (pipeline.zero_bubble(4, 8), SPLIT),
    ):
        work = sum(box.end - box.start for mine in schedule.played for box in mine)
        assert work == pytest.approx(4 * 8 * 3)
        assert sum(units.values()) == 3


@pytest.mark.parametrize(
    ("orders", "who"),
    [
        ([[("B", 0), ("F", 0)]], "Rank 0 waits with B0 for F0 of rank 0"),
        ([[("F", 0), ("B", 0)], [("B", 0), ("F", 0)]], "Rank 1 waits with B0 for F0 of rank 1"),
        ([[("F", 0), ("B", 0), ("F", 1), ("B", 1)], [("F", 0), ("F", 1), ("B", 0), ("B", 1)]], "for F1 of rank 0"),
        ([[("F", 0, 1), ("F", 0, 0)]], "Rank 0 waits with F0 of chunk 1 for F0 of chunk 0 of rank 0"),
    ],
)
def test_an_order_that_never_ends_says_who_waits_for_what(orders, who):
    with pytest.raises(LabError, match=r"never end") as error:
        play(orders)
    assert who in str(error.value)


@pytest.mark.parametrize("wrong", ["F0", ("X", 0), ("F",), ("F", 0, 0, 0), None])
def test_what_is_no_operation_is_refused(wrong):
    with pytest.raises(LabError, match=r'Write \("F", 0\)'):
        play([[wrong]])


@pytest.mark.parametrize("size", [(0, 4), (4, 0)])
@pytest.mark.parametrize("schedule", pipeline.SCHEDULES.values())
def test_a_pipeline_of_nothing_is_refused(schedule, size):
    with pytest.raises(LabError, match="Take one or more of each"):
        schedule(*size)


def test_interleaving_says_how_many_micro_batches_it_takes():
    with pytest.raises(LabError, match="Take 8"):
        pipeline.interleaved(4, 7)
    assert pipeline.interleaved(4, 7, 1).alive == (4, 3, 2, 1), "with one chunk any number will do"


def test_a_bubble_is_what_is_left_of_the_time():
    assert bubble([]) == bubble([[], []]) == 0
    assert bubble([[Box(0, "F", 0, 0, 2.0, 3.0)], [Box(1, "F", 0, 0, 3.0, 5.0)]]) == pytest.approx(0.5)


def test_a_micro_batch_is_kept_until_its_last_operation():
    assert alive([("F", 0), ("B", 0), ("F", 1), ("B", 1)]) == 1
    assert alive([("F", 0), ("B", 0), ("F", 1), ("W", 0), ("B", 1), ("W", 1)]) == 2
    assert alive([("F", 0, 0), ("F", 0, 1), ("B", 0, 1), ("B", 0, 0)]) == 2
