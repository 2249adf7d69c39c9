"""The exercise at the end of lesson 13: parts of unequal cost, dealt out by what all ranks have timed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from workbook.lesson13 import normal

if TYPE_CHECKING:
    from labkit.rank.seen import dist, rank, recorder, world_size


def slowest(costs: Sequence[float], ranks: int) -> float:
    """The least time that the slowest of so many ranks can take, each with neighbouring parts, by trying all cuts.

    >>> slowest([1, 1, 4], 2)
    4
    """
    n = len(costs)
    ways = (pairs(cuts, n) for cuts in combinations(range(1, n), ranks - 1))
    return min(max(sum(costs[a:b]) for a, b in way) for way in ways)


def pairs(cuts: Sequence[int], n: int) -> list[tuple[int, int]]:
    """From where to where each rank's parts go."""
    return list(zip((0, *cuts), (*cuts, n), strict=True))


def _balanced(xs: Sequence[Any]) -> list[Any]:
    costs = np.mean(xs, axis=0).tolist()
    return [{"slowest rank": slowest(costs, len(xs))} for _ in xs]


def _timed(n: int) -> list[Case]:
    def case(about: str, seed: int, costs: Sequence[float], noise: float) -> Case:
        rng = normal(n, seed)
        return Case([np.array(costs) * rng.uniform(1 - noise, 1 + noise, len(costs)) for _ in range(n)], about)

    return [
        Case([np.array([1.0, 2, 2, 2, 2, 6]) for _ in range(n)], "the output takes as long as three layers"),
        case("twelve parts, timed by clocks that differ a little", 40, [0.5, *[2.0] * 10, 5.0], 0.2),
        case("twelve parts, timed by clocks that differ much", 41, [3.0, *[2.0] * 10, 3.0], 0.9),
        Case([np.array([9.0, 1, 1, 1, 1, 1, 1, 1]) for _ in range(n)], "one part takes longer than all others"),
        case(f"{n} parts, one for each rank", 42, [1.0] * n, 0.5),
        case("fourteen parts of random cost", 43, [*normal(1, 44).uniform(0.2, 4, 14)], 0.3),
    ]


def run_balanced_parts(balanced_parts, seconds):
    mine = balanced_parts(seconds)
    assert isinstance(mine, (list, tuple, range)), "It returns no list."
    everyone, clocks = [None] * world_size, [None] * world_size
    with recorder.paused():
        dist.all_gather_object(everyone, [int(i) for i in mine])
        dist.all_gather_object(clocks, seconds.tolist())
    for r, parts in enumerate(everyone):
        assert parts, f"Rank {r} gets no part."
        assert parts == list(range(parts[0], parts[-1] + 1)), f"The parts of rank {r} are no neighbours: {parts}."
    each = [part for parts in everyone for part in parts]
    twice = sorted({part for part in each if each.count(part) > 1})
    assert not twice, f"More than one rank has part {twice[0]}. All ranks have to cut by the same numbers."
    assert each == sorted(each), "The ranks' parts are not in the order of the ranks."
    costs = [sum(column) / world_size for column in zip(*clocks)]
    missing = [i for i in range(len(costs)) if i not in each]
    assert not missing, f"Nobody has part {missing[0]}. All ranks have to cut by the same numbers."
    return {"slowest rank": max(sum(costs[i] for i in parts) for parts in everyone)}


@exercise(
    "Stages that are equally slow",
    _balanced,
    minutes=20,
    difficulty=3,
    inputs=_timed,
    tolerance=1e-9,
    counts_memory=False,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 1),
    harness=run_balanced_parts,
)
def balanced_parts(seconds):
    """Return the numbers of the parts that I get.

    The model is a chain of parts that do not take equally long. Every rank has timed all of them, and `seconds[i]` is
    what **its own** clock says of part i. Return the list of the numbers of the parts that this rank gets. Each rank
    gets neighbouring parts, at least one, rank 0 the first ones; each part is on exactly one rank; and the slowest rank
    is as fast as it can be, by the **mean** of what all ranks have timed. There are at least as many parts as ranks.

    In the picture: what each rank has timed, and what the slowest rank takes. (The check asks what the ranks return,
    and adds up.)
    Hint: If two ranks cut by different numbers, a part may be on both of them, or on none. What has to come first?
    Hint: After an all-reduce all ranks have the same numbers, to the last bit, and each can compute the cut alone.
    Hint: For k ranks and the parts before `end`: try every place for the last cut. The slowest is then the larger one
    of the best for k − 1 ranks before the cut, and of what lies behind it. Begin with k = 1.
    Afterwards: Every rank computes the same cut by itself, because all begin with the same bits. DeepSpeed's
    `partition_method` and Megatron-LM's options for the first and the last stage do this by counts of parameters or
    layers. Uneven layers are why real bubbles are larger than the formula's.
    """
    costs = seconds.clone()
    dist.all_reduce(costs)  # the same numbers on all ranks
    costs = costs.tolist()
    best = {end: (sum(costs[:end]), [0]) for end in range(1, len(costs) + 1)}  # one rank has all parts before `end`
    for ranks in range(1, world_size):
        best = {
            end: min((max(best[cut][0], sum(costs[cut:end])), [*best[cut][1], cut]) for cut in range(ranks, end))
            for end in range(ranks + 1, len(costs) + 1)
        }
    begins = [*best[len(costs)][1], len(costs)]
    return list(range(begins[rank], begins[rank + 1]))
