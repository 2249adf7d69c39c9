"""Exercises of lesson 14c, the exam: five broken programs that no lesson has shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from labkit.grading.inputs import counting, draws
from labkit.grading.promises import Calls, Messages

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, rank, torch, world_size


# -- A: clipping --------------------------------------------------------------------------------------------------


def _clipped(xs: Sequence[Any], limit: float) -> list[Any]:
    mean = np.mean(xs, axis=0, dtype="float64")
    norm = float(np.linalg.norm(mean))
    return [(mean * min(1.0, limit / norm if norm else 1.0)).astype("float32")] * len(xs)


def _gradients(n: int) -> list[Case]:
    steep = [np.array([3.0, 4.0], dtype="float32") * (r + 1) for r in range(n)]
    opposite = [np.array([6.0, 8.0], dtype="float32") * (-1) ** r * (2 if r == 0 else 1) for r in range(n)]
    return [
        Case(steep, "a steep gradient", {"limit": 1.0}),
        Case(steep, "a limit that is not reached", {"limit": 100.0}),
        Case(opposite, "large gradients that nearly cancel", {"limit": 5.0}),
        Case(draws(n, 50, seed=14), "50 numbers", {"limit": 0.5}),
    ]


def broken_exam_clip(gradient, limit):
    """Return the mean gradient of all ranks, clipped to the norm limit."""
    scale = torch.clamp(limit / gradient.norm(), max=1.0)
    mean = gradient.clone()
    dist.all_reduce(mean)
    mean /= world_size
    return mean * scale


@exercise(
    "Program A: clip the gradient",
    _clipped,
    minutes=6,
    difficulty=2,
    inputs=_gradients,
    keeps_input=True,
    promises=(Calls(1),),
    specimen=broken_exam_clip,
)
def exam_clip(gradient, limit):
    """Return the mean gradient of all ranks, clipped to the norm limit.

    `gradient` is one rank's gradient, a vector. Return the **mean gradient of all ranks, clipped**: if its norm is
    larger than `limit`, scaled down to that norm; otherwise as it is. All ranks return the same numbers. `gradient`
    stays as it is. One call is enough.
    Hint: Is `scale` the same number on all ranks? What becomes of weights that get different updates?
    Hint: Which gradient's norm has to be held against the limit, and when is that gradient known?
    Afterwards: Clip what is the same on all ranks: the averaged gradient, after the all-reduce. With shards of a model
    it is the other way round: there the squares of the norms are summed over the ranks first.
    """
    mean = gradient.clone()
    dist.all_reduce(mean)
    mean /= world_size
    return mean * torch.clamp(limit / mean.norm(), max=1.0)


# -- B: the edges of a strip --------------------------------------------------------------------------------------


def _edges(xs: Sequence[Any]) -> list[Any]:
    n = len(xs)
    return [np.concatenate([xs[r - 1][-1:], xs[r], xs[(r + 1) % n][:1]]) for r in range(n)]


def _strips(n: int) -> list[Case]:
    return [
        Case(counting(n, 3), ""),
        Case(counting(n, 1), "one number on each rank, which is both edges"),
        Case(draws(n, 40, seed=3), "40 numbers"),
        Case(draws(n, 5, "float64", 4), "float64"),
    ]


def broken_exam_edges(x):
    """Return the strip between its two neighbours' edges."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    before, after = torch.empty_like(x[:1]), torch.empty_like(x[:1])
    sent = [
        dist.isend(x[:1], dst=left, tag=0),
        dist.isend(x[-1:], dst=right, tag=1),
    ]
    dist.recv(before, src=left, tag=0)
    dist.recv(after, src=right, tag=1)
    for work in sent:
        work.wait()
    return torch.cat([before, x, after])


@exercise(
    "Program B: the edges of a strip",
    _edges,
    minutes=7,
    difficulty=2,
    inputs=_strips,
    ranks=(4, 2, 3),
    keeps_input=True,
    promises=(Messages(2),),
    specimen=broken_exam_edges,
)
def exam_edges(x):
    """Return the strip between its two neighbours' edges.

    A long row of numbers is cut into strips, and `x` is this rank's strip. The strips form a ring: the last rank is the
    left neighbour of rank 0. Return the strip with one more number at each end: in front of it the last number of the
    left neighbour's strip, behind it the first one of the right neighbour's. `x` stays as it is. Two messages from each
    rank are enough. It must work with two ranks, too, where both neighbours are the same rank.
    Hint: Write down the two messages that rank 1 sends: to whom, and with which tag. Then the two that rank 2 expects.
    Hint: What comes from the left has travelled to the right. Which tag did its sender give it?
    Afterwards: The two sides of a message have to agree on its tag: name it after the direction in which the message
    travels, not after the side on which it lies. Gloo compares tags. NCCL ignores them (pytorch#94819, #125079) and
    takes the messages between two ranks in the order in which they were sent. So this solution receives in that order.
    It also starts all four in one call, because an exchange of single calls can hang on NCCL.
    """
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    before, after = torch.empty_like(x[:1]), torch.empty_like(x[:1])
    exchange = [
        dist.P2POp(dist.isend, x[:1], left, tag=0),
        dist.P2POp(dist.isend, x[-1:], right, tag=1),
        dist.P2POp(dist.irecv, after, right, tag=0),
        dist.P2POp(dist.irecv, before, left, tag=1),
    ]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    return torch.cat([before, x, after])


# -- C: load the weights ------------------------------------------------------------------------------------------


def _loaded(xs: Sequence[Any]) -> list[Any]:
    return [xs[0].T] * len(xs)


def _weights(n: int) -> list[Case]:
    def case(shape: tuple[int, int], about: str) -> Case:
        return Case([x.reshape(shape) for x in counting(n, shape[0] * shape[1])], about)

    return [
        case((2, 3), ""),
        case((3, 3), "a square matrix"),
        case((1, 4), "a single column"),
        case((5, 8), "5 times 8"),
    ]


def broken_exam_load(stored):
    """Return the transpose of rank 0's matrix."""
    if rank == 0:
        weight = stored.clone().t()
    else:
        weight = torch.empty(stored.shape[1], stored.shape[0], device=device)
    dist.broadcast(weight, src=0)
    return weight


@exercise(
    "Program C: load the weights",
    _loaded,
    minutes=5,
    difficulty=2,
    inputs=_weights,
    keeps_input=True,
    promises=(Calls(1),),
    specimen=broken_exam_load,
)
def exam_load(stored):
    """Return the transpose of rank 0's matrix.

    Rank 0 has read a matrix from a checkpoint that keeps it transposed: `stored` has the rows where the model has
    columns. (The other ranks bring a matrix of the same shape, with other numbers.) Return the model's `weight`, the
    transpose of **rank 0's** `stored`, on every rank. `stored` stays as it is. One call is enough.
    Hint: Which rank is right? Compare what rank 1 holds with rank 0's `stored`, number by number, in their order.
    Hint: `print(weight.shape, weight.stride())` on each rank. Which of the two does a message carry?
    Afterwards: `t()` moves no number: it only changes the order in which the same memory is read. Gloo's broadcast
    sends the memory, and each rank reads it in its own order (pytorch#192920; #107352 for scatter). `.contiguous()`
    puts the numbers in order first. `.clone()` after `.t()` does not: it keeps the strides. NCCL in PyTorch refuses
    such a tensor.
    """
    if rank == 0:
        weight = stored.t().contiguous()
    else:
        weight = torch.empty(stored.shape[1], stored.shape[0], device=device)
    dist.broadcast(weight, src=0)
    return weight


# -- D: accuracy --------------------------------------------------------------------------------------------------


def _accuracy(xs: Sequence[Any], rows: int) -> list[Any]:
    dealt = np.stack(xs, axis=1).reshape(-1)[:rows]  # row i is on rank i % n
    return [np.float32(dealt.mean())] * len(xs)


def _hits(n: int) -> list[Case]:
    def case(rows: int, about: str, seed: int) -> Case:
        hits = np.random.default_rng([seed, n]).integers(0, 2, rows).astype("float32")
        each = -(-rows // n)
        hits[0] = 1.0
        padded = np.concatenate([hits, np.resize(hits, each * n - rows)])
        return Case([padded[r::n].copy() for r in range(n)], about, {"rows": rows})

    cases = [case(n + 1, "one row more than ranks", 1), case(3 * n, "rows that can be dealt out evenly", 2)]
    return [*cases, case(10 * n + 1, "the last row is on rank 0 alone", 3), case(5, "five rows", 5)]


def broken_exam_accuracy(hits, rows):
    """Return the accuracy over the rows of the test set."""
    accuracy = hits.mean()
    dist.all_reduce(accuracy)
    return accuracy / world_size


@exercise(
    "Program D: the accuracy",
    _accuracy,
    minutes=6,
    difficulty=2,
    inputs=_hits,
    tolerance=1e-5,
    promises=(Calls(1),),
    specimen=broken_exam_accuracy,
)
def exam_accuracy(hits, rows):
    """Return the accuracy over the rows of the test set.

    A sampler dealt out the `rows` rows of a test set in turn, row i to rank i % world_size, and saw to it that all
    ranks have equally many. `hits` has a 1 for each row of this rank that was predicted right, in their order, and a 0
    for each other one. Return the accuracy over the `rows` rows of the test set, a tensor with one number, on every
    rank. One call is enough.
    Hint: Count the rows that all ranks have together. Is it `rows`?
    Hint: Row i is on rank i % world_size at place i // world_size. Which places of this rank are real rows?
    Afterwards: `DistributedSampler` repeats rows, which does no harm in training, and shifts every metric. The smaller
    the test set and the more ranks, the more. No tool finds it: count the rows.
    """
    mine = len(range(rank, rows, world_size))  # without repeated rows
    right = hits[:mine].sum()
    dist.all_reduce(right)
    return right / rows


# -- E: deal out --------------------------------------------------------------------------------------------------


def _dealt(xs: Sequence[Any]) -> list[Any]:
    n = len(xs)
    each = -(-len(xs[0]) // n)
    return list(np.concatenate([xs[0], np.zeros(each * n - len(xs[0]), xs[0].dtype)]).reshape(n, each))


def _rows(n: int) -> list[Case]:
    return [
        Case(counting(n, 2 * n), "rows that can be dealt out evenly"),
        Case(counting(n, 2 * n + 1), "one row too many"),
        Case(counting(n, 1), "one row"),
        Case(draws(n, 3 * n - 1, seed=5), "one row too few"),
    ]


def broken_exam_deal(x):
    """Return this rank's rows of rank 0's x."""
    each = -(-len(x) // world_size)  # rounded up
    mine = x.new_empty(each)
    parts = list(x.chunk(world_size)) if rank == 0 else None
    dist.scatter(mine, parts, src=0)
    return mine


@exercise(
    "Program E: deal out the rows",
    _dealt,
    minutes=6,
    inputs=_rows,
    ranks=(4, 3),
    keeps_input=True,
    promises=(Calls(1),),
    specimen=broken_exam_deal,
)
def exam_deal(x):
    """Return this rank's rows of rank 0's x.

    Rank 0 deals out its `x`, one number a row: the first rows to rank 0, the next ones to rank 1, and so on,
    `ceil(len(x) / world_size)` rows to each. Where the rows run out, zeros fill up the rest. Return this rank's rows.
    (`x` is equally long on all ranks, and only rank 0's numbers count.) `x` stays as it is. One call is enough.
    Hint: What is `len(parts)` for 9 rows and 4 ranks? Try `[len(part) for part in torch.arange(9).chunk(4)]`.
    Hint: Fill `x` up with zeros first: then every part has the same length, and there are enough of them.
    Afterwards: `chunk(4)` gives four parts at most: 9 rows in parts of 3 are three (pytorch#145026). `tensor_split(4)`
    always gives four, of different lengths, which `scatter` does not take either. Where the rows can be dealt out
    evenly all three are the same, and the test passes.
    """
    each = -(-len(x) // world_size)  # rounded up
    mine = x.new_empty(each)
    full = x.new_zeros(each * world_size)
    full[: len(x)] = x
    parts = list(full.chunk(world_size)) if rank == 0 else None
    dist.scatter(mine, parts, src=0)
    return mine
