"""Exercises of lesson 08 on statistics that merge: the variance, the largest and its place, a softmax in one trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.promises import Calls
from workbook.lesson08 import A_FEW, softmax_cases, softmax_parts

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, rank, torch, world_size


def _spreads(n: int) -> list[Case]:
    rng = np.random.default_rng([8, 2, n])
    sizes = [r + 1 for r in range(n)]

    def draws(sizes: Sequence[int], level: float, dtype: str = "float64") -> list[Any]:
        return [(level + rng.integers(-5, 6, size) + r).astype(dtype) for r, size in enumerate(sizes)]

    return [
        Case([np.array([10.0 * r - 1, 10.0 * r + 1], dtype="float32") for r in range(n)], "two numbers a rank"),
        Case(draws(sizes, 0, "float32"), "uneven shards"),
        Case(draws([0, *sizes[1:]], 20, "float32"), "rank 0 has none"),
        Case(draws([3] * n, 10_000, "float32"), "float32 near 10,000"),
        Case(draws(sizes[::-1], 1e9), "float64 near 1,000,000,000"),
        Case([np.full(s, 7.0) for s in sizes], "no spread at all"),
        Case(draws([150] * n, -70), "150 numbers a rank"),
    ]


@exercise(
    "A variance that survives a large mean",
    lambda xs: [np.concatenate(xs).astype("float64").var()] * len(xs),
    inputs=_spreads,
    minutes=12,
    difficulty=2,
    budget=A_FEW,
    tolerance=1e-6,
    least=Least(rounds=lambda n: 1),
)
def distributed_variance(x):
    """Return the variance of all ranks' numbers, as float64, on every rank.

    Rank r has some numbers in `x`, perhaps none. Return the variance of **all** numbers (the mean squared distance from
    the common mean, as `var(correction=0)`) as a float64 tensor of one number, on every rank. It must also be right
    where the numbers are near 10⁹ and differ by 1. The numbers themselves stay where they are: a rank sends a few.
    Hint: In float64 the square of 10⁹ keeps steps of 128. Subtract a mean before you square.
    Hint: Two ways: all-reduce the mean first, then the squared distances from it. Or bring count, own mean and own
    squared distances together, and merge.
    Hint: Merging: the parts' squared distances add up, plus count · (own mean − common mean)² for each part.
    Afterwards: With sums of squares in float32, nothing would be left of a variance near 1 already at a mean of 10,000:
    the squares are near 10⁸, where float32 is rounded to multiples of 8. `torch.nn.SyncBatchNorm` makes one call: it
    gathers mean, deviation and count of every rank, and merges these parts.
    """
    x = x.double()
    mean = x.sum() / max(len(x), 1)
    part = torch.stack([torch.full_like(mean, len(x)), mean, ((x - mean) ** 2).sum()])
    parts = [torch.empty_like(part) for _ in range(world_size)]
    dist.all_gather(parts, part)
    counts, means, spreads = torch.stack(parts).T
    mean = (counts * means).sum() / counts.sum()
    return (spreads + counts * (means - mean) ** 2).sum() / counts.sum()


def _argmax(xs: Sequence[Any]) -> list[Any]:
    each = [(value, r, place) for r, x in enumerate(xs) for place, value in enumerate(x.tolist())]
    return [max(each, key=lambda found: found[0])] * len(xs)  # the first of equals


def _scores(n: int) -> list[Case]:
    rng, last, big = np.random.default_rng([8, 3, n]), n - 1, 2**53

    def draws(sizes: Sequence[int], low: int, high: int, dtype: str = "float32") -> list[Any]:
        return [rng.integers(low, high, size).astype(dtype) for size in sizes]

    return [
        Case([np.array([3.0, 1.0 + 4 * r, 2.0], dtype="float32") for r in range(n)], "one largest"),
        Case([np.array([1.0, 5.0 * (r > 0), 5.0, 0.0], dtype="float32") for r in range(n)], "ties"),
        Case([np.array([2.0, 7.0, 7.0][: 3 if r == last else 1], dtype="float32") for r in range(n)], "uneven, a tie"),
        Case(draws(list(range(n)), -90, -9), "rank 0 has nothing, and all numbers are negative"),
        Case(draws([3] + [0] * last, -90, -9, "float64"), "only rank 0 has something"),
        Case([np.full(2, -np.inf, dtype="float32") for _ in range(n)], "−inf everywhere"),
        Case([np.array([big, big + r], dtype="int64") for r in range(n)], "integers that no float64 tells apart"),
        Case(draws([400] * n, 0, 50), "many ties"),
    ]


@exercise(
    "The largest, who has it, and where",
    _argmax,
    inputs=_scores,
    minutes=15,
    difficulty=2,
    tolerance=0.0,
    least=Least(rounds=lambda n: 1),  # the value's bits and its place in one tensor
)
def distributed_argmax(x):
    """Return (largest value, its rank, its place there) on every rank; in a tie the first.

    Every rank brings a flat tensor `x` of any length, also of none, floats or int64, without `nan`. Return `(value,
    rank, place)` on every rank, as Python numbers: the largest value of all, the rank that has it, and its place there.
    In a tie the **lowest rank** wins, and on it the **lowest place**.
    Hint: Two all-reduces: `MAX` of the values, then `MIN` of an offer. What does a rank offer that has not got the
    maximum?
    Hint: (rank, place) as one int64 that sorts like the pair: `rank << 40` plus the place. `world_size << 40` loses
    against all of them.
    Hint: `(x == best).nonzero()` has the places, and none for an empty shard. For the maximum of nothing take −inf, or
    `torch.iinfo(x.dtype).min`.
    Afterwards: Rank and place in one sortable number: MPI's `MAXLOC` does it for pairs, with the same rule for ties.
    Keep places in int64: a float32 holds every whole number only up to 16,777,216, and a table of tokens and words has
    more places than that.
    """
    smallest = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    best = x.max() if len(x) else torch.tensor(smallest, dtype=x.dtype, device=x.device)
    dist.all_reduce(best, op=dist.ReduceOp.MAX)

    offers = torch.tensor([world_size << 40], device=x.device)
    places = (x == best).nonzero().flatten()
    first = torch.cat([offers, (rank << 40) + places]).min()
    dist.all_reduce(first, op=dist.ReduceOp.MIN)
    return best.item(), first.item() >> 40, first.item() & (2**40 - 1)


@exercise(
    "A softmax with one collective",
    softmax_parts,
    inputs=softmax_cases,
    minutes=12,
    difficulty=2,
    promises=(Calls(1),),
    budget=A_FEW,
    tolerance=1e-4,
    least=Least(rounds=lambda n: 1),
)
def softmax_in_one_trip(x):
    """Return this rank's part of the softmax over all ranks' x.

    The same softmax as in the lesson, with **one** call that communicates: each rank brings a flat `x`, of any length,
    also of none, with −inf where something is masked (not everywhere). Return this rank's part of the softmax over
    **all** of them. Gather no logits: a rank sends one or two numbers.

    The global maximum is not known before the call, so a rank can only take its **own** maximum off before it adds up.
    What must it send, so that the others can correct that? And what is −inf − (−inf)?
    Hint: A sum of exp(x − a) becomes one of exp(x − b) if you multiply it by exp(a − b).
    Hint: Send the pair (own maximum, sum of exp(x − own maximum)) in an all-gather. Scale each sum by exp(its maximum −
    the largest), and add.
    Hint: A rank whose logits are all −inf takes off 0 instead: then its sum is 0. So is that of an empty one, whose
    maximum is −inf.
    Afterwards: Any two such pairs merge into one, in any order. FlashAttention goes through a row in this way, block by
    block, and ring attention does so rank by rank. `logsumexp` folds a pair into one number, at the price of a few
    digits.
    """
    top = x.max() if len(x) else torch.tensor(-torch.inf, dtype=x.dtype, device=x.device)
    shift = top if top > -torch.inf else torch.zeros_like(top)
    pair = torch.stack([top, (x - shift).exp().sum()])
    pairs = [torch.empty_like(pair) for _ in range(world_size)]
    dist.all_gather(pairs, pair)
    tops, sums = torch.stack(pairs).T
    return (x - tops.max()).exp() / (sums * (tops - tops.max()).exp()).sum()
