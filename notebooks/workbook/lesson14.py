"""Exercises of lesson 14: six programs of the clinic, each broken as it was found, to be repaired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from labkit.grading.promises import Calls

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, rank, torch, world_size


# -- rank 0 validates ---------------------------------------------------------------------------------------------


def _validated(xs: Sequence[Any]) -> list[Any]:
    sums = sum(gradients for gradients, _ in xs)
    scores = (sums * xs[0][1]).sum(-1)
    return [(sums, scores)] * len(xs)


def _steps(n: int) -> list[Case]:
    def case(steps: int, size: int, about: str, seed: int) -> Case:
        rng = np.random.default_rng([seed, n, 14])
        rows = [rng.integers(-8, 9, (steps, size)).astype("float32") for _ in range(n)]
        held = [rng.integers(1, 5, size).astype("float32") * (r == 0) for r in range(n)]  # rank 0 alone has the data
        return Case(list(zip(rows, held, strict=True)), about)

    return [case(2, 2, "", 0), case(1, 3, "a single step", 1), case(5, 40, "five steps", 2)]


def broken_train_and_validate(gradients, held_out):
    """Return the summed gradients of each step, and rank 0's scores."""
    sums, scores = [], []
    for gradient in gradients:
        total = gradient.clone()
        dist.all_reduce(total)
        sums.append(total)
        if rank == 0:
            score = (total * held_out).sum()
            dist.broadcast(score, src=0)  # tell everybody
            scores.append(score)
    return torch.stack(sums), torch.stack(scores)


@exercise("Rank 0 validates", _validated, minutes=5, inputs=_steps, specimen=broken_train_and_validate)
def train_and_validate(gradients, held_out):
    """Return the summed gradients of each step, and rank 0's scores.

    `gradients` has one row for each step. In each step, all ranks sum their rows, and rank 0 validates: it multiplies
    the sum with `held_out`, which **only rank 0 has** (the others bring zeros), and tells the score to everybody.
    Repair the function: **on every rank** return the sums and the scores of all steps, two tensors. Two calls a step
    are enough.
    Hint: Which calls does rank 0 make in a step, in their order? Which ones does rank 1 make?
    Hint: A collective belongs to all ranks of its group. What only rank 0 does may stand in an `if`, but not the call.
    Hint: The other ranks need a tensor to receive into: of the same shape and dtype as rank 0's score.
    Afterwards: Leave the work in `if rank == 0:` and take the call out of it. The same holds for a `barrier`, for a
    `state_dict()` of a sharded model, which communicates inside, and for a logger that averages before it prints.
    """
    sums, scores = [], []
    for gradient in gradients:
        total = gradient.clone()
        dist.all_reduce(total)
        sums.append(total)
        score = (total * held_out).sum()  # it counts on rank 0 only
        dist.broadcast(score, src=0)
        scores.append(score)
    return torch.stack(sums), torch.stack(scores)


# -- stop early ---------------------------------------------------------------------------------------------------


def _until_worse(xs: Sequence[Any]) -> list[Any]:
    mean = np.mean([np.asarray(x, dtype="float64") for x in xs], axis=0)
    worse = np.flatnonzero(mean[1:] > mean[:-1])
    kept = mean[: worse[0] + 1] if len(worse) else mean
    return [kept.astype("float32")] * len(xs)


def _curves(n: int) -> list[Case]:
    down = np.array([8, 6, 5, 4, 3], dtype="float32")
    bump = np.zeros(5, dtype="float32")
    bump[2] = 2  # one rank's loss gets worse, the mean does not
    one = [down + bump * (r == n - 1) for r in range(n)]
    early = [np.array([4 + r, 3 + r, 9, 2, 1], dtype="float32") for r in range(n)]
    return [
        Case(one, "one rank's loss gets worse, the mean does not"),
        Case(early, "worse on every rank at the third step"),
        Case([down + r for r in range(n)], "never worse"),
        Case([np.array([5.0 + r], dtype="float32") for r in range(n)], "a single step"),
    ]


def broken_train_until_worse(losses):
    """Return the mean losses of all steps before the first one that is worse."""
    history, before = [], torch.inf
    for loss in losses:
        if loss > before:
            break
        mean = loss.clone()
        dist.all_reduce(mean)
        history.append(mean / world_size)
        before = loss
    return torch.stack(history)


@exercise("Stop when it gets worse", _until_worse, minutes=5, inputs=_curves, specimen=broken_train_until_worse)
def train_until_worse(losses):
    """Return the mean losses of all steps before the first one that is worse.

    `losses` holds this rank's validation loss after each step, at least one. Training ends before the first step whose
    loss is worse (larger) than that of the step before it. Repair the function: what counts is the **mean** over the
    ranks. Return the mean losses up to there, without the worse one, a tensor, on every rank.
    Hint: Which number decides whether a rank goes on? Is it the same one on all ranks?
    Hint: After an all-reduce all ranks hold the same number. Decide on that one.
    Afterwards: Every decision about going on has to be taken from a number that is the same on all ranks: an early
    stop, a skipped step after an overflow, the end of the data, a time limit. Where the ranks may differ, all-reduce a
    flag first.
    """
    history, before = [], torch.inf
    for loss in losses:
        mean = loss.clone()
        dist.all_reduce(mean)
        mean /= world_size
        if mean > before:
            break
        history.append(mean)
        before = mean
    return torch.stack(history)


# -- the last batch -----------------------------------------------------------------------------------------------


def _all_mean(xs: Sequence[Any]) -> list[Any]:
    every = np.concatenate([np.asarray(x, dtype="float64") for x in xs])
    return [np.float32(every.mean())] * len(xs)


def _batches(n: int) -> list[Case]:
    def case(sizes: Sequence[int], about: str) -> Case:
        return Case([np.arange(1, k + 1, dtype="float32") * (r + 1) for r, k in enumerate(sizes)], about)

    return [
        case([4] * (n - 1) + [2], "the last rank has fewer rows"),
        case([3] * n, "the same number of rows"),
        case([6, *range(1, n)], "a different number on each rank"),
        case([5] * (n - 1) + [0], "the last rank has none left"),
    ]


def broken_mean_loss(losses):
    """Return the mean loss of all rows of all ranks."""
    total = losses.clone()
    dist.all_reduce(total)
    return total.mean() / world_size


@exercise(
    "The last batch",
    _all_mean,
    minutes=5,
    inputs=_batches,
    tolerance=1e-5,
    promises=(Calls(1),),
    specimen=broken_mean_loss,
)
def mean_loss(losses):
    """Return the mean loss of all rows of all ranks.

    `losses` holds the losses of this rank's rows. In the last batch the ranks have **different numbers of rows**,
    perhaps none. Repair the function: return the mean over all rows of all ranks, a tensor with one number, on every
    rank. One call is enough.
    Hint: All ranks have to bring tensors of the same length. Which few numbers must a rank bring for a mean?
    Hint: The sum of its losses and how many they are: two numbers, in one tensor.
    Afterwards: An all-reduce of unequal lengths is never right. Gloo adds what it finds, in pieces that do not fit
    together; some ranks wait for bytes that nobody sends, and others go on with wrong numbers.
    """
    both = torch.stack([losses.sum(), torch.tensor(float(len(losses)), device=device)])
    dist.all_reduce(both)
    return both[0] / both[1]


# -- float64 ------------------------------------------------------------------------------------------------------


def _float_sum(xs: Sequence[Any]) -> list[Any]:
    return [np.sum([np.asarray(x, dtype="float64") for x in xs], axis=0).astype("float32")] * len(xs)


def _mixed(n: int) -> list[Case]:
    def case(size: int, about: str, wide: int) -> Case:
        xs = [(np.arange(size) + 10 * (r + 1)).astype("float64" if r == wide % n else "float32") for r in range(n)]
        return Case(xs, about)

    same = [np.arange(3, dtype="float32") + r for r in range(n)]
    return [case(4, "the last rank brings float64", -1), case(1, "rank 0 does", 0), Case(same, "all bring float32")]


def broken_sum_in_float32(x):
    """Return everyone's sum."""
    total = x.clone()
    dist.all_reduce(total)
    return total


@exercise("A number from numpy", _float_sum, minutes=3, inputs=_mixed, keeps_input=True, specimen=broken_sum_in_float32)
def sum_in_float32(x):
    """Return everyone's sum.

    One rank's `x` came from numpy, and numpy's numbers are **float64**; the others' are float32. Repair the function:
    return the sum over all ranks as float32, on every rank. `x` stays as it is.
    Hint: What do the ranks have to agree on before a collective, besides the call and the length?
    Hint: `x.to(torch.float32)` converts. Does it copy, too, where there is nothing to convert?
    Afterwards: Every rank counts bytes as its own dtype says. Where the sizes differ, Gloo ends the process (SIGABRT);
    where they are equal, as with int32 and float32, it hands out garbage and says nothing.
    """
    total = x.to(torch.float32, copy=True)
    dist.all_reduce(total)
    return total


# -- two sums -----------------------------------------------------------------------------------------------------


def _two_sums(xs: Sequence[Any]) -> list[Any]:
    return [(sum(a for a, _ in xs), sum(b for _, b in xs))] * len(xs)


def _pairs(n: int) -> list[Case]:
    def case(size: int, about: str) -> Case:
        ones = [np.full(size, r + 1, dtype="float32") for r in range(n)]
        return Case([(x, 100 * np.ones(size, dtype="float32")) for x in ones], about)

    return [case(1, ""), case(3, "three numbers each"), case(0, "empty")]


def broken_log_sums(loss, rows):
    """Return the sums of loss and of rows over all ranks."""
    loss, rows = loss.clone(), rows.clone()
    if rank == 0:
        dist.all_reduce(rows)  # the log wants it first
        dist.all_reduce(loss)
    else:
        dist.all_reduce(loss)
        dist.all_reduce(rows)
    return loss, rows


@exercise(
    "Rank 0 logs first",
    _two_sums,
    minutes=3,
    inputs=_pairs,
    keeps_input=True,
    promises=(Calls(2),),
    specimen=broken_log_sums,
)
def log_sums(loss, rows):
    """Return the sums of loss and of rows over all ranks.

    Sum `loss` over the ranks, and sum `rows` over the ranks; both have the same shape. Rank 0 needs `rows` first, for
    its log. Repair the function: return both sums, `loss` and `rows`, on every rank. Both stay as they are. Two calls
    are enough.
    Hint: The first call of one rank meets the first call of the others, whatever the variable is called there.
    Hint: All ranks can sum the rows first. Nothing is lost by that.
    Afterwards: Calls meet by their order. Two that differ in shape or kind may hang or complain; two that look alike
    mix their numbers, and nobody says a word.
    """
    loss, rows = loss.clone(), rows.clone()
    dist.all_reduce(rows)
    dist.all_reduce(loss)
    return loss, rows


# -- an old setting -----------------------------------------------------------------------------------------------


def _by_rank_0(xs: Sequence[Any]) -> list[Any]:
    values = np.stack([np.asarray(x) for x, _ in xs])
    return [values.max(0) if int(xs[0][1][0]) else values.sum(0)] * len(xs)


def _settings(n: int) -> list[Case]:
    def case(settings: Sequence[int], about: str) -> Case:
        xs = [np.array([10.0**r, 2.0], dtype="float32") for r in range(n)]
        return Case([(x, np.array([s], dtype="int64")) for x, s in zip(xs, settings, strict=True)], about)

    return [
        case([0] * (n - 1) + [1], "rank 0 says sum, the last rank says maximum"),
        case([1] + [0] * (n - 1), "rank 0 says maximum, the others say sum"),
        case([0] * n, "all say sum"),
        case([1] * n, "all say maximum"),
    ]


def broken_reduce_as_set(x, maximum):
    """Return everyone's maximum, or everyone's sum."""
    total = x.clone()
    if maximum.item():
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total


@exercise(
    "An old settings file",
    _by_rank_0,
    minutes=5,
    inputs=_settings,
    keeps_input=True,
    promises=(Calls(2),),
    specimen=broken_reduce_as_set,
)
def reduce_as_set(x, maximum):
    """Return everyone's maximum, or everyone's sum.

    Each rank read `maximum` from a settings file on its own host: an int64 tensor with one number, 1 for the maximum, 0
    for the sum. **One host has an old file.** Repair the function: what rank 0 has read counts. Return the sum or the
    maximum of `x` over all ranks, on every rank. `x` stays as it is. Two calls are enough.
    Hint: The settings differ, so the ranks have to agree on one before they use it.
    Hint: `dist.broadcast(setting, src=0)` gives all of them rank 0's. Broadcast a copy, if you want to keep your own.
    Afterwards: Read settings on one rank and broadcast them, or compare a digest of them at the start. The operation,
    the root and the order of the calls are in no message: Gloo and NCCL trust you.
    """
    total, setting = x.clone(), maximum.clone()
    dist.broadcast(setting, src=0)
    if setting.item():
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total
