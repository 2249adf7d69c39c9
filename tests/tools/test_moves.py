"""What `lab.moves` says and draws of moves between windows that are given here."""

from __future__ import annotations

import pytest

from labkit import LabError
from workbook.tools.windows import Moves


def rank(now, *moves, size=None, handed=0, made=None):
    """What one rank tells; a move is (what, of, at, numbers, before, when, fences)."""
    rows = [[w, of, at, len(x), x, before, when, when + 0.5, fences] for w, of, at, x, before, when, fences in moves]
    made = len(rows) if made is None else made
    return {"moves": rows, "made": made, "size": size or len(now), "now": now, "handed": handed}


PUT_ADD_GET = [
    rank([7.0, 5.0]),
    rank([0.0, 0.0], ("put", 0, 0, [7.0], [0.0], 1, 0), ("accumulate", 0, 1, [2.0], [0.0], 3, 1)),
    rank([0.0, 0.0], ("accumulate", 0, 1, [3.0], [2.0], 4, 1), ("get", 0, 0, [7.0, 5.0], [7.0, 5.0], 6, 2)),
]


def test_each_move_is_told_with_its_rank_its_numbers_and_its_place():
    assert repr(Moves(PUT_ADD_GET)).splitlines() == [
        "rank 1 puts [7] into rank 0's window, place 0",
        "rank 1 adds [2] to rank 0's window, place 1",
        "rank 2 adds [3] to rank 0's window, place 1",
        "rank 2 gets [7, 5] from rank 0's window, places 0–1",
        "rank 0 makes no call",
        "afterwards: rank 0 [7, 5], rank 1 [0, 0], rank 2 [0, 0]",
    ]


def test_the_picture_has_a_part_for_each_kind_of_call_and_one_for_what_is_left():
    moves = Moves(PUT_ADD_GET)
    text = moves.svg.decode()
    assert "put: rank 1 calls it, rank 0 takes no part" in text
    assert "accumulate: ranks 1, 2 call it, rank 0 takes no part" in text
    assert "get: rank 2 calls it, rank 0 takes no part" in text
    assert "afterwards" in text
    assert text.count(">+=<") == 2, "an arrow for each"
    assert moves.alt.endswith("rank 2 [0, 0].")


def test_the_first_part_shows_the_windows_before_anything_was_written():
    held = Moves(PUT_ADD_GET)._at_first()
    assert {place: value for place, (value, _) in held.items()} == {(r, i): 0.0 for r in range(3) for i in range(2)}


def test_a_tile_has_the_colours_of_all_whose_numbers_are_in_it():
    moves = Moves(PUT_ADD_GET)
    moves_left = moves._at_first()
    from workbook.tools.windows import _apply

    for move in moves.all:
        _apply(moves_left, move)
    assert moves_left[0, 0] == (7.0, {1: 1})
    assert moves_left[0, 1] == (5.0, {1: 1, 2: 1})


def test_a_window_that_is_too_large_is_drawn_as_one_tile():
    told = {"moves": [["get", 0, 0, 900, None, None, 1.0, 2.0, 0]], "made": 1, "size": 900, "now": None, "handed": 0}
    moves = Moves([{**told, "moves": [], "made": 0}, told])
    assert repr(moves) == "rank 1 gets 900 numbers from rank 0's window, places 0–899\nrank 0 makes no call"
    assert "900 numbers" in moves.svg.decode()


def test_what_has_not_been_flushed_is_said():
    assert "rank 1 has not flushed 2 calls" in repr(Moves([rank([0.0]), rank([0.0], handed=2)]))


def test_nothing_moved_is_said_and_drawn():
    moves = Moves([rank([1.0]), rank([2.0])])
    assert repr(moves) == "nothing was moved in the last cell\nafterwards: rank 0 [1], rank 1 [2]"
    assert "afterwards" in moves.svg.decode()


READ_OLD = [
    rank([5], ("get", 0, 0, [4], [4], 0, 0), ("put", 0, 0, [5], [4], 2, 0)),
    rank([0], ("get", 0, 0, [4], [4], 1, 0), ("put", 0, 0, [5], [5], 3, 0)),
]


def test_an_update_is_lost_where_a_rank_writes_what_it_read_before_another_wrote():
    (lost,) = Moves(READ_OLD).updates_lost
    assert (lost.first.rank, lost.second.rank) == (0, 1)
    assert [m.what for m in lost.moves] == ["get", "get", "put", "put"]
    assert repr(Moves(READ_OLD).lost()).splitlines() == [
        "An update of rank 0's window that was lost.",
        "0: rank 0 gets [4] from its own window, place 0",
        "+1 s: rank 1 gets [4] from rank 0's window, place 0",
        "+2 s: rank 0 puts [5] into its own window, place 0",
        "+3 s: rank 1 puts [5] into rank 0's window, place 0",
    ]
    text = Moves(READ_OLD).lost().svg.decode()
    assert "rank 0's update is lost" in text
    assert text.count("put 5") == 2


def test_no_update_is_lost_where_each_reads_after_the_other_has_written():
    in_turn = [
        rank([6], ("get", 0, 0, [4], [4], 0, 0), ("put", 0, 0, [5], [4], 1, 0)),
        rank([0], ("get", 0, 0, [5], [5], 2, 0), ("put", 0, 0, [6], [5], 3, 0)),
    ]
    assert Moves(in_turn).updates_lost == ()
    with pytest.raises(LabError, match="with more rounds"):
        Moves(in_turn).lost()


def test_a_rank_that_writes_twice_loses_no_update_of_another():
    alone = [rank([6], ("get", 0, 0, [4], [4], 0, 0), ("put", 0, 0, [5], [4], 1, 0), ("put", 0, 0, [6], [5], 2, 0))]
    assert Moves(alone).updates_lost == ()


def test_many_moves_are_counted_and_some_are_told():
    many = rank([59.0], *[("put", 0, 0, [float(i)], [max(i - 1.0, 0)], i, 0) for i in range(60)])
    assert repr(Moves([many])).splitlines()[0] == "60 puts, among them"
    assert len(repr(Moves([many])).splitlines()) == 26
    assert "afterwards; of 60 puts, none are drawn" in Moves([many]).svg.decode()
    assert ">59<" in Moves([many]).svg.decode(), "what stands there now, not what the moves that are drawn leave"


def test_of_moves_that_are_no_longer_kept_only_the_number_is_told():
    some = rank([29.0], *[("put", 0, 0, [float(i)], [i - 1.0], i, 0) for i in range(5, 30)], made=9000)
    assert repr(Moves([some])).splitlines()[0] == "9,000 moves in and out of windows, among them"


def test_of_two_puts_at_once_the_one_whose_number_is_left_came_last():
    def at_once(left):
        one, other = ("put", 0, 0, [1.0], [0.0], 1, 0), ("put", 0, 0, [2.0], [0.0], 1.2, 0)
        return Moves([rank([left]), rank([0.0], one), rank([0.0], other)])

    assert [[m.rank for m in at_once(left).all] for left in (1.0, 2.0)] == [[2, 1], [1, 2]]
    assert at_once(1.0).svg != at_once(2.0).svg


def test_what_an_owner_wrote_without_a_put_is_drawn_as_it_stands_there():
    moves = Moves([rank([9.0]), rank([0.0], ("put", 0, 0, [1.0], [0.0], 1, 0))])
    assert ">9<" in moves.svg.decode()
    assert moves._at_last({(0, 0): (1.0, {1: 1}), (1, 0): (0.0, {1: 1})})[0, 0] == (9.0, {0: 1})
