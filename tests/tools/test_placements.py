"""How matrices lie on a mesh: the table of a product against its definition, the ways between layouts, their bytes."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest

from labkit.floor.errors import LabError
from workbook.tools.painter import placements
from workbook.tools.painter.placements import (
    CUTS,
    PARTIAL,
    boxes,
    finished,
    held,
    moves,
    multiplied,
    terms,
    tile,
    work,
)

MESHES = [(2,), (3,), (4,), (2, 2), (2, 3), (4, 2)]
TURNED = {"rows": "columns", "columns": "rows"}
ALL = [
    (mesh, x, w)
    for mesh in [(4,), (2, 2)]
    for x in product(CUTS, repeat=len(mesh))
    for w in product(CUTS, repeat=len(mesh))
]


def test_the_ranks_that_differ_in_a_cut_hold_every_number_once(subtests):
    for mesh, shape in product(MESHES, ((12, 12), (5, 7), (1, 30))):
        with subtests.test(mesh=mesh, shape=shape):
            for layout in product(CUTS, repeat=len(mesh)):
                copies = 1
                for size, cut in zip(mesh, layout, strict=True):
                    copies *= size if cut == "whole" else 1
                seen: dict[tuple[int, int], int] = {}
                for rank in range(len(list(product(*map(range, mesh))))):
                    rows, columns = tile(shape, layout, mesh, rank)
                    for place in product(range(*rows), range(*columns)):
                        seen[place] = seen.get(place, 0) + 1
                assert len(seen) == shape[0] * shape[1]
                assert set(seen.values()) == {copies}


def test_a_product_is_possible_at_once_where_the_ranks_hold_all_its_terms_in_equal_shares(subtests):
    """The table and the ways between layouts know nothing of terms, and the terms nothing of tables."""
    for mesh, x, w in ALL:
        with subtests.test(mesh=mesh, x=x, w=w):
            shape = (8, 8, 8)
            # on a mesh (2, 2), X in columns over dimension 1 and W in rows over dimension 0 leave two ranks idle
            shares = {prod(b - a for a, b in box) for box in boxes(x, w, shape, mesh)}
            covered = terms(x, w, shape, mesh) == prod(shape) and len(shares) == 1
            assert multiplied(x, w, shape, mesh).possible == covered


def test_a_term_counts_once_however_many_ranks_hold_both_its_factors(subtests):
    for (mesh, x, w), shape in product(ALL, ((4, 4, 4), (5, 3, 2))):
        with subtests.test(mesh=mesh, x=x, w=w, shape=shape):
            m, k, n = shape
            found = set()
            for rank in range(4):
                (rows, mine), (its, columns) = tile((m, k), x, mesh, rank), tile((k, n), w, mesh, rank)
                both = set(range(*mine)) & set(range(*its))
                found |= set(product(range(*rows), both, range(*columns)))
            assert terms(x, w, shape, mesh) == len(found)


def test_a_product_turned_on_its_side_takes_the_same(subtests):
    for mesh, x, w in ALL:
        with subtests.test(mesh=mesh, x=x, w=w):

            def turned(layout):
                return tuple(TURNED.get(cut, cut) for cut in layout)

            one = multiplied(x, w, (8, 4, 12), mesh)
            other = multiplied(turned(w), turned(x), (12, 4, 8), mesh)
            assert one.possible == other.possible
            assert len(one.collectives) == len(other.collectives)
            sent = [
                sum(move.sent for _, move in p.first)
                + bool(p.collectives) * sum(m.sent for m in finished(p.y, shape, mesh))
                for p, shape in ((one, (8, 4, 12)), (other, (12, 4, 8)))
            ]
            assert sent[0] == sent[1]


def test_the_moves_lead_from_what_was_painted_to_what_is_multiplied_and_every_step_changes_one_dimension(subtests):
    for mesh, x, w in ALL:
        with subtests.test(mesh=mesh, x=x, w=w):
            p = multiplied(x, w, (8, 8, 8), mesh)
            for name, begin, end in (("X", p.x, p.x_used), ("W", p.w, p.w_used)):
                for move in (move for its, move in p.first if its == name):
                    assert move.before == begin
                    assert [d for d in range(len(mesh)) if move.before[d] != move.after[d]] == [move.dim]
                    assert bool(move.op) == bool(move.sent)
                    begin = move.after
                assert begin == end
            for lines in zip(p.x_used, p.w_used, p.y, strict=True):
                assert lines in placements.TABLE


@pytest.mark.parametrize(
    ("source", "target", "op", "share"),
    [
        ("rows", "whole", "all_gather", 3 / 4),
        ("columns", "whole", "all_gather", 3 / 4),
        ("partial", "whole", "all_reduce", 6 / 4),
        ("partial", "rows", "reduce_scatter", 3 / 4),
        ("partial", "columns", "reduce_scatter", 3 / 4),
        ("rows", "columns", "all_to_all", 3 / 16),
        ("whole", "rows", "", 0),
    ],
)
def test_a_change_of_layout_takes_the_collective_of_the_textbook_and_its_bytes(source, target, op, share):
    (move,) = moves((source,), (target,), (8, 16), (4,))
    assert move.op == op
    assert move.sent == pytest.approx(share * 8 * 16 * 4)


def test_over_a_dimension_whose_blocks_are_cut_again_nothing_can_be_gathered_first():
    """Rank (0, 1) has the second quarter of the rows. Along dimension 0 stands the fourth, and not the third one."""
    way = moves(("rows", "rows"), ("whole", "rows"), (8, 8), (2, 2))
    assert [(move.op, move.dim) for move in way] == [("all_gather", 1), ("all_gather", 0), ("", 1)]
    assert moves(("whole", "whole"), ("rows", "rows"), (8, 8), (2, 2))[0].dim == 0


def test_nothing_becomes_partial_on_purpose():
    with pytest.raises(LabError, match="Only sums can be partial"):
        moves(("whole",), ("partial",), (4, 4), (4,))


def test_everybodys_work_together_is_the_product_once_or_as_many_times_as_it_is_repeated(subtests):
    for mesh, x, w in ALL:
        with subtests.test(mesh=mesh, x=x, w=w):
            p = multiplied(x, w, (8, 8, 8), mesh)
            repeated = 1
            for size, a, b in zip(mesh, p.x_used, p.w_used, strict=True):
                repeated *= size if (a, b) == ("whole", "whole") else 1
            assert work(p, (8, 8, 8), mesh) == repeated


def test_who_adds_up_to_a_tile_stands_together():
    assert held((4, 4), ("whole", "partial"), (2, 2)) == {((0, 4), (0, 4)): [[0, 1], [2, 3]]}
    assert held((4, 4), ("partial", "whole"), (2, 2)) == {((0, 4), (0, 4)): [[0, 2], [1, 3]]}
    assert held((4, 4), ("partial", "partial"), (2, 2)) == {((0, 4), (0, 4)): [[0, 1, 2, 3]]}
    assert ((3, 3), (0, 4)) not in held((3, 4), ("rows",), (4,)), "rank 3 has nothing"


def test_what_ends_a_partial_sum_leaves_none(subtests):
    for mesh, x, w in ALL:
        with subtests.test(mesh=mesh, x=x, w=w):
            y = multiplied(x, w, (8, 8, 8), mesh).y
            way = finished(y, (8, 8, 8), mesh)
            assert bool(way) == (PARTIAL in y)
            assert not way or PARTIAL not in way[-1].after


@pytest.mark.parametrize("wrong", ["cols", ("rows",), ("rows", "partial"), ("rows", "rows", "rows"), 3, None])
def test_what_is_no_layout_is_refused_with_one_that_is(wrong):
    with pytest.raises(LabError, match=r"w=\('rows', 'whole'\)"):
        placements.layout(wrong, (2, 2), "W")
