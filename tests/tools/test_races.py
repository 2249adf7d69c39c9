"""What orders two accesses to one number, what does not, and how a race is told, of events that are given here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbook.tools.kernels.races import MOST, RULES, races, told

ONE, OTHER = (0, 0, 0), (1, 0, 0)  # two programs of a kernel
HOST = ()


def row(what: str, owner: int, *more, line: int = 1, at: int = 0, size: int = 1, program=ONE) -> list:
    """An event as a rank tells it: of one number, or flag, from place `at` on."""
    return [what, owner, at, at + size, program, ("kernel", line), *more]


def store(owner: int, **where) -> list:
    return row("store", owner, **where)


def load(owner: int, **where) -> list:
    return row("load", owner, **where)


def sets(owner: int, ticket: int, sem: str = "release", scope: str = "sys", **where) -> list:
    """An atomic operation on a flag in `owner`'s memory, the `ticket`-th of all ranks."""
    return row("atomic", owner, ticket, sem, scope, **where)


def waits(owner: int, ticket: int, sem: str = "acquire", scope: str = "sys", **where) -> list:
    return sets(owner, ticket, sem, scope, **where)


def barrier(rank: int, program=ONE) -> list:
    return row("barrier", rank, program=program)


def launch(rank: int) -> list:
    return row("launch", rank, program=HOST)


def over(rank: int) -> list:
    return row("over", rank, program=HOST)


def meeting(nth: int = 0, group: str = "0") -> list:
    """A collective call, the group's `nth`, that no rank of it leaves before all have come."""
    return ["meeting", 0, nth, nth, HOST, ("", 0), 0, group]


WRITES = [store(0, line=2), barrier(0), sets(1, 1)]
READS = [waits(1, 2), load(0, line=5)]


def test_nothing_orders_two_ranks_that_set_no_flag():
    (race,) = races([[store(0, line=2)], [load(0, line=5)]])
    assert str(race) == (
        "rank 0 writes number 0 of its own buffer (line 2 of kernel), and rank 1 reads number 0 of rank 0's buffer "
        "(line 5 of kernel): no flag orders the two"
    )


@pytest.mark.parametrize("sem", ["release", "acq_rel"])
@pytest.mark.parametrize("other", ["acquire", "acq_rel"])
@pytest.mark.parametrize("scope", ["sys", "system"])
def test_a_flag_that_is_released_and_acquired_orders_what_is_before_it_and_behind_it(sem, other, scope):
    assert races([[*WRITES[:2], sets(1, 1, sem, scope)], [waits(1, 2, other, scope), READS[1]]]) == []


@pytest.mark.parametrize(
    ("zero", "one", "rule"),
    [
        ([*WRITES[:2], sets(1, 1, "relaxed")], READS, "sem"),
        ([*WRITES[:2], sets(1, 1, "acquire")], READS, "sem"),
        (WRITES, [waits(1, 2, "relaxed"), READS[1]], "sem"),
        (WRITES, [waits(1, 2, "release"), READS[1]], "sem"),
        ([*WRITES[:2], sets(1, 1, scope="gpu")], READS, "scope"),
        (WRITES, [waits(1, 2, scope="cta"), READS[1]], "scope"),
        ([WRITES[0], WRITES[2]], READS, "fence"),
        ([WRITES[1], WRITES[0], WRITES[2]], READS, "fence"),
    ],
    ids=[
        *("set relaxed", "set with acquire", "waited for relaxed", "waited for with release", "set for one GPU"),
        *("waited for in one block", "no barrier", "the barrier too early"),
    ],
)
def test_a_flag_that_orders_too_little_leaves_a_race_and_the_rule_is_named(zero, one, rule):
    race, said = told([zero, one])
    assert "no flag orders the two" in race
    assert said == RULES[rule]


def test_where_several_rules_are_broken_one_is_named_and_said_not_to_be_enough():
    race, rule, more = told([[WRITES[0], sets(1, 1, "relaxed", "gpu")], READS])
    assert "no flag orders the two" in race
    assert rule in RULES.values()
    assert "alone is not enough" in more


def test_no_rule_is_named_where_no_rule_would_help():
    assert len(told([[*WRITES[1:], WRITES[0]], READS])) == 1, "the flag is set before the number is written"


def test_a_flag_orders_nothing_that_comes_before_it_is_waited_for():
    assert len(races([WRITES, [READS[1], READS[0]]])) == 1


def test_order_goes_on_from_rank_to_rank():
    passes_on = [waits(1, 2), barrier(1), sets(2, 3)]
    assert races([WRITES, passes_on, [waits(2, 4), load(0)]]) == []


def test_another_flag_orders_nothing():
    assert len(races([WRITES, [waits(1, 2, at=3), READS[1]]])) == 1
    assert len(races([WRITES, [waits(0, 2), READS[1]]])) == 1


def test_the_tickets_say_who_came_first():
    """Both ranks release and acquire the same flag; only the second one of them has heard of the other."""
    both = [waits(1, 1, "acq_rel"), load(0, line=5)]
    assert len(races([[*WRITES[:2], sets(1, 2, "acq_rel")], both])) == 1
    assert races([[*WRITES[:2], sets(1, 0, "acq_rel")], both]) == []


def test_two_reads_are_no_race_and_neither_are_other_numbers():
    assert races([[load(0)], [load(0)], [load(0)]]) == []
    assert races([[store(0, size=4)], [load(0, at=4)], [store(1)]]) == []
    assert len(races([[store(0, size=4)], [load(0, at=3, size=2)]])) == 1


def test_numbers_and_flags_of_the_same_place_are_apart():
    assert races([[store(1)], [waits(1, 1)]]) == []


def test_two_programs_of_one_rank_are_two_threads():
    assert len(races([[store(0, program=ONE), load(0, program=OTHER)]])) == 1
    assert races([[store(0, program=ONE), load(0, program=ONE)]]) == []
    set_between = [store(0), barrier(0), sets(0, 1), waits(0, 2, program=OTHER), load(0, program=OTHER)]
    assert races([set_between]) == []


def test_a_barrier_speaks_for_its_own_program_alone():
    assert len(races([[store(0), barrier(0, OTHER), sets(1, 1)], READS])) == 1


def test_a_kernel_comes_behind_what_its_rank_did_before_it_and_before_what_it_does_next():
    fill = row("fill", 0, program=HOST)
    writes, reads = store(0, program=ONE), load(0, program=OTHER)
    assert races([[fill, launch(0), writes, over(0), launch(0), reads, over(0), fill]]) == []


def test_a_launch_orders_nothing_on_another_rank():
    writes = [launch(0), store(0, line=2), over(0)]
    reads = [launch(1), load(0, line=5), over(1)]
    assert len(races([writes, reads])) == 1
    assert len(races([[row("fill", 0, program=HOST), launch(0), over(0)], reads])) == 1


def test_a_collective_orders_the_kernels_before_it_and_behind_it_on_the_ranks_that_take_part():
    writes = [launch(0), store(0, line=2), over(0)]
    reads = [launch(1), load(0, line=5), over(1)]
    assert races([[*writes, meeting()], [meeting(), *reads]]) == []
    assert races([[*writes, meeting(), meeting(1)], [meeting(), meeting(1), *reads]]) == []
    assert len(races([[*writes, meeting()], [*reads, meeting()]])) == 1
    assert len(races([[meeting(), *writes], [meeting(), *reads]])) == 1
    assert len(races([[*writes, meeting()], reads, [meeting()]])) == 1, "rank 1 takes no part"


def test_calls_of_two_groups_in_different_orders_order_what_they_can():
    one, other = [meeting(0, "1"), meeting(0, "2")], [meeting(0, "2"), meeting(0, "1")]
    assert races([one, other]) == []
    writes = [launch(0), store(0, line=2), over(0), meeting(0, "1")]
    assert races([writes, [meeting(0, "2"), meeting(0, "1"), launch(1), load(0), over(1)], [meeting(0, "2")]]) == []


def test_two_launches_are_told_apart_by_their_numbers():
    again = [launch(0), store(0, line=2), over(0), launch(0), store(0, line=2), over(0)]
    reads = [launch(1), *READS, over(1)]
    first = [launch(0), *WRITES, over(0)]
    (said,) = told([first + again, reads])
    assert "(in launch 1, line 5 of kernel)" in said
    assert "(in launch 2, line 2 of kernel)" in said or "(in launch 3, line 2 of kernel)" in said


def test_what_a_flag_told_one_kernel_the_next_one_of_that_rank_knows():
    reads = [launch(1), waits(1, 2), over(1), launch(1), load(0, program=OTHER), over(1)]
    assert races([[launch(0), *WRITES, over(0)], reads]) == []


def test_a_release_in_the_next_kernel_speaks_for_the_one_before():
    writes = [launch(0), WRITES[0], over(0), launch(0), barrier(0, OTHER), sets(1, 1, program=OTHER), over(0)]
    assert races([writes, READS]) == []


def test_a_slot_that_is_emptied_before_it_is_read_is_a_race_though_the_flag_is_as_it_was():
    """The flag is 1, 0 and 1 again: rank 0 takes the 0 for "has been read"."""
    fills_twice = [
        *(waits(1, 1), store(1, line=2), barrier(0), sets(1, 2)),
        *(waits(1, 4), store(1, line=2), barrier(0), sets(1, 6)),
    ]
    too_early = [waits(1, 3, "acq_rel"), load(1, line=5), waits(1, 7, "acq_rel"), load(1, line=5)]
    (race,) = races([fills_twice, too_early])
    assert {race.one.what, race.other.what} == {"load", "store"}
    when_read = [
        *(waits(1, 3), load(1, line=5), barrier(1), sets(1, 4)),
        *(waits(1, 7), load(1, line=5), barrier(1), sets(1, 8)),
    ]
    fills_twice[4] = waits(1, 5)
    assert races([fills_twice, when_read]) == []


def test_a_plain_load_or_store_of_a_flag_races_with_who_sets_it():
    asks = row("load flag", 1, line=5)
    assert told([WRITES, [asks]]) == [
        "rank 1 reads, with tl.load, flag 0 in its own memory (line 5 of kernel), and rank 0 sets flag 0 in rank 1's "
        "memory (line 1 of kernel): no flag orders the two"
    ]
    assert len(races([WRITES, [row("store flag", 1)]])) == 1
    assert races([[asks], [asks]]) == []


def test_additions_do_not_disturb_one_another_but_whoever_reads_meanwhile():
    adds = row("accumulate", 0, 1, "relaxed", "sys")
    assert races([[adds], [adds], [adds]]) == []
    assert len(races([[adds], [load(0)]])) == 1


def test_a_race_is_told_once_however_many_numbers_and_rounds_it_has():
    assert len(races([[store(0, size=100)], [load(0, size=100)]])) == 1
    assert len(told([[store(0, at=i) for i in range(50)], [load(0, at=i) for i in range(50)]])) == 1


def test_of_many_races_the_first_are_told_and_the_others_counted():
    writes = [store(0, at=i, line=i) for i in range(MOST + 2)]
    said = told([writes, [load(0, size=MOST + 2, line=99)]])
    assert len(said) == MOST + 1
    assert said[-1] == "and 2 more races like these"


def test_nothing_is_told_of_no_races():
    assert told([WRITES, READS]) == []
    assert told([[], []]) == []


SECTIONS = st.lists(
    st.tuples(
        st.integers(0, 2),  # whose turn it is
        st.sampled_from([ONE, OTHER]),
        st.booleans(),  # whether it writes
        st.integers(0, 1),  # which number
        st.booleans(),  # whether all its threads come to a barrier then
        st.sampled_from([("release", "sys"), ("relaxed", "sys"), ("release", "gpu")]),
    ),
    max_size=9,
)


@given(SECTIONS)
def test_under_a_lock_there_is_a_race_exactly_where_its_holder_had_not_released_what_it_did(sections):
    """In any order of turns. Who has released once, behind a barrier, has released all that it did before."""
    events: list[list] = [[], [], []]
    for k, (rank, program, writes, place, fence, how) in enumerate(sections):
        events[rank] += [waits(0, 2 * k + 1, line=k, program=program)]
        events[rank] += [row("store" if writes else "load", 1, line=k, at=place, program=program)]
        events[rank] += [barrier(rank, program)] * fence
        events[rank] += [sets(0, 2 * k + 2, *how, line=k, program=program)]

    def heard(i: int, j: int) -> bool:
        its = [k for k in range(i, j) if sections[k][:2] == sections[i][:2]]
        fenced = min([k for k in its if sections[k][4]], default=j)
        return any(k >= fenced and sections[k][5] == ("release", "sys") for k in its)

    expected = any(
        one[:2] != other[:2] and one[3] == other[3] and (one[2] or other[2]) and not heard(i, j)
        for j, other in enumerate(sections)
        for i, one in enumerate(sections[:j])
    )
    assert bool(races(events)) == expected


@given(st.data(), st.integers(2, 4), st.integers(1, 3))
def test_a_program_that_meets_around_each_reading_has_no_race_in_any_interleaving(data, n, rounds):
    """The lesson's barrier, its flags set and taken down in any order that the flags themselves allow."""
    todo = [_meets_and_reads(r, n, rounds) for r in range(n)]
    flags, events, ticket = {}, [[] for _ in range(n)], 0
    while any(todo):
        ready = [r for r in range(n) if todo[r] and _may_go(todo[r][0], flags)]
        r = data.draw(st.sampled_from(ready))  # there is one: no interleaving hangs
        what, *rest = todo[r].pop(0)
        if what != "cas":
            events[r].append(row(what, *rest))
            continue
        owner, by, _, new, sem = rest
        flags[owner, by], ticket = new, ticket + 1
        events[r].append(sets(owner, ticket, sem, at=by))
    assert races(events) == []


def _meets_and_reads(r: int, n: int, rounds: int) -> list[tuple]:
    meet = [("barrier", r)]
    meet += [("cas", other, r, 0, 1, "release") for other in range(n)]
    meet += [("cas", r, other, 1, 0, "acquire") for other in range(n)]
    return [("store", r), *meet, *(("load", other) for other in range(n)), *meet] * rounds


def _may_go(step: tuple, flags: dict) -> bool:
    return step[0] != "cas" or flags.get((step[1], step[2]), 0) == step[3]
