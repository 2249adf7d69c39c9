"""A rank that asks again and again for a flag has a call in its record for as long as it asks."""

from __future__ import annotations

import pytest

from labkit.rank import cell_record, flags


@pytest.fixture(autouse=True)
def cell(monkeypatch):
    """The cell that runs on rank 2 of four; no wait is left from before."""
    cell = cell_record.Cell(on=True, rank=2)
    monkeypatch.setattr(cell_record, "current", cell)
    monkeypatch.setattr(flags, "_wait", None)
    monkeypatch.setattr(flags.dist, "get_world_size", lambda: 4)
    return cell


def test_a_wait_is_a_call_of_a_kind_of_its_own_that_names_the_rank(cell):
    flags.wait_begins(1)
    (op,) = cell.ops
    assert (op.op, op.kind, op.peer, op.rank) == ("a kernel for the flag of rank 1", "flag", 1, 2)
    assert op.ranks == (0, 1, 2, 3)
    assert op.left is None
    assert flags.waits_in() == "a kernel for the flag of rank 1"


def test_a_flag_of_ones_own_has_no_peer(cell):
    flags.wait_begins(None)
    assert (cell.ops[0].op, cell.ops[0].peer) == ("a kernel for its own flag", None)


def test_of_a_flag_that_has_come_nothing_is_left(cell):
    flags.wait_begins(1)
    flags.wait_ends()
    assert not cell.ops
    assert flags.waits_in() is None
    flags.wait_ends()


def test_a_wait_that_was_cut_off_stays_with_its_error(cell):
    flags.wait_begins(1)
    flags.wait_ends(KeyboardInterrupt())
    (op,) = cell.ops
    assert (op.error, op.left >= op.entered) == ("KeyboardInterrupt", True)
    assert flags.waits_in() is None, "this rank waits no more"


def test_who_waits_for_the_next_flag_no_longer_waits_for_the_one_before(cell):
    flags.wait_begins(1)
    flags.wait_begins(3)
    assert [op.peer for op in cell.ops] == [3]
    assert flags.waits_in() == "a kernel for the flag of rank 3"


def test_each_wait_is_counted_so_that_a_rank_that_goes_on_is_not_taken_for_one_that_stands_still():
    before = flags.waits()
    flags.wait_begins(1)
    flags.wait_ends()
    flags.wait_begins(1)
    assert flags.waits() == before + 2


def test_outside_a_cell_nothing_is_recorded(cell):
    cell.on = False
    flags.wait_begins(1)
    assert not cell.ops
    assert flags.waits_in() is None


def test_the_wait_of_a_cell_that_is_over_is_not_that_of_the_next(cell, monkeypatch):
    flags.wait_begins(1)
    monkeypatch.setattr(cell_record, "current", cell_record.Cell(on=True, rank=2))
    assert flags.waits_in() is None
    flags.wait_begins(3)
    assert [op.peer for op in cell_record.current.ops] == [3]
