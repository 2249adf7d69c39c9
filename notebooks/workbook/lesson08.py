"""Exercises of lesson 08: an evaluation, a softmax, a split loss and a batch norm over all ranks, merged statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Budget, Case, Least, exercise
from labkit.grading.promises import Calls, Once
from labkit.theory.record import Record

if TYPE_CHECKING:
    from labkit.rank.cell_names import comms, dist, rank, torch, world_size


# A few float64 numbers to or from every rank; who moves the data itself sends more in the larger inputs.
A_FEW = Budget(sent=lambda n, S: 64.0 * n)


def _mean(xs: Sequence[Any]) -> list[Any]:
    rows = np.concatenate(xs).astype("float64")
    with np.errstate(invalid="ignore"):
        return [rows.sum(0) / len(rows)] * len(xs)


def _tables(n: int) -> list[Case]:
    rng = np.random.default_rng([8, 1, n])

    def tables(sizes: Sequence[int], dtype: str = "float32", columns: int = 2) -> list[Any]:
        return [rng.integers(-50, 51, (size, columns)).astype(dtype) for size in sizes]

    sizes = [r + 1 for r in range(n)]
    return [
        Case([np.full((s, 2), [10.0 * r, 1.0], dtype="float32") for r, s in enumerate(sizes)], "uneven shards"),
        Case(tables([2] * n), "even shards"),
        Case(tables([3 * r for r in range(n)]), "rank 0 has no row"),
        Case(tables([4] + [0] * (n - 1), columns=3), "rank 0 has all rows"),
        Case(tables(sizes[::-1], "int64"), "integers"),
        Case([np.full((200 * s, 1), 1000 + r, dtype="float16") for r, s in enumerate(sizes)], "float16, many rows"),
        Case(tables([0] * n), "no rank has a row"),
    ]


@dataclass(frozen=True)
class Travels:
    """What the ranks send or reduce has this dtype."""

    dtype: str

    def broken(self, record: Record) -> str:
        for op in record.calls:
            if op.kind != "recv" and op.dtype not in (None, self.dtype):
                return f"Rank {op.rank} brings {op.dtype} to {op.called}{op.at}, and {self.dtype} is asked for."
        return ""


@exercise(
    "The mean of uneven shards, in one call",
    _mean,
    inputs=_tables,
    minutes=5,
    promises=(Calls(1), Travels("float64")),
    budget=A_FEW,
    least=Least(rounds=lambda n: 1),
)
def distributed_mean(x):
    """Return the mean of each column over all ranks' rows, in float64, on every rank.

    Rank r has a table `x` of some rows, perhaps of none; the columns are the same everywhere. Return the mean of each
    column over **all** rows of **all** ranks, as float64, on every rank. Where no rank has a row, it is `nan`. The rows
    stay where they are: a rank sends a few numbers, in **one** call and as float64.
    Hint: Which numbers of a rank's rows add up over the ranks? The mean is not among them.
    Hint: `x.sum(0)` has one number per column, and the sum of no rows is 0. Put the count behind it: `torch.cat`.
    Hint: A float16 ends at 65,504, and an integer has no fraction: turn to float64 before you add.
    Afterwards: The sum of no rows is 0, and so is their count: a rank without rows makes the call like all others, and
    no `if` is needed.
    """
    count = torch.tensor([len(x)], dtype=torch.float64, device=x.device)
    stats = torch.cat([x.double().sum(0), count])
    dist.all_reduce(stats)
    return stats[:-1] / stats[-1]


def _dealt(predictions: np.ndarray, n: int) -> list[Any]:
    rows = len(predictions)
    padded = predictions[np.arange(-(-rows // n) * n) % rows]  # the sampler begins again with row 0
    return [(padded[r::n].copy(), rows) for r in range(n)]


def _sampled(n: int) -> list[Case]:
    rng = np.random.default_rng([8, 9, n])
    return [
        Case(_dealt(np.arange(2 * n), n), f"{2 * n} rows, equal shares"),
        Case(_dealt(np.arange(2 * n + 1, dtype="float32"), n), f"{2 * n + 1} rows"),
        Case(_dealt(rng.integers(-50, 51, 4 * n - 1), n), f"{4 * n - 1} rows"),
        Case(_dealt(rng.integers(-50, 51, 1), n), "one row for all ranks"),
        Case(_dealt(rng.integers(-50, 51, 60 * n + 1) * 1.0, n), f"{60 * n + 1} rows, float64"),
    ]


def broken_in_sample_order(mine, rows):
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    return torch.cat(parts)


@exercise(
    "Each row once, and in its place",
    lambda xs: [np.stack([mine for mine, _ in xs], axis=1).ravel()[: xs[0][1]]] * len(xs),
    inputs=_sampled,
    minutes=4,
    promises=(Once(("all_gather",)),),
    tolerance=0.0,
    least=Least(rounds=lambda n: 1),
    picture=lambda: _dealt(np.arange(7), 3),
)
def in_sample_order(mine, rows):
    """Return the predictions of all rows in their order, on every rank.

    A `DistributedSampler` dealt out the rows of a data set: rank r predicted rows r, r + N, r + 2N and so on, N being
    `world_size`. Where N does not divide the number of rows, the sampler went on with row 0, row 1 and so on, until all
    ranks had equally many. `mine` has one dimension and holds this rank's predictions in that order, floats or
    integers; `rows` is the true number of rows. Return the predictions of all rows, **in the order of the rows and each
    one once**, on every rank, in the dtype of `mine`. Run the check of the specimen first: what does it return, and
    what should it return?
    Hint: The first prediction of rank 0 is that of row 0. Whose is row 1's, and whose are the next ones?
    Hint: `torch.stack(parts, dim=1)` has the ranks' k-th predictions side by side, in one row of a table.
    Hint: The repeated rows come last: `[:rows]` cuts them off.
    Afterwards: The order is that of the data set, so the predictions can be written to a file, held against the targets
    or sorted, and no row counts twice.
    """
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    return torch.stack(parts, dim=1).flatten()[:rows]


def softmax_parts(xs: Sequence[Any]) -> list[Any]:
    """Compute each rank's part of the softmax over all ranks' logits, in their dtype."""
    total = np.logaddexp.reduce(np.concatenate(xs).astype("float64"))
    return [np.exp(x.astype("float64") - total).astype(x.dtype) for x in xs]


def softmax_cases(n: int) -> list[Case]:
    """Deal the logits of one softmax out to n ranks: uneven, large, masked, and none."""
    rng = np.random.default_rng([8, 4, n])

    def draws(sizes: Sequence[int], level: float, dtype: str = "float32") -> list[Any]:
        return [(rng.normal(size=size) * 2 + level).astype(dtype) for size in sizes]

    sizes = [r + 1 for r in range(n)]
    masked = [np.where(np.arange(3) <= r, x, -np.inf).astype("float32") for r, x in enumerate(draws([3] * n, 0))]
    first = [np.full(2, -np.inf, dtype="float32"), *draws([2] * (n - 1), 0)]
    return [
        Case([np.array([r, 0.0], dtype="float32") for r in range(n)], "two logits per rank"),
        Case(draws(sizes, 0), "uneven shards"),
        Case(draws(sizes, 1000, "float64"), "logits near 1,000"),
        Case([x + np.float32(200 * r) for r, x in enumerate(draws([2] * n, 0))], "each rank 200 above the last"),
        Case(draws([0, *sizes[1:]], 3), "rank 0 has none"),
        Case(draws([3] + [0] * (n - 1), 0), "only rank 0 has some"),
        Case(masked, "−inf among them"),
        Case(first, "all of rank 0's are −inf"),
        Case(draws([333] * n, -50), "333 logits per rank"),
    ]


def broken_distributed_softmax(x):
    powers = x.exp()
    total = powers.sum()
    dist.all_reduce(total)
    return powers / total


@exercise(
    "Repair a softmax over all ranks",
    softmax_parts,
    inputs=softmax_cases,
    minutes=6,
    difficulty=2,
    budget=A_FEW,
    tolerance=1e-4,  # by way of logarithms a few digits are lost
    least=Least(rounds=lambda n: 1),  # everyone's maximum, and the sum that goes with it
)
def distributed_softmax(x):
    """Return this rank's part of the softmax over all ranks' x.

    The logits of **one** softmax are spread over the ranks: each rank brings a flat `x` of any length, perhaps an empty
    one. A masked logit is −inf. All logits of one rank may be masked, but never those of all ranks. Return this rank's
    part of the softmax over **all** logits, in the dtype of `x`. Logits may be about 1,000. Gather no logits: a rank
    sends a few numbers, and two calls will do. Run the check of the specimen first: on which input does it fail, and
    with what?
    Hint: exp(x − c) / Σ exp(x − c) is the same for every c. Which c leaves nothing above 1, on any rank?
    Hint: Two all-reduces of one number: `MAX` of the maxima, then the sum of exp(x − the global maximum).
    Hint: The maximum of nothing is −inf. It loses every `MAX`, and a sum over nothing is 0: no other `if` is needed.
    Afterwards: Subtracting the same number from all logits changes no share, and the global maximum leaves nothing
    above exp(0) = 1. It also makes a shard of −inf harmless: exp(−inf − a number) is 0. An empty shard brings the
    maximum of nothing, −inf, and the sum of nothing, 0. One call is enough if each rank brings its **own** maximum and
    the sum that belongs to it, in one all-gather: see the exercise `softmax_in_one_trip`.
    """
    top = x.max() if len(x) else torch.tensor(-torch.inf, dtype=x.dtype, device=x.device)
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    powers = (x - top).exp()
    total = powers.sum()
    dist.all_reduce(total)
    return powers / total


def cross_entropy(xs: Sequence[Any]) -> list[Any]:
    """Compute the mean loss of the tokens that have a target, from each rank's (logits, targets, …)."""
    whole, target = np.concatenate([logits for logits, *_ in xs], axis=1).astype("float64"), xs[0][1]
    losses = np.logaddexp.reduce(whole, axis=1) - whole[np.arange(len(target)), np.maximum(target, 0)]
    return [float(losses[target >= 0].mean())] * len(xs)


def _splits(n: int) -> list[Case]:
    rng = np.random.default_rng([8, 10, n])

    def split(widths: Sequence[int], tokens: int, level: float = 0, target: Any = None) -> list[Any]:
        target = rng.integers(0, sum(widths), tokens) if target is None else target
        firsts = np.cumsum([0, *widths])[:-1].tolist()
        logits = [(level + rng.integers(-4, 5, (tokens, width))).astype("float32") for width in widths]
        return [(part, target.copy(), first) for part, first in zip(logits, firsts)]

    return [
        Case(split([2] * n, 2), "two words per rank"),
        Case(split([r + 1 for r in range(n)], 5), "uneven shares of the words"),
        Case(split([2] * n, 2 * n, target=np.arange(2 * n)), "every word is a target"),
        Case(split([3] * n, 4, 800), "logits near 800"),
        Case(split([3] * n, 4, -800), "logits near −800"),
        Case(split([60] * n, 8), "60 words per rank"),
    ]


def not_negative(loss, *_):
    """Return the loss; say what is often forgotten where it is below 0, which no cross-entropy is."""
    below = isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.item() < -1e-3
    assert not below, (
        f"A cross-entropy is never negative, and this one is {loss.item():.3g}. Take the same number off the target's "
        "logit as off all others, and add both rows of `sums` up over the ranks"
    )
    return loss


@exercise(
    "The loss of a split vocabulary",
    cross_entropy,
    inputs=_splits,
    minutes=8,
    difficulty=2,
    promises=(Calls(2),),
    budget=Budget(sent=lambda n, S: 512.0),  # three numbers per token
    tolerance=1e-5,
    least=Least(rounds=lambda n: 2),
    collect=not_negative,
)
def split_loss(logits, target, first):
    """Return the mean loss of all tokens, on every rank.

    Every rank has `logits`: one row for each token, and one column for each of **its** words. The first column is word
    number `first` of the vocabulary, and the next columns are the next words. `target`, the same on all ranks, has each
    token's right word, as its number in the **whole** vocabulary; its column is `target - first`, if that is one of
    this rank's columns. A token's loss is log Σ exp(logit) over all words, minus the logit of its target. Return the
    mean loss of all tokens, on every rank.

    Logits may be as large as in the softmax, and the same repair helps: a token's loss stays the same if you take one
    number off **all** its logits, its target's included. Fill the two rows of `sums`, so that the last line is right.
    **Two** calls; gather no logits.

    In the picture, rank 0 brings the logits [3, −1] and [3, 0] of two tokens, their targets 5 and 3, and `first` = 0.
    Hint: Both parts of a loss are sums over all words: of exp(logit), and of the logits where all but the target's
    count as 0.
    Hint: Take each token's largest logit on any rank off first: `top = logits.max(dim=1).values`, an all-reduce with
    `MAX`, then `logits - top[:, None]`. A target's column on this rank is `target - first`; where that is below 0 or
    too large, another rank has the word, and this one leaves the 0 in `sums[1]`.
    Hint: With `here` true for the tokens whose target is here: `sums[1, here] = shifted[here, column[here]]`.
    Afterwards: Three numbers per token travel, however large the vocabulary is. Megatron-LM computes its loss in this
    way.
    """
    sums = logits.new_zeros(2, len(target))
    # yours
    top = logits.max(dim=1).values
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = target - first
    here = (column >= 0) & (column < logits.shape[1])
    sums[0] = shifted.exp().sum(dim=1)
    sums[1, here] = shifted[here, column[here]]
    dist.all_reduce(sums)
    # end
    return (sums[0].log() - sums[1]).mean()


def _batch_norm(xs: Sequence[Any]) -> list[Any]:
    rows = np.concatenate([x for x, _, _ in xs])
    mean, scale = rows.mean(0), 1 / np.sqrt(rows.var(0) + 1e-5)
    return [((x - mean) * scale * weight + bias).astype(x.dtype) for x, weight, bias in xs]


def _batches(n: int) -> list[Case]:
    rng = np.random.default_rng([8, 5, n])
    weight, bias = np.array([1.5, -0.5]), np.array([0.25, 2.0])

    def batches(sizes: Sequence[int], level: float = 0, dtype: str = "float64") -> list[Any]:
        return [tuple(a.astype(dtype) for a in (level + rng.integers(-4, 5, (s, 2)), weight, bias)) for s in sizes]

    return [
        Case(batches([2] * n), "two rows per rank"),
        Case(batches([r + 1 for r in range(n)]), "uneven shards"),
        Case(batches([3, *[2] * (n - 2), 0], 5), "the last rank has no row"),
        Case(batches([3] * n, -1, "float32"), "float32"),
        Case(batches([3] * n, 1_000, "float32"), "float32 near 1,000"),
    ]


def broken_sync_batch_norm(x, weight, bias):
    with torch.no_grad():
        stats = torch.cat([x.sum(0), x.new_tensor([len(x)])])
        dist.all_reduce(stats)
        mean, count = stats[:-1] / stats[-1], stats[-1]
        spread = ((x - mean) ** 2).sum(0)
        dist.all_reduce(spread)
        scale = (spread / count + 1e-5).rsqrt()
    return (x - mean) * scale * weight + bias


@exercise(
    "A batch norm over all ranks",
    _batch_norm,
    inputs=_batches,
    minutes=6,
    difficulty=2,
    gradients=True,
    tolerance=2e-4,
    least=Least(rounds=lambda n: 1),  # counts, means and spreads, merged as variances are
)
def sync_batch_norm(x, weight, bias):
    """Return this rank's rows, normalised over all ranks' rows, times weight, plus bias.

    Each rank has some rows `x` of the batch, perhaps none, and the same `weight` and `bias`, one number per feature.
    Return this rank's rows of `weight · (x − mean) / √(variance + 0.00001) + bias`, with the mean and the (biased)
    variance of each feature over the rows of **all** ranks. A mean may be about 1,000: add up squared distances from
    it, as the specimen does, and no squares.

    The gradients count too: the check calls `backward()` on every rank and wants the gradient of the **sum** of all
    ranks' losses, for `x`, `weight` and `bias`. (`comms.all_reduce(tensor)` returns the sum over the ranks as a new
    tensor, and gradients flow through it.) Run the check of the specimen first: what is right already, and what is not?
    Hint: The values are right. For autograd `mean` and `scale` are constants; but they depend on the rows of all ranks.
    In which two calls does that get lost?
    Hint: `dist.all_reduce` is invisible to autograd, with or without `torch.no_grad()`. In lesson 04, what did the
    backward pass of a sum over the ranks have to call?
    Hint: Put `comms.all_reduce(…)` in place of both calls, and take them out of `torch.no_grad()`. Every rank then has
    to call `backward()`, as they all do here.
    Afterwards: The gradients of `weight` and `bias` are those of this rank's rows: nothing was communicated for them.
    In training, DDP adds them up over the ranks and divides by their number, as it does with all others.
    """
    stats = comms.all_reduce(torch.cat([x.sum(0), x.new_tensor([len(x)])]))
    mean, count = stats[:-1] / stats[-1], stats[-1]
    spread = comms.all_reduce(((x - mean) ** 2).sum(0))
    scale = (spread / count + 1e-5).rsqrt()
    return (x - mean) * scale * weight + bias


def _spreads(n: int) -> list[Case]:
    rng = np.random.default_rng([8, 2, n])
    sizes = [r + 1 for r in range(n)]

    def draws(sizes: Sequence[int], level: float, dtype: str = "float64") -> list[Any]:
        return [(level + rng.integers(-5, 6, size) + r).astype(dtype) for r, size in enumerate(sizes)]

    return [
        Case([np.array([10.0 * r - 1, 10.0 * r + 1], dtype="float32") for r in range(n)], "two numbers per rank"),
        Case(draws(sizes, 0, "float32"), "uneven shards"),
        Case(draws([0, *sizes[1:]], 20, "float32"), "rank 0 has none"),
        Case(draws([3] * n, 10_000, "float32"), "float32 near 10,000"),
        Case(draws(sizes[::-1], 1e9), "float64 near 1,000,000,000"),
        Case([np.full(s, 7.0) for s in sizes], "no spread at all"),
        Case(draws([150] * n, -70), "150 numbers per rank"),
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
    where the numbers are near 10⁹ and differ by 1. The numbers themselves stay where they are: each rank sends only
    a few values.
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
    Hint: Two all-reduces: `MAX` of the values, then `MIN` of an offer. What does a rank offer if it does not have the
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
