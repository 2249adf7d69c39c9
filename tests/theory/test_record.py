"""Records of several ranks read as one: messages, waits and rounds, from calls written by hand."""

from __future__ import annotations

import pytest

from labkit.theory.record import read, rounds
from tests.recorded import Told, told


def waits(record):
    return [(w.op.rank, w.for_, round(w.seconds * 1e3, 3), w.kind) for w in record.waits]


def steps(record):
    found = rounds(record)
    return [[(m.src, m.dst) for i, m in enumerate(record.messages) if found[i] == k] for k in sorted({*found.values()})]


def ring(n, times=1):
    ranks = [Told(n) for _ in range(n)]
    for _ in range(times):
        for r, t in enumerate(ranks):
            t._call("isend", "send", 0, 1, peer=(r + 1) % n, asynchronous=True, done=t.clock + 3)
            t.recv((r - 1) % n)
            t.clock += 2
    return read(told(*ranks))


def test_sends_meet_receives_in_their_order_under_one_tag():
    a = Told(2).send(1, 0, line=1).send(1, 1, line=2, tag=7).send(1, 2, line=3)
    b = Told(2).recv(0, 0, line=1, tag=7).recv(0, 1, line=2).recv(0, 2, line=3)
    met = [(m.send.line, m.recv.line) for m in read(told(a, b)).messages]
    assert met == [(1, 2), (2, 1), (3, 3)]


def test_a_send_that_nobody_takes_and_a_receive_that_nobody_serves_stay_alone():
    record = read(told(Told(2).send(1), Told(2).recv(0, tag=1)))
    assert [(m.send is None, m.recv is None) for m in record.messages] == [(False, True), (True, False)]


def test_everyone_waits_in_an_all_reduce_for_the_last():
    record = read(told(*(Told(3).meet("all_reduce", start, 21) for start in (0, 20, 5))))
    assert waits(record) == [(0, 1, 20, "waited"), (2, 1, 15, "waited")]


def test_a_broadcast_waits_for_its_root_alone():
    late_leaf = [Told(3).meet("broadcast", s, e, peer=0) for s, e in ((0, 1), (2, 3), (20, 21))]
    assert waits(read(told(*late_leaf))) == []
    late_root = [Told(3).meet("broadcast", s, e, peer=0) for s, e in ((20, 21), (0, 22), (5, 22))]
    assert waits(read(told(*late_root))) == [(1, 0, 20, "waited"), (2, 0, 15, "waited")]


def test_a_rank_that_needs_nothing_and_leaves_only_after_a_late_one_stays():
    ranks = [Told(3).meet("broadcast", s, e, peer=0) for s, e in ((0, 1), (2, 21), (20, 22))]
    assert waits(read(told(*ranks))) == [(1, 2, 18, "stayed")]


def test_the_root_of_a_gather_waits_and_its_senders_do_not():
    ranks = [Told(3).meet("gather", s, e, peer=1) for s, e in ((0, 1), (0, 21), (20, 21))]
    assert waits(read(told(*ranks))) == [(1, 2, 20, "waited")]


def test_who_has_left_before_another_came_has_not_waited_for_it():
    assert waits(read(told(Told(2).meet("all_reduce", 0, 5), Told(2).meet("all_reduce", 9, 12)))) == []


def test_waiting_for_a_rank_that_never_comes_ends_with_the_call():
    record = read(told(Told(2).meet("all_reduce", 0, 30, error="RuntimeError"), Told(2)))
    assert waits(record) == [(0, 1, 30, "never")]
    record = read(told(Told(2).recv(1, 0, 30, error="RuntimeError"), Told(2)))
    assert waits(record) == [(0, 1, 30, "never")]


def test_an_asynchronous_call_waits_where_it_is_waited_for():
    a = Told(2).recv(1, 0, 1, asynchronous=True, waited=(0.002, 0.012, 5))
    assert waits(read(told(a, Told(2).send(0, 10, 12)))) == [(0, 1, 8, "waited")]
    never = Told(2).recv(1, 0, 1, asynchronous=True, done=None)
    assert waits(read(told(never, Told(2).send(0, 10, 12)))) == []


def test_collectives_of_a_sub_group_are_counted_on_their_own():
    a = Told(3).meet("all_reduce", 0, ranks=[0, 2]).meet("barrier", 1)
    b = Told(3).meet("barrier", 1)
    c = Told(3).meet("all_reduce", 0, ranks=[0, 2]).meet("barrier", 1)
    assert [(m.ranks, len(m.ops), m.names) for m in read(told(a, b, c)).meetings] == [
        ((0, 2), 2, ["all_reduce"]),
        ((0, 1, 2), 3, ["barrier"]),
    ]


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_a_ring_shift_is_one_round(n):
    assert steps(ring(n)) == [[(r, (r + 1) % n) for r in range(n)]]


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_ring_all_reduce_takes_two_times_n_minus_one_rounds(n):
    assert len(steps(ring(n, 2 * (n - 1)))) == 2 * (n - 1)


def test_a_root_that_receives_one_after_another_takes_a_round_for_each():
    root = Told(4).recv(1).recv(2).recv(3)
    assert steps(read(told(root, *(Told(4).send(0) for _ in range(3))))) == [[(1, 0)], [(2, 0)], [(3, 0)]]


def test_order_counts_and_not_the_clock():
    late = read(told(Told(4).send(1, 0), Told(4).recv(0, 0), Told(4).send(3, 900), Told(4).recv(2, 900)))
    assert steps(late) == [[(0, 1), (2, 3)]]


def test_what_comes_after_a_barrier_comes_in_a_later_round():
    a = Told(4).send(1).meet("barrier")
    b = Told(4).recv(0).meet("barrier")
    c = Told(4).meet("barrier").send(3)
    d = Told(4).meet("barrier").recv(2)
    assert steps(read(told(a, b, c, d))) == [[(0, 1)], [(2, 3)]]


def test_ranks_that_call_in_a_circle_end_the_search():
    a = Told(2).meet("barrier", ranks=[0]).send(1).recv(1)
    b = Told(2).send(0).recv(0)
    assert len(rounds(read(told(a, b)))) == 2


def test_a_thousand_messages_in_a_row_are_a_thousand_rounds():
    a, b = Told(2), Told(2)
    for i in range(500):
        (a.send(1), b.recv(0)) if i % 2 else (b.send(0), a.recv(1))
    assert len(steps(read(told(a, b)))) == 500


def test_times_of_several_hosts_come_with_a_warning():
    record = read(told(Told(2, "a").meet("barrier"), Told(2, "b").meet("barrier")))
    assert "hosts' own clocks" in record.notes[0]
    assert read(told(Told(2).meet("barrier"), Told(2).meet("barrier"))).notes == ()


def test_times_of_several_hosts_are_compared_by_their_walls_and_those_of_one_are_not():
    here, same, there = (
        Told(3).meet("barrier", 1_000),
        Told(3).meet("barrier", 2_000),
        Told(3, "b").meet("barrier", 500),
    )
    here.log.clock, same.log.clock, there.log.clock = ("a", 100.0), ("a", 3700.0), ("b", 103.0)
    assert [ops[0].entered for ops in read(told(here, same, there)).ops] == [0.0, 1.0, 2.5]


def test_a_rank_that_does_not_answer_is_named_and_one_that_had_no_part_is_not():
    assert read([Told(2).meet("barrier")(), None]).notes == ("no record of rank 1",)
    assert read([Told(2).meet("barrier")(), {}]).notes == ()
