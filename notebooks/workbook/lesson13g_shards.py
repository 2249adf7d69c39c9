"""Exercises of lesson 13g, at its end: whether a checkpoint is complete, and shards of matrices that are stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from labkit.grading.exercise import Case, exercise
from workbook.lesson13f import by_reading, filled, part_of

if TYPE_CHECKING:
    from labkit.rank.cell_names import comms, rank, torch


Run = tuple[str, int, int]  # the tensor's name, the first row, and the one after the last


def gaps(rows: Mapping[str, int], pieces: Sequence[Run]) -> list[Run]:
    """Find the runs of rows that no piece has, in the order of `rows`.

    >>> gaps({"up": 6, "bias": 0}, [("up", 2, 4), ("up", 3, 5)])
    [('up', 0, 2), ('up', 5, 6)]
    """
    found: list[Run] = []
    for name, count in rows.items():
        there = [any(name == n and a <= row < b for n, a, b in pieces) for row in range(count)]
        begins = [i for i in range(count) if not there[i] and (i == 0 or there[i - 1])]
        ends = [i + 1 for i in range(count) if not there[i] and (i == count - 1 or there[i + 1])]
        found += [(name, a, b) for a, b in zip(begins, ends, strict=True)]
    return found


def _folders(n: int) -> list[Case]:
    def case(about: str, rows: Mapping[str, int], found: Sequence[Sequence[Run]]) -> Case:
        return Case([(dict(rows), [*pieces]) for pieces in found], about)

    def thirds(r: int, *names: str) -> list[Run]:
        return [(name, 3 * r, 3 * r + 3) for name in names]

    up = {"up": 2 * n}
    both = {"up": 3 * n, "bias": 3 * n}
    copies = [[("up", 4, 6), ("up", 0, 2)] for _ in range(n)]  # 2n times two rows, and never rows 2 and 3
    large = [[("up", 0, 9), ("up", 2, 3)], [("up", 5, 7), ("up", 10, 12)], *[[("up", 1, 4)]] * (n - 2)]
    late: list[list[Run]] = [*([] for _ in range(n - 1)), [("norm", 1, 4), ("up", 3, 5), ("up", 1, 3)]]
    return [
        case("the file of rank 1 is gone", up, [[("up", 2 * r, 2 * r + 2)] if r != 1 else [] for r in range(n)]),
        case("nothing is missing", both, [thirds(r, "up", "bias") for r in range(n)]),
        case("one tensor is cut short", both, [thirds(r, "bias", *["up"] * (r < n - 1)) for r in range(n)]),
        case("all see the same two files", {"up": 6}, copies),
        case("some pieces lie within others", {"up": 12}, large),
        case("the last rank alone sees files", {"up": 6, "norm": 4}, late),
        case(
            "a tensor that is in no file, and one without rows", {"up": n, "none": 0, "gone": 2}, [[("up", 0, n)]] * n
        ),
        case("no files at all", {"up": 3, "bias": 1}, [[] for _ in range(n)]),
    ]


@exercise(
    "Is the checkpoint complete?",
    lambda xs: [[[*run] for run in gaps(xs[0][0], [piece for _, found in xs for piece in found])] for _ in xs],
    difficulty=2,
    inputs=_folders,
)
def what_is_missing(rows, found):
    """Return the runs of rows (name, start, end) that no rank has found, the same list on every rank.

    A file of a checkpoint is gone. If the rank that needs it finds out while it loads, it raises an error alone, and
    the others wait for it in their next collective. So look first, together. `rows[name]` is the number of rows of each
    tensor, the same on all ranks. `found` is the list of the pieces in the files that **this** rank can see, tuples
    `(name, start, end)`: the tensor's rows from `start` to `end` (not included). A rank may see no file, and several
    may see the same one; pieces come in any order and may overlap.

    Return the list of what **no** rank has found, the same list on every rank: a tuple `(name, start, end)` for each
    run of missing rows, as long as it can be, in the order of `rows` and of the rows. If nothing is missing, that is
    `[]`.
    Hint: Every rank has to know what all have found. `comms.all_gather(found)` takes any object, and every rank has to
    call it, also one that has found nothing.
    Hint: Take the pieces of one tensor in sorted order, and remember up to which row everything is there. If a piece
    begins later than that, there is a gap before it.
    Hint: After each piece, everything is there up to `max(reached, end)`: a piece may end before one that came earlier.
    At the end, hold `reached` against `rows[name]`.
    Afterwards: All ranks have the same list, so all can stop with the same error, or all go back to an older
    checkpoint, and no rank waits for another. DCP works like this: rank 0 makes the plan for loading, and if something
    is wrong on one rank, every rank raises an error that names that rank.
    """
    missing = []
    # yours
    everyones = [piece for pieces in comms.all_gather(found) for piece in pieces]
    for name, count in rows.items():
        reached = 0
        for start, end in sorted((a, b) for other, a, b in everyones if other == name):
            if start > reached:
                missing.append((name, reached, start))
            reached = max(reached, end)
        if reached < count:
            missing.append((name, reached, count))
    # end
    return missing


def _stacks(n: int) -> list[Case]:
    def case(
        about: str, stacked: int, size: int, old: int, new: int = n, columns: Sequence[int] = (2,), seed: int = 30
    ) -> Case:
        whole = filled((stacked * size, *columns), np.random.default_rng([13, seed, n]) if seed else None)
        return Case([(whole,)] * n, about, {"stacked": stacked, "old": old, "new": new})

    fewer, few = (2, 3) if n == 3 else (3, 6)  # with 3 ranks as the card has it
    return [
        case(f"two stacked matrices, from {fewer} ranks to {n}", 2, few, fewer, columns=(1,), seed=0),
        case(f"queries, keys and values, from {n + 1} ranks to {n}", 3, n * (n + 1), n + 1),
        case("sizes that do not divide", 3, 2 * n + 1, n + 1, seed=31),
        case("from more ranks than there are rows in a matrix", 2, n, n + 2, seed=32),
        case("fewer rows than ranks", 2, n - 1, 1, seed=33),
        case("one matrix", 1, 3 * n + 2, n + 1, seed=34),
        case(f"from {n} ranks to {2 * n}; you see the first {n}", 3, 2 * n, n, 2 * n, seed=35),
        case("a bias", 3, n + 2, 5, columns=(), seed=36),
    ]


def run_restack(restack, whole, stacked, old, new):
    """Give a `read` of the old shards that counts rows, and collect the new shard."""
    size = len(whole) // stacked
    shards = [torch.cat([matrix[slice(*part_of(size, old, r))] for matrix in whole.split(size)]) for r in range(old)]
    got = []

    def read(r, start, end):
        assert 0 <= r < old, f"rank {rank} reads old shard {r}, and there are {old}: 0 to {old - 1}"
        inside = 0 <= start <= end <= len(shards[r])
        assert inside, f"rank {rank} reads rows {start} to {end} of old shard {r}, which ends at {len(shards[r])}"
        got.append(end - start)
        return shards[r][start:end].clone()

    mine = restack(read, len(whole), stacked, old, new, rank, part_of)
    if isinstance(mine, torch.Tensor) and mine.dim():
        assert sum(got) <= len(mine), f"rank {rank} reads {sum(got)} rows, and returns {len(mine)}"
    return mine


@by_reading(
    "Tensor-parallel shards for a different number of ranks",
    lambda xs, stacked, old, new: [
        np.concatenate([matrix[slice(*part_of(len(matrix), new, r))] for matrix in np.split(whole, stacked)])
        for r, (whole,) in enumerate(xs)
    ],
    minutes=12,
    difficulty=3,
    inputs=_stacks,
    harness=run_restack,
)
def restack(read, rows, stacked, old, new, place, part_of):
    """Return this rank's shard of a matrix of stacked matrices, from the shards of a different number of ranks.

    A tensor-parallel shard of queries, keys and values is not one box: it has some rows of each. A matrix of `rows`
    rows is `stacked` matrices, one after the other, each of `size = rows // stacked` rows. Shard r of `old` ranks has
    the rows `part_of(size, old, r)` of the first matrix, then those of the second, and so on. Return the shard of the
    rank at this `place` among `new` ranks, made in the same way. `part_of` is that of lesson 13f: `(start, end)` of a
    part, the first ones perhaps longer by one.

    `read(r, start, end)` reads rows of old shard r, which **counts its own rows from 0**. Read no row that you do not
    return. Communicate nothing. In the picture, the whole matrix is on the left: two stacked matrices of three rows,
    saved by two ranks.
    Hint: Which rows of each matrix does the new shard have? `part_of(size, new, place)`. Which ones does old shard r
    have? `part_of(size, old, r)`. What they have in common is what you read there.
    Hint: In old shard r, matrix i begins after i parts: at row `i * (after - first)`, where `first, after =
    part_of(size, old, r)`.
    Hint: The result goes through the matrices first: all rows of the first one, from however many old shards, then all
    rows of the second. So the loop over the matrices is the outer one.
    Afterwards: Shards that are put together in their order and cut again have the right shape, and queries where keys
    belong. DCP does not notice that either, if it is given such shards as parts of one matrix. Adam's two moments have
    the shape of their weight and are cut like it, so call the function for each of the three. The number of steps is
    the same on all ranks; it is copied, not cut.
    """
    parts = [read(0, 0, 0)]  # no rows: a rank may get none
    # yours
    size = rows // stacked
    start, end = part_of(size, new, place)
    for i in range(stacked):
        for r in range(old):
            first, after = part_of(size, old, r)
            begin = i * (after - first)
            a, b = max(start, first), min(end, after)
            if a < b:
                parts.append(read(r, begin + a - first, begin + b - first))
    # end
    return torch.cat(parts)
