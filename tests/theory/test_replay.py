"""Buffers and origins, round by round, from records written by hand."""

from __future__ import annotations

from labkit.theory.record import read
from labkit.theory.replay import Replay
from tests.recorded import Told, told


def origins(elements):
    return [
        None if e.origin is None else dict(sorted((r, k) for (r, _), k in e.origin.counts.items())) for e in elements
    ]


def values(elements):
    return [e.value for e in elements]


def reduce_at_root(mine, theirs, after):
    """Rank 1 sends x; rank 0 receives it beside its own x and then holds `after`."""
    a, b = Told(2), Told(2)
    x, got = a.buffer("x", mine, first=""), a.buffer("got", [9.9] * len(theirs), first="recv")
    a.recv(1, view=(got, 0, len(theirs)), landed=theirs)
    a.write(x, after)
    b.send(0, view=(b.buffer("x", theirs), 0, len(theirs)))
    return Replay(read(told(a, b)))


def test_what_is_received_lies_where_it_was_received_and_comes_from_its_sender():
    replay = reduce_at_root([1.0], [5.0], [1.0])
    assert values(replay.contents(0, 1, 1)) == [5.0]
    assert origins(replay.contents(0, 1, 1)) == [{1: 1}]


def test_what_nobody_wrote_is_not_shown():
    assert values(reduce_at_root([1.0], [5.0], [1.0]).contents(0, 1, 0)) == [None]


def test_an_addition_mixes_origins():
    replay = reduce_at_root([1.0, 2.0], [5.0, 6.0], [6.0, 8.0])
    assert origins(replay.contents(0, 0, 0)) == [{0: 1}, {0: 1}]
    assert origins(replay.contents(0, 0, 1)) == [{0: 1, 1: 1}, {0: 1, 1: 1}]


def test_a_copy_takes_the_origin_along():
    assert origins(reduce_at_root([1.0], [5.0], [5.0]).contents(0, 0, 1)) == [{1: 1}]


def test_a_maximum_keeps_the_origin_of_the_winner():
    replay = reduce_at_root([1.0, 7.0], [5.0, 6.0], [5.0, 7.0])
    assert origins(replay.contents(0, 0, 1)) == [{1: 1}, {0: 1}]


def test_a_change_that_nothing_received_explains_keeps_its_own_origin():
    assert origins(reduce_at_root([1.0, 2.0], [5.0, 6.0], [3.0, 6.0]).contents(0, 0, 1)) == [{0: 1}, {0: 1}]


def test_float32_sums_that_round_are_recognised():
    assert origins(reduce_at_root([0.1], [0.2], [0.30000001192092896]).contents(0, 0, 1)) == [{0: 1, 1: 1}]


def test_a_chunk_added_twice_counts_twice():
    a, b = Told(2), Told(2)
    x, got = a.buffer("x", [1.0], first=""), a.buffer("got", [0.0], first="recv")
    for total in (6.0, 11.0):
        a.recv(1, view=(got, 0, 1), landed=[5.0])
        a.write(x, [total])
    y = b.buffer("x", [5.0])
    b.send(0, view=(y, 0, 1)).send(0, view=(y, 0, 1))
    assert origins(Replay(read(told(a, b))).contents(0, 0, 2)) == [{0: 1, 1: 2}]


def test_received_zeros_go_where_the_other_chunks_went():
    a, b = Told(2), Told(2)
    x, got = a.buffer("x", [1.0, 2.0], first=""), a.buffer("got", [3.0, 3.0], first="recv")
    a.recv(1, view=(got, 0, 2), landed=[0.0, 0.0])
    a.recv(1, view=(got, 0, 2), landed=[5.0, 5.0])
    a.write(x, [6.0, 7.0])
    y, z = b.buffer("y", [0.0, 0.0]), b.buffer("z", [5.0, 5.0])
    b.send(0, view=(y, 0, 2)).send(0, view=(z, 0, 2))
    replay = Replay(read(told(a, b)))
    assert replay.known
    assert origins(replay.contents(0, 0, 2)) == [{0: 1, 1: 2}] * 2


def test_zeros_that_may_have_gone_anywhere_hide_all_origins():
    a, b = Told(2), Told(2)
    x, y, got = a.buffer("x", [1.0], first=""), a.buffer("y", [2.0], first=""), a.buffer("got", [9.0], first="recv")
    for landed, where, total in ((5.0, x, 6.0), (7.0, y, 9.0), (0.0, None, 0.0)):
        a.recv(1, view=(got, 0, 1), landed=[landed])
        if where is not None:
            a.write(where, [total])
    for value in (5.0, 7.0, 0.0):
        b.send(0, view=(b.buffer("", [value]), 0, 1))
    replay = Replay(read(told(a, b)))
    assert not replay.known
    assert origins(replay.contents(0, 0, 3)) == [None]
    assert values(replay.contents(0, 0, 3)) == [6.0]


def test_temporary_buffers_of_one_line_share_a_slot_once_the_last_is_gone():
    a, b = Told(2), Told(2)
    for value in (1.0, 2.0):
        i = a.buffer("", [0.5], first="recv", line=3)
        a.recv(1, view=(i, 0, 1), landed=[value])
        a.log.buffers[i].gone = len(a.log.journal)
        b.send(0, view=(b.buffer("", [value]), 0, 1))
    assert [len(s.buffers) for s in Replay(read(told(a, b))).slots[0]] == [2]
    a.log.buffers[0].gone = None
    assert [len(s.buffers) for s in Replay(read(told(a, b))).slots[0]] == [1, 1]
