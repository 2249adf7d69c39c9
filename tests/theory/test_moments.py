"""What all ranks do at one moment, from records written by hand."""

from __future__ import annotations

from labkit.theory.moments import Moments
from labkit.theory.record import Held, read
from tests.recorded import Told, told


def moments(*ranks, **more):
    return Moments(read(told(*ranks)), **more)


def happened(found):
    return [(e.rank, e.what) for e in found.events]


def x(before, after=None):
    return [Held("x", (1,), [before], None if after is None else [after])]


def two(**more):
    """Rank 1 comes later to an all-reduce that both leave."""
    return moments(
        Told(2).meet("all_reduce", 0, 30, held=x(1.0, 3.0)),
        Told(2).meet("all_reduce", 20, 40, held=x(2.0, 3.0)),
        **more,
    )


def test_moments_are_in_the_order_of_their_times_whatever_the_rank():
    assert happened(two()) == [(-1, "begins"), (0, "calls"), (1, "calls"), (0, "leaves"), (1, "leaves")]


def test_a_tensor_changes_when_the_operation_ends_and_says_what_it_was():
    found = two()
    seen = [[(v.values, v.was, v.open) for v in found.values(k, 0)] for k in range(5)]
    assert seen == [
        [],
        [([1.0], None, True)],
        [([1.0], None, True)],
        [([3.0], [1.0], False)],
        [([3.0], [1.0], False)],
    ]


def test_a_rank_waits_for_those_that_have_not_come_yet_and_not_for_those_that_have():
    found = two()
    assert [found.doing(k, 0).whom for k in range(5)] == [(), (1,), (), (), ()]
    assert [found.doing(k, 1).whom for k in range(5)] == [()] * 5
    assert [found.doing(k, 0).done for k in range(5)] == [0, 0, 0, 1, 1]


def test_who_sends_waits_for_its_receiver_and_a_root_s_data_is_needed_but_nobody_s_else():
    found = moments(Told(2).send(1, 0, 30), Told(2).recv(0, 20, 30))
    assert [found.doing(k, 0).whom for k in (1, 2)] == [(1,), ()]
    found = moments(
        Told(3).meet("broadcast", 0, 1, peer=0), Told(3).meet("broadcast", 10, 40, peer=0), Told(3).span("f", 0, 50)
    )
    assert found.doing(3, 1).whom == ()
    assert found.doing(3, 2).spans == ("f",)


def test_an_asynchronous_operation_is_under_way_until_its_wait_has_ended():
    found = moments(Told(1).start("all_reduce", 0, None, waits=(10, 20)))
    assert happened(found) == [(-1, "begins"), (0, "calls"), (0, "waits"), (0, "leaves")]
    doing = [found.doing(k, 0) for k in range(4)]
    assert [d.op is not None for d in doing] == [False, False, True, False]
    assert [len(d.under_way) for d in doing] == [0, 1, 0, 0]
    assert found.places(found.record.ops[0][0]) == (1, 2, 3)


def test_a_rank_that_the_lab_freed_stays_where_it_stood():
    hung = Told(2).meet("all_reduce", 0, 90, error="RuntimeError")
    hung.log.ended = 0.1
    found = moments(hung, Told(2), freed={0})
    assert happened(found)[-1] == (0, "calls")
    assert found.doing(1, 0).whom == (1,)
    failed = moments(hung, Told(2))
    assert happened(failed)[-2:] == [(0, "fails"), (0, "ends")]
    assert failed.doing(3, 0).over


def test_too_many_moments_are_counted_and_the_last_ones_kept():
    found = two(most=2)
    assert happened(found) == [(0, "leaves"), (1, "leaves")]
    assert found.left_out == 3
    assert [v.values for v in found.values(0, 1)] == [[2.0]]
    assert found.places(found.record.ops[0][0]) == (-2, -2, 0)


def test_what_happens_before_the_first_call_comes_after_moment_0():
    early = Told(2)
    early.log.ended = -0.01
    assert happened(moments(Told(2).meet("barrier", 0, 1), early))[:2] == [(-1, "begins"), (1, "ends")]
