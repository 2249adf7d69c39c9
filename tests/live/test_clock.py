"""`timed` on real ranks: what it calls, and what it says; never how fast."""

from __future__ import annotations

import pytest

from labkit.floor.words import ANSI
from tests.live.ranks import Ranks


@pytest.fixture(scope="module")
def two():
    with Ranks(2) as pool:
        yield pool


def test_every_rank_gets_the_same_timing_of_all_ranks(two):
    first, second = two("timed(lambda: dist.all_reduce(torch.ones(3)), repeat=5)")
    assert first == second
    assert [len(samples) for samples in first.samples] == [2] * 5
    assert all(seconds > 0 for samples in first.samples for seconds in samples)


def test_it_calls_as_often_as_it_says(two):
    code = """
count = []
t = timed(lambda: count.append(dist.barrier()), warmup=2, repeat=4, calls=3)
len(count), t.calls, len(t.samples)
"""
    assert two(code) == [(2 + 4 * 3, 3, 4)] * 2


def test_all_ranks_make_as_many_calls_as_the_slowest_needs(two):
    code = """
import time
slow = timed(lambda: (dist.barrier(), time.sleep(0.02 if rank else 0)), repeat=2)
slow.calls, timed(dist.barrier, warmup=30, repeat=2).calls > 1
"""
    assert two(code) == [(1, True)] * 2


def test_without_a_warm_up_each_repetition_is_one_call(two):
    assert two("timed(dist.barrier, warmup=0, repeat=2).calls") == [1, 1]


def test_it_times_a_group_and_leaves_the_others_alone(two):
    code = """
alone = dist.new_group([1])
len(timed(lambda: None, repeat=2, group=alone).samples[0]) if rank == 1 else None
"""
    assert two(code) == [None, 1]


def test_a_call_instead_of_a_function_is_told(two):
    assert "timed(lambda: dist.all_reduce(x))" in two.refused("timed(dist.all_reduce(torch.ones(1)))")


def test_what_cannot_be_repeated_is_told(two):
    assert "repeat and calls of 1 or more" in two.refused("timed(dist.barrier, repeat=0)")


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_comes_late_is_told_apart_from_the_transfer(two, late):
    code = f"""
import time
t = timed(lambda: dist.all_reduce(torch.ones(1)), repeat=3, before=lambda: time.sleep(0.5 * (rank == {late})))
t.calls, t.late[{late}] > 0.04, t.transfer < t.median - 0.03, "rank {late} came" in repr(t)
"""
    assert two(code) == [(1, True, True, True)] * 2


def test_timing_leaves_no_trace_in_the_record(lab):
    lab.run("x = torch.ones(1)\ndist.all_reduce(x)\nt = timed(dist.barrier, repeat=2)\ndist.broadcast(x, 0)")
    assert [[op.op for op in mine] for mine in lab.last.timeline().record.ops] == [["all_reduce", "broadcast"]] * 3


def test_two_question_marks_show_the_few_lines_that_measure(lab):
    (said,) = lab.run("timed??", ranks=0)
    lines = ANSI.sub("", said).splitlines()
    assert "            dist.barrier(group)" in lines
    measuring = lines[lines.index("    with recorder.paused():") :]
    assert len([line for line in measuring if line.startswith("    ")]) <= 12
