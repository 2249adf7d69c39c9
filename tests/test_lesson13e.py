"""Laws of cutting: the parts of lesson 13e cover everything once, and 13f's pieces fill any box from any cut."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from labkit import exercises
from labkit.exercises.lesson13f import grid

CUTS = [(1, 1), (2, 1), (3, 1), (5, 1), (1, 2), (1, 4), (2, 2), (3, 2)]


def solution(name: str) -> Any:
    """The workbook's function, which computes without torch."""
    scope: dict[str, Any] = {}
    exec(exercises.find(name).code, scope)
    return scope[name]


@pytest.mark.parametrize("count", range(14))
def test_parts_follow_one_another_cover_everything_and_differ_by_one_at_most(count: int):
    part_of = solution("part_of")
    for n in range(1, 9):
        parts = [part_of(count, n, place) for place in range(n)]
        assert parts[0][0] == 0
        assert parts[-1][1] == count
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
        sizes = [end - start for start, end in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("shape", [(12, 8), (7, 5), (2, 3), (1, 1)])
def test_whatever_cut_was_saved_and_whatever_cut_is_loaded_every_number_comes_once(shape: tuple[int, int]):
    pieces_for_me = solution("pieces_for_me")
    whole = np.arange(shape[0] * shape[1]).reshape(shape)
    for old, new in itertools.product(CUTS, CUTS):
        chunks = grid(shape, *old)
        stored = [whole[tuple(slice(a, a + s) for a, s in zip(*box, strict=True))] for box in chunks]
        for box in grid(shape, *new):
            times, found = np.zeros(box[1], int), np.zeros(box[1], int)
            for i, there, here, sizes in pieces_for_me(box, chunks):
                mine = tuple(slice(a, a + s) for a, s in zip(here, sizes, strict=True))
                times[mine] += 1
                found[mine] = stored[i][tuple(slice(a, a + s) for a, s in zip(there, sizes, strict=True))]
            assert (times == 1).all()
            assert (found == whole[tuple(slice(a, a + s) for a, s in zip(*box, strict=True))]).all()


def test_each_piece_is_written_by_one_of_its_holders():
    code = exercises.find("mine_to_write").code
    chance = np.random.default_rng(13)
    for n in (2, 3, 4):
        pieces = [(f"tensor {k}", 0, int(chance.integers(1, 100))) for k in range(12)]
        held = [[p for p in pieces if chance.random() < 0.6] for _ in range(n)]
        written = []
        for rank in range(n):
            scope: dict[str, Any] = {"rank": rank}
            exec(code, scope)
            mine = scope["mine_to_write"](held)
            assert set(mine) <= set(held[rank])
            written += mine
        assert sorted(written) == sorted({p for mine in held for p in mine})
