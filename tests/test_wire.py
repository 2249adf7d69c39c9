"""What `lab.wire` says and draws of counted bytes, also where nobody counts them."""

from __future__ import annotations

import base64
import re
import xml.dom.minidom
from types import SimpleNamespace

import pytest

from labkit.cluster.wire import _settled
from labkit.floor import time_limits
from labkit.floor.errors import LabError
from labkit.plot import wire as picture
from labkit.plot.sheet import FULL
from labkit.show.wire import Wire
from labkit.theory.primitives import PRIMITIVES
from labkit.theory.traffic import Counted, flows
from tests.recorded import Told, told

MIB = 2**20


def recorded(op: str, n: int, nbytes: int, **more: object) -> list[dict[str, object]]:
    return told(*(Told(n).meet(op, bytes=nbytes, **more) for _ in range(n)))


def wire(op: str, n: int, nbytes: int, seen: str = "", root: int = 0) -> Wire:
    matrix = [[round(b) for b in row] for row in PRIMITIVES[seen or op].traffic(n, nbytes, root).tolist()]
    return Wire(Counted(n, matrix), recorded(op, n, nbytes, peer=root))


def test_the_text_is_the_matrix_and_what_it_says():
    assert repr(wire("reduce_scatter", 3, 3 * MIB, "all_reduce")).splitlines() == [
        "MiB from row to column  rank 0  rank 1  rank 2  sent  textbook",
        "rank 0                       ·       ·     4.0   4.0       2.0",
        "rank 1                     4.0       ·       ·   4.0       2.0",
        "rank 2                       ·     4.0       ·   4.0       2.0",
        "form: a ring, each rank to the one before it",
        "textbook: reduce_scatter (ring: S(N-1)/N from each rank)",
        "counted: 2.0 times the textbook's bytes",
        "counted: the textbook's bytes for all_reduce of the same buffer, to 1 %, so reduce_scatter ran as all_reduce",
    ]


def test_the_alternative_text_names_every_arrow():
    said = wire("broadcast", 4, MIB).alt
    moves = "rank 0 to rank 1 1.0 MiB, rank 0 to rank 2 1.0 MiB, rank 1 to rank 3 1.0 MiB."
    assert f"seen, as in the textbook: {moves}" in said, "equal pictures are one"
    other = wire("reduce_scatter", 2, MIB, seen="all_reduce").alt
    assert "seen: rank 0 to rank 1" in other
    assert "by the textbook: rank 0 to rank 1" in other


def test_headers_alone_are_told_in_bytes_and_small_data_is_not_held_against_the_textbook():
    few = wire("all_reduce", 2, 40)
    few.matrix[0][1] += 500
    again = Wire(Counted(2, few.matrix), recorded("all_reduce", 2, 40))
    assert repr(again).startswith("bytes from row")
    assert again.notes[-1] == "counted: with Gloo's headers, 48 bytes per message; take 1 MiB or more to compare"


def test_where_nobody_counts_the_textbook_stands_alone():
    alone = Wire(Counted(2, None, "darwin does not count bytes"), recorded("all_reduce", 2, MIB))
    assert alone.sent is None
    assert repr(alone).splitlines() == [
        "by the textbook:",
        "MiB from row to column  rank 0  rank 1  textbook",
        "rank 0                       ·     1.0       1.0",
        "rank 1                     1.0       ·       1.0",
        "not counted: darwin does not count bytes",
        "textbook: all_reduce (ring: 2S(N-1)/N from each rank)",
    ]


def test_a_gpu_s_own_counters_give_what_each_rank_sent():
    counted = Counted(2, [[0, 64], [64, 0]], sent=[MIB, MIB])
    links = Wire(counted, recorded("all_reduce", 2, MIB, enqueued=True))
    assert links.matrix is None
    assert links.total == 2 * MIB
    assert "NVLink counters" in links.notes[0]
    assert repr(links).splitlines()[2].split()[-2:] == ["1.0", "1.0"]
    alone = Wire(Counted(2, None, "darwin does not count bytes", [MIB, MIB]), told(Told(2), Told(2)))
    assert repr(alone).splitlines()[1].split() == ["rank", "0", "1.0"]


def test_a_gpu_s_data_that_goes_through_tcp_is_counted_as_such():
    matrix = [[0, MIB], [MIB, 0]]
    wire = Wire(Counted(2, matrix, sent=[0, 0]), recorded("all_reduce", 2, MIB, enqueued=True))
    assert wire.matrix == matrix
    assert wire.sent == [MIB, MIB]


def test_a_call_that_nobody_waited_for_is_said():
    told_by = recorded("all_reduce", 2, MIB, asynchronous=True)
    assert "never waited for" in Wire(Counted(2, [[0, MIB], [MIB, 0]]), told_by).notes[-1]


def test_a_call_whose_future_was_taken_may_have_been_waited_for():
    told_by = recorded("all_reduce", 2, MIB, asynchronous=True, asked=True)
    assert "never waited for" not in str(Wire(Counted(2, [[0, MIB], [MIB, 0]]), told_by).notes)


@pytest.mark.parametrize("n", [1, 2, 3, 8, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("op", ["broadcast", "all_to_all"])
def test_pictures_are_wellformed_and_equal_for_equal_data(op, n):
    html = wire(op, n, 16 * MIB)._repr_html_()
    assert html == wire(op, n, 16 * MIB)._repr_html_()
    picture = base64.b64decode(re.search(r'base64,([^"]+)"', html)[1]).decode()
    xml.dom.minidom.parseString(picture)
    assert f"rank {n - 1}" in picture
    assert len(picture) < 150_000


@pytest.mark.parametrize("seen", ["reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_all_of_a_picture_is_seen_beside_the_file_browser(n, seen):
    """Where the textbook's arrows are drawn, too, both circles stand below the matrix."""
    assert picture.draw(wire("reduce_scatter", n, 16 * MIB, seen)._drawing).get_xlim()[1] <= FULL


def look(nbytes, busy=False):
    """What two ranks tell of the bytes from the first to the second, all of which have arrived."""
    return [
        {"sockets": [("a 1", "b 2", nbytes, 0)], "busy": busy},
        {"sockets": [("b 2", "a 1", 0, nbytes)], "busy": False},
    ]


def test_a_rank_that_waits_for_a_processor_may_send_more():
    looks = [look(5, busy=True), look(5, busy=True), look(9), look(9)]
    console = SimpleNamespace(call=lambda path: looks.pop(0))
    assert _settled(console) == (look(9), False, False)
    assert looks == []


def test_nobody_waits_for_ever_for_a_rank_at_work(monkeypatch):
    monkeypatch.setattr(time_limits, "BYTES_ARRIVE", 0.0)
    assert _settled(SimpleNamespace(call=lambda path: look(5, busy=True))) == (look(5, busy=True), False, True)


def test_only_connections_with_a_rank_at_both_ends_count():
    mine = {
        "sockets": [("a 1", "b 2", 7, 3), ("a 5", "notebook 9", 99, 99), ("a 6", "a 7", 1, 1), ("a 7", "a 6", 1, 1)]
    }
    other = {"sockets": [("b 2", "a 1", 3, 6)]}
    assert flows([mine, other]) == {("a 1", "b 2"): (0, 1, 7, 6), ("b 2", "a 1"): (1, 0, 3, 3)}


def test_what_crosses_between_hosts_is_summed_and_what_stays_inside_is_not():
    matrix = [[10 * s + d if s != d else 0 for d in range(4)] for s in range(4)]
    seen = Wire(Counted(4, matrix), told(*(Told(4) for _ in range(4))))
    assert seen.across([[0, 1], [2, 3]]) == [[0, 2 + 3 + 12 + 13], [20 + 21 + 30 + 31, 0]]
    assert seen.across([[0, 2], [1], [3]])[0] == [0, 1 + 21, 3 + 23]
    assert seen.across([[0, 1, 2, 3]]) == [[0]]
    assert sum(map(sum, seen.across([[0], [1], [2], [3]]))) == seen.total
    with pytest.raises(LabError, match=r"does not have each of the ranks 0 to 3 once"):
        seen.across([[0, 1], [1, 2, 3]])


def test_nothing_is_said_to_have_crossed_where_nobody_counts():
    alone = Wire(Counted(2, None, "darwin does not count bytes"), recorded("all_reduce", 2, MIB))
    assert alone.across([[0], [1]]) is None


def test_groups_that_meet_side_by_side_are_named_in_one_order_whoever_comes_first():
    def ranks(*late: float) -> list[Told]:
        each = []
        for r, after in enumerate(late):
            mine, host = Told(4), (0, 1) if r < 2 else (2, 3)
            mine.meet("reduce", after, after + 1, bytes=MIB, ranks=host, peer=host[0])
            if r in (0, 2):
                mine.meet("all_reduce", after + 1, after + 2, bytes=MIB, ranks=(0, 2))
            mine.meet("broadcast", after + 1 + (r in (0, 2)), after + 3, bytes=MIB, ranks=host, peer=host[0])
            each.append(mine)
        return each

    names = {
        next(note for note in wire.notes if note.startswith("textbook"))
        for late in ((0, 0, 0, 0), (5, 5, 0, 0), (0, 0, 5, 5), (5, 0, 5, 0))
        for wire in [Wire(Counted(4, [[MIB] * 4 for _ in range(4)]), told(*ranks(*late)))]
    }
    assert len(names) == 1, names
    assert next(iter(names)).startswith("textbook: 2 × reduce (")
