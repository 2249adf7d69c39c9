"""What a cell's recorded calls cost by the textbook, and the form of who sends to whom."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.theory import traffic
from labkit.theory.primitives import PRIMITIVES, find
from labkit.theory.record import read
from tests.recorded import Told, told


def asked(*ranks: Told) -> traffic.Asked:
    return traffic.asked(read(told(*ranks)))


def everyone(n: int, op: str, **more: object) -> list[Told]:
    return [Told(n).meet(op, **more) for _ in range(n)]


@pytest.mark.parametrize(
    "op", ["broadcast", "reduce", "all_reduce", "reduce_scatter", "all_to_all_single", "all_reduce_coalesced"]
)
def test_a_recorded_buffer_is_the_textbooks(op):
    found = asked(*everyone(4, op, bytes=800, peer=2))
    assert (found.matrix() == find(op).traffic(4, 800, 2)).all()


@pytest.mark.parametrize(
    "op", ["gather", "scatter", "all_gather", "all_gather_single", "all_gather_into_tensor", "gather_single"]
)
def test_a_recorded_share_is_one_rank_s_of_the_textbooks(op):
    found = asked(*everyone(4, op, bytes=200, peer=2))
    assert (found.matrix() == find(op).traffic(4, 800, 2)).all()


def test_a_sub_group_moves_data_between_its_own_ranks():
    found = asked(Told(3).meet("broadcast", ranks=[0, 2], peer=2, bytes=8), Told(3),
                  Told(3).meet("broadcast", ranks=[0, 2], peer=2, bytes=8))  # fmt: skip
    assert found.matrix().tolist() == [[0, 0, 0], [0, 0, 0], [8, 0, 0]]


def test_calls_add_up_with_sends():
    found = asked(
        Told(2).send(1, bytes=5).meet("broadcast", peer=1), Told(2).recv(0, bytes=5).meet("broadcast", peer=1)
    )
    assert found.matrix().tolist() == [[0, 5], [4, 0]]
    assert found.name == "broadcast (binomial tree: S into each rank but the root); what the cell's sends carry"


@pytest.mark.parametrize(
    "ranks",
    [
        everyone(2, "broadcast_object_list", bytes=None),
        [Told(2).meet("all_reduce", bytes=4), Told(2).meet("all_reduce", bytes=8)],
        [Told(2).meet("all_reduce", bytes=4), Told(2)],
        [Told(2).meet("all_reduce"), Told(2).meet("all_gather")],
        everyone(2, "broadcast", peer=None),
    ],
)
def test_what_no_textbook_has_a_figure_for_is_named(ranks):
    found = asked(*ranks)
    assert not found.known
    assert len(found.unknown) == 1


def test_an_all_reduce_under_a_reduce_scatter_is_recognised():
    found = asked(*everyone(4, "reduce_scatter", bytes=2**20))
    assert traffic.likeness(PRIMITIVES["all_reduce"].traffic(4, 2**20), found) == {"reduce_scatter": "all_reduce"}
    assert traffic.likeness(PRIMITIVES["reduce_scatter"].traffic(4, 2**20) * 1.005, found) == {}
    assert traffic.likeness(PRIMITIVES["reduce_scatter"].traffic(4, 2**20) * 1.5, found) is None


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("broadcast", "a binomial tree below rank 1"),
        ("gather", "a star, each other rank to rank 1"),
        ("scatter", "a star, rank 1 to each other one"),
        ("all_reduce", "a ring, each rank to the one before it"),
        ("all_gather", "a ring, each rank to the next one"),
        ("all_to_all", "each rank to each other one"),
        ("reduce", ""),
    ],
)
def test_a_form_has_its_name(op, said):
    matrix = PRIMITIVES[op].traffic(5, 2**20, 1)
    assert traffic.form(matrix) == said
    assert traffic.form(matrix + 48 * (1 - np.eye(5))) == said, "headers are not data"
    wide = np.zeros((7, 7))
    wide[np.ix_([0, 2, 3, 4, 6], [0, 2, 3, 4, 6])] = matrix
    among = " among ranks 0, 2, 3, 4, 6" if said else ""
    assert traffic.form(wide) == said.replace("rank 1", "rank 2") + among


def test_one_message_and_nothing_have_names_too():
    assert traffic.form(np.array([[0, 0], [7, 0]])) == "rank 1 to rank 0"
    assert traffic.form(np.zeros((3, 3))) == ""
