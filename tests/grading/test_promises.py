"""What cards promise of the calls, held against records written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.grading import judge, run_cost
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Budget, Exercise
from labkit.grading.inputs import Case
from labkit.grading.limits import remarks, unheard
from labkit.grading.promises import Calls, Messages, Once, OnlyTo
from labkit.outcome.outcome import Outcome, RankOutcome
from labkit.theory.record import read
from tests.recorded import Told, told
from workbook.lesson03_roots import Root
from workbook.lesson06_puzzles import InSteps
from workbook.lesson08 import Travels
from workbook.lesson14b import SameGroups


def record(*ranks):
    return read(told(*ranks))


def ring(n, step):
    return record(*(Told(n).send((r + step) % n, line=5).recv((r - step) % n) for r in range(n)))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_ring_to_the_next_rank_keeps_its_direction(n):
    assert OnlyTo(+1).broken(ring(n, 1)) == ""


def test_a_ring_to_the_left_breaks_its_direction_and_the_line_is_named():
    says = OnlyTo(+1).broken(ring(3, -1))
    assert says == "Rank 0 sends to rank 2 (line 5), and may only send to the next rank."
    assert OnlyTo(-1).broken(ring(3, -1)) == ""


def test_the_next_rank_is_the_groups_next():
    pair = record(Told(4), Told(4).send(3, ranks=[1, 3]), Told(4), Told(4).send(1, ranks=[1, 3]))
    assert OnlyTo(+1).broken(pair) == ""


def test_more_messages_than_promised_are_counted_with_their_lines():
    two = record(Told(2).send(1, line=4).send(1, line=5), Told(2).recv(0).recv(0))
    assert Messages(1).broken(two) == "Rank 0 sends 2 messages (line 4; line 5), and 1 is enough."
    assert Messages(lambda n: n).broken(two) == ""


def test_a_rank_that_sends_fewer_pieces_than_asked_for_is_named_and_one_that_sends_none_is_not():
    one = record(Told(2).send(1, line=4), Told(2).recv(0))
    assert Messages(4, least=4).broken(one) == "Rank 0 sends 1 message (line 4), and 4 are asked for."
    assert Messages(4, least=1).broken(one) == ""


@pytest.mark.parametrize("step", [-1, 1])
def test_a_ring_that_may_turn_both_ways_goes_to_neighbours_only(step):
    assert OnlyTo(+1, -1).broken(ring(4, step)) == ""
    says = OnlyTo(+1, -1).broken(ring(4, 2))
    assert says == "Rank 0 sends to rank 2 (line 5), and may only send to the next rank or the rank before it."


def test_steps_that_follow_one_another_are_counted_and_messages_at_once_are_one():
    def both_ways(r, at_once):
        rank, done = Told(4), {"done": 90.0} if at_once else {}
        for way in (1, -1):
            rank.send((r + way) % 4, asynchronous=True, **done).recv((r - way) % 4, **done)
        return rank

    most = InSteps(lambda n: 1)
    assert most.broken(record(*(both_ways(r, True) for r in range(4)))) == ""
    says = most.broken(record(*(both_ways(r, False) for r in range(4))))
    assert says.endswith(" steps follow one another, and 1 is enough.")


def test_two_calls_for_one_are_counted():
    two = record(*(Told(2).meet("all_reduce", line=3).meet("comms.all_gather", line=4) for _ in range(2)))
    says = "Rank 0 makes 2 calls that communicate, dist.all_reduce and comms.all_gather (line 3; line 4), and 1 is "
    assert Calls(1).broken(two) == says + "enough."
    assert Calls(2).broken(two) == ""


def test_only_what_the_card_names_may_be_called_and_once():
    both = Once(("reduce", "broadcast"))
    right = [Told(2).meet("reduce", peer=0).meet("broadcast", peer=0) for _ in range(2)]
    assert both.broken(record(*right)) == ""
    assert both.broken(record(*(t.meet("reduce", peer=1) for t in right))).startswith("Rank 0 calls dist.reduce 2")
    other = record(*(Told(2).meet("funcol.all_reduce", line=7) for _ in range(2)))
    assert both.broken(other) == "Rank 0 calls funcol.all_reduce (line 7); reduce and broadcast do it, called once."


def test_all_ranks_make_the_same_groups():
    ranks = [Told(3) for _ in range(3)]
    for rank in ranks:
        rank.log.made.append((1, 2))
    assert SameGroups().broken(record(*ranks)) == ""
    ranks[0].log.made.clear()
    says = "Every rank makes all groups, in the same order, even those that it is not in."
    assert SameGroups().broken(record(*ranks)) == f"Rank 0 makes no group, and rank 2 a group of ranks 1, 2. {says}"
    ranks[0].log.made += [(0, 1), (1, 2)]
    twice = "Rank 0 makes a group of ranks 0, 1 and then a group of ranks 1, 2, and rank 2 a group of ranks 1, 2."
    assert SameGroups().broken(record(*ranks)) == f"{twice} {says}"


def test_a_collective_has_the_promised_root():
    to_one = record(*(Told(2).meet("all_reduce").meet("reduce", peer=1, line=6) for _ in range(2)))
    says = "Rank 0 calls dist.reduce with rank 1 as the root (line 6), and rank 0 is asked for."
    assert Root(0).broken(to_one) == says
    assert Root(1).broken(to_one) == ""
    assert Root(1).broken(ring(2, 1)) == ""  # a message's peer is not a root


def test_what_travels_has_the_promised_dtype():
    sums = record(*(Told(2).meet("all_reduce", dtype="float32", line=4) for _ in range(2)))
    says = "Rank 0 brings float32 to dist.all_reduce (line 4), and float64 is asked for."
    assert Travels("float64").broken(sums) == says
    assert Travels("float32").broken(sums) == ""
    assert Travels("float64").broken(record(Told(2).meet("barrier", dtype=None), Told(2))) == ""


# -- in a check ---------------------------------------------------------------------------------------------------


def limits(ranks, size=1000, case=None, **more):
    """What a check remarks of a right run on these ranks, each with `size` float32 numbers."""
    exercise = Exercise("f", lambda xs: xs, **more)
    answers = [{"dtype": "float32", "record": log} for log in told(*ranks)]
    ran = Attempt(Outcome([RankOutcome(r, answer=answer) for r, answer in enumerate(answers)]))
    case = case or Case([np.zeros(size, dtype="float32")] * len(ranks))
    return [(f.state, f.says[0]) for f in remarks(exercise, case, ran)]


def test_what_was_started_must_have_been_waited_for_by_whatever_means():
    def started(**how):
        return [Told(2).meet("all_reduce", line=3, asynchronous=True, **how) for _ in range(2)]

    ((state, says),) = limits(started())
    assert state == "not as asked"
    assert says.startswith("Ranks 0, 1 started all_reduce (line 3) and never waited for it (with 2 ranks).")
    assert limits(started(waited=(0.1, 0.2, 4))) == []
    assert limits(started(asked=True)) == [], "its future was asked for, or whether it is completed"


@pytest.mark.parametrize(
    ("ranks", "means", "deaf"),
    [
        ([Told(2), Told(2)], lambda xs: [sum(xs)] * 2, "Ranks 0, 1 end"),
        ([Told(2).send(1), Told(2).recv(0)], lambda xs: [sum(xs)] * 2, "Rank 0 ends"),
        ([Told(2).meet("barrier"), Told(2).meet("barrier")], lambda xs: [sum(xs)] * 2, "Ranks 0, 1 end"),
        ([Told(2).send(1), Told(2).recv(0)], lambda xs: [xs[0], sum(xs)], ""),
        ([Told(2).meet("all_reduce"), Told(2).meet("all_reduce")], lambda xs: [sum(xs)] * 2, ""),
        ([Told(2), Told(2)], lambda xs: [2 * x for x in xs], ""),
        ([Told(2), Told(2)], lambda xs: [judge.NOTHING, None], ""),
    ],
)
def test_who_ends_with_other_ranks_numbers_has_received_a_message(ranks, means, deaf):
    case = Case([np.ones(3, dtype="float32"), np.arange(3, dtype="float32")])
    answers = [{"record": log} for log in told(*ranks)]
    ran = Attempt(Outcome([RankOutcome(r, answer=answer) for r, answer in enumerate(answers)]))

    def said(**more):
        exercise = Exercise("f", means, **more)
        return [(f.state, f.says[0]) for f in unheard(exercise, case, ran, means(case.xs))]

    found = said()
    assert [state for state, _ in found] == ["not as asked"] * bool(deaf)
    assert all(says.startswith(deaf) and "Where did the others' numbers come from?" in says for _, says in found)
    assert said(needs_messages=False) == []


@pytest.mark.parametrize(
    "call", ["all_reduce", "comms.all_reduce", "funcol.all_reduce", "ProcessGroup.all_reduce", "all_reduce_coalesced"]
)
def test_what_is_forbidden_is_seen_by_whatever_name_it_is_called(call):
    ranks = [Told(2).meet(call, line=3) for _ in range(2)]
    ((state, says),) = limits(ranks, forbids=("all_reduce",))
    assert state == "forbidden"
    assert says == f"It calls {call if '.' in call else 'dist.' + call} (line 3)."
    assert limits(ranks, forbids=("collectives",)) == [(state, says)]
    assert limits(ranks, forbids=("reduce", "send")) == []


def test_a_forbidden_send_is_one_of_objects_too():
    ranks = [Told(2).send(1), Told(2).recv(0)]
    ranks[0].log.ops[0].op, ranks[1].log.ops[0].op = "send_object_list", "recv_object_list"
    assert limits(ranks, forbids=("send",)) == [("forbidden", "It calls dist.send_object_list (line 2).")]


def test_objects_count_within_a_byte_budget():
    ranks = [Told(2).meet("all_gather_object", bytes=4000) for _ in range(2)]
    ((state, says),) = limits(ranks, budget=Budget(sent=lambda n, S: 0.75 * S))
    assert state == "costly"
    assert "sends 1.0 S, and 0.75 S is possible (with 2 ranks; S: the 4000 bytes of a rank's input)" in says
    assert says.endswith("Counted by its calls: the bytes on the wire cannot be counted here.")


def test_the_wire_counts_where_it_is_counted():
    ranks = [Told(2).meet("reduce_scatter", bytes=4000) for _ in range(2)]
    for rank in ranks:
        rank.log.sent = 4000 + 4 * run_cost.AROUND
    budget = Budget(sent=lambda n, S: (n - 1) / n * S)
    ((state, says),) = limits(ranks, budget=budget)
    assert state == "costly"
    assert "sends 1.0 S, and 0.5 S is possible" in says
    assert says.endswith("That is counted on the wire; by the textbook its calls take 0.5 S.")
    for rank in ranks:
        rank.log.sent = 2000 + 4 * run_cost.AROUND
    assert limits(ranks, budget=budget) == []


def test_a_promise_broken_in_a_check_names_the_input():
    ranks = [Told(2).send(1, line=4).send(1, line=5), Told(2).recv(0).recv(0)]
    assert limits(ranks, promises=(Messages(1),)) == [
        ("not as asked", "Rank 0 sends 2 messages (line 4; line 5), and 1 is enough (with 2 ranks).")
    ]


def crossing(*pairs):
    """Messages of 400 bytes between four ranks."""
    ranks = [Told(4) for _ in range(4)]
    for src, dst in pairs:
        ranks[src].send(dst, bytes=400)
        ranks[dst].recv(src, bytes=400)
    return ranks


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([(0, 2), (2, 0), (0, 1), (1, 0)], ""),
        ([(0, 2), (1, 3)], "2.0 S go from one host to the other, and 1.0 S is possible"),
        ([(0, 1), (0, 1), (0, 1)], ""),
    ],
)
def test_bytes_between_hosts_are_counted_each_way_and_those_inside_are_not(pairs, says):
    case = Case([np.zeros(100, dtype="float32")] * 4, "", {"hosts": [[0, 1], [2, 3]]})
    found = limits(crossing(*pairs), case=case, budget=Budget(link=lambda n, S: S))
    assert [sentence.startswith(says) for _, sentence in found] == [True] * bool(says)


def test_without_hosts_every_pair_of_ranks_has_a_link_of_its_own():
    case = Case([np.zeros(100, dtype="float32")] * 4)
    budget = Budget(link=lambda n, S: S)
    assert limits(crossing((0, 1), (0, 2), (0, 3)), case=case, budget=budget) == []
    ((state, says),) = limits(crossing((0, 1), (0, 1)), case=case, budget=budget)
    assert state == "costly"
    assert says.startswith("2.0 S go from rank 0 to rank 1, and 1.0 S is possible")
