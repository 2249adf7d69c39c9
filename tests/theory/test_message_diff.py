"""A learner's messages held against the right ones, over records written by hand."""

from __future__ import annotations

from labkit.theory.message_diff import differences, told
from labkit.theory.record import read
from labkit.theory.replay import Replay
from tests.recorded import Told
from tests.recorded import told as records

N = 3


def replay(*steps: list[tuple[int, int, int]], apart: float = 1.0) -> Replay:
    """What goes at once in each step: (from, to, which element of its own three numbers). All wait at a step's end."""
    ranks = [Told(N) for _ in range(N)]
    own = [rank.buffer("x", [10.0 * r + apart * i + 1 for i in range(3)]) for r, rank in enumerate(ranks)]
    rooms = [rank.buffer("room", [0.0] * 3, first="recv") for rank in ranks]
    for k, step in enumerate(steps):
        for src, dst, i in step:
            value = 10.0 * src + apart * i + 1
            when = {"issued": 100 * k, "done": 100 * k + 99}
            ranks[src].send(dst, view=(own[src], i, 1), **when)
            held = [value if at == k else 0.0 for at in range(3)]
            ranks[dst].recv(src, view=(rooms[dst], k, 1), landed=held, **when)
    return Replay(read(records(*ranks)))


RIGHT = [[(0, 1, 0), (1, 2, 1), (2, 0, 2)], [(0, 1, 1), (1, 2, 2), (2, 0, 0)]]


def marks(*steps: list[tuple[int, int, int]]) -> list[tuple[int, str]]:
    return [(d.step, d.mark) for d in differences(replay(*steps), replay(*RIGHT))]


def test_the_same_messages_have_no_difference():
    assert marks(*RIGHT) == []


def test_a_message_that_lacks_is_missing():
    assert marks(RIGHT[0], RIGHT[1][:2]) == [(1, "missing")]


def test_a_message_too_many_is_extra():
    assert marks([*RIGHT[0], (0, 2, 1)], RIGHT[1]) == [(0, "extra")]


def test_another_chunk_on_the_same_way_is_named():
    mine = replay(RIGHT[0], [(0, 1, 2), *RIGHT[1][1:]])
    found = differences(mine, replay(*RIGHT))
    assert [d.mark for d in found] == ["≠ chunk"]
    assert told(found) == ["Step 2: rank 0 sends element 2 of rank 0 to rank 1, and not element 1 of rank 0."]


def test_the_right_chunk_to_another_rank_is_named():
    found = differences(replay([(0, 2, 0), *RIGHT[0][1:]], RIGHT[1]), replay(*RIGHT))
    assert [d.mark for d in found] == ["≠ rank"]
    assert told(found) == ["Step 1: rank 0 sends element 0 of rank 0 to rank 2, and not to rank 1."]


def test_the_same_message_in_another_step_is_late_or_early():
    late = [[(0, 1, 0), (1, 2, 1)], [(2, 0, 2), (0, 1, 1), (1, 2, 2)], [(2, 0, 0)]]
    found = differences(replay(*late), replay(*RIGHT))
    assert [(d.step, d.mark) for d in found] == [(1, "late"), (2, "late")]
    assert told(found)[0] == "Step 2: what goes from rank 2 to rank 0 belongs in step 1, so it is 1 step late."
    assert [d.mark for d in differences(replay(*RIGHT), replay(*late))] == ["early", "early"]


def test_equal_numbers_from_elsewhere_are_not_the_same_message():
    right = replay([(0, 1, 0)], [(1, 2, 1)], apart=0)
    found = differences(replay([(1, 2, 2)], [(0, 1, 0)], apart=0), right)
    assert [(d.step, d.mark) for d in found] == [(0, "extra"), (1, "late"), (1, "missing")]


def test_those_of_one_kind_in_a_step_are_told_together():
    assert told(differences(replay(RIGHT[0]), replay(*RIGHT))) == [
        "Step 2: a message from rank 0 to rank 1 is missing (and 2 more like it)."
    ]


def test_each_message_is_in_one_difference_at_most():
    mine, right = replay([(0, 2, 1), (2, 1, 0)], RIGHT[0]), replay(*RIGHT)
    found = differences(mine, right)
    for side in ("mine", "right"):
        messages = [id(m) for d in found if (m := getattr(d, side)) is not None]
        assert len(messages) == len(set(messages))
