"""Laws of cutting: the parts of lesson 13f cover everything once, and 13g's pieces fill any box from any cut.

What is missing and what was found make up the whole; shards that go to other ranks and back are what they were.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labkit.content import exercises
from workbook.lesson13g import grid

CUTS = [(1, 1), (2, 1), (3, 1), (5, 1), (1, 2), (1, 4), (2, 2), (3, 2)]


def solution(name: str) -> Any:
    """The workbook's function, which computes without torch."""
    scope: dict[str, Any] = {}
    exec(exercises.find(name).code, scope)
    return scope[name]


def test_parts_follow_one_another_cover_everything_and_differ_by_one_at_most(subtests: pytest.Subtests):
    for count in range(14):
        with subtests.test(count=count):
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


def test_what_is_missing_and_what_was_found_are_the_whole_and_share_no_row():
    code = exercises.find("what_is_missing").code
    chance = np.random.default_rng(13)
    rows = {"a": 9, "none": 0, "b": 4}
    for _ in range(50):
        everyones = [[] for _ in range(3)]  # type: list[list[tuple[str, int, int]]]
        for name, count in rows.items():
            for _ in range(int(chance.integers(0, 5)) if count else 0):
                start, end = sorted(chance.choice(count + 1, 2, replace=False).tolist())
                everyones[int(chance.integers(3))].append((name, start, end))
        there = {(name, row) for found in everyones for name, start, end in found for row in range(start, end)}
        scope: dict[str, Any] = {"comms": SimpleNamespace(all_gather=lambda _, all_=everyones: all_)}
        exec(code, scope)
        missing = scope["what_is_missing"](rows, everyones[0])
        gone = [(name, row) for name, start, end in missing for row in range(start, end)]
        assert sorted({*gone, *there}) == sorted((name, row) for name, count in rows.items() for row in range(count))
        assert len(gone) + len(there) == sum(rows.values())
        assert all(a[0] != b[0] or a[2] < b[1] for a, b in itertools.pairwise(missing)), "runs are as long as can be"


@pytest.mark.parametrize(("stacked", "size"), [(3, 12), (3, 7), (1, 5), (2, 2)])
def test_stacked_shards_are_the_same_again_after_any_number_of_ranks(stacked: int, size: int):
    part_of, code = solution("part_of"), exercises.find("restack").code
    scope: dict[str, Any] = {"torch": SimpleNamespace(cat=np.concatenate)}
    exec(code, scope)
    rows = stacked * size
    whole = np.arange(rows).reshape(rows, 1)

    def again(shards: list[np.ndarray], new: int) -> list[np.ndarray]:
        def read(r: int, start: int, end: int) -> np.ndarray:
            return shards[r][start:end]

        return [scope["restack"](read, rows, stacked, len(shards), new, place, part_of) for place in range(new)]

    for old, new in itertools.product(range(1, 6), range(1, 6)):
        shards = again([whole], old)
        assert sorted(int(x) for shard in shards for x in shard[:, 0]) == list(range(rows))
        back = again(again(shards, new), old)
        assert all((a == b).all() for a, b in zip(back, shards, strict=True))
        assert (again(shards, 1)[0] == whole).all()
