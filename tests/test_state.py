"""What has become of a lab's ranks: no step of healing hides that a rank may be in a cell still."""

from __future__ import annotations

from labkit.cluster.state import Condition, State


def test_ranks_that_join_are_well_and_those_in_a_cell_are_not_before_all_is_looked_at():
    state = State()
    state.joined()
    assert state.condition is Condition.WELL
    state.in_cell()
    state.parted()
    state.joined()
    assert state.condition is Condition.UNHEALED
    state.settled(apart=True)
    assert state.condition is Condition.APART
    state.parted()
    assert state.condition is Condition.PARTED
    state.stop()
    assert state.stopped


def test_a_rank_that_was_started_anew_is_fresh_until_all_have_joined_and_replaced_for_good():
    state = State(ended={1: "SIGKILL"})
    state.started_anew(1)
    assert (state.ended, state.fresh, state.replaced) == ({}, {1}, {1})
    state.joined()
    assert (state.fresh, state.replaced) == (set(), {1})


def test_ranks_that_are_left_have_new_numbers_and_what_was_known_of_them_stays():
    state = State(ended={1: "SIGKILL"}, replaced={0, 1, 3}, fresh={3})
    state.left_out([0, 2, 3])
    assert (state.ended, state.replaced, state.fresh) == ({}, {0, 2}, {2})
