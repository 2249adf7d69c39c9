"""Exercises of lesson 08 as training needs them: a softmax in one call, a loss with its gradient, a norm, a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Budget, Case, Least, exercise
from labkit.grading.inputs import counting
from labkit.grading.promises import Calls
from workbook.lesson08 import A_FEW, cross_entropy, softmax_cases, softmax_parts

if TYPE_CHECKING:
    from labkit.rank.cell_names import comms, device, dist, rank, torch, world_size


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

    The same softmax as in the lesson, with **one** call that communicates: each rank brings a flat `x` of any length,
    perhaps an empty one. A masked logit is −inf. All logits of one rank may be masked, but never those of all ranks.
    Return this rank's part of the softmax over **all** logits. Gather no logits: a rank sends one or two numbers.

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


def _vocabularies(n: int) -> list[Case]:
    rng = np.random.default_rng([8, 6, n])

    def split(widths: Sequence[int], tokens: int, level: float = 0, ignored: int = 0) -> list[Any]:
        target = rng.integers(0, sum(widths), tokens)
        target[:ignored] = -100
        return [((level + rng.integers(-4, 5, (tokens, width))) * 1.0, target.copy()) for width in widths]

    return [
        Case(split([3] * n, 2), "three words per rank"),
        Case(split([r + 1 for r in range(n)], 4), "uneven shards"),
        Case(split([n - r for r in range(n)], 5, 0, 2), "two tokens ignored"),
        Case(split([2] * n, 3, 800, 1), "logits near 800"),
        Case([(np.eye(n * 2)[:, 2 * r : 2 * r + 2] * 4, np.arange(2 * n)) for r in range(n)], "every word is a target"),
        Case(split([60] * n, 8), "60 words per rank"),
    ]


@exercise(
    "Cross-entropy over a split vocabulary, with its gradient",
    cross_entropy,
    inputs=_vocabularies,
    minutes=25,
    difficulty=3,
    budget=Budget(sent=lambda n, S: 1024.0),
    gradients="one",
    tolerance=1e-5,
    least=Least(rounds=lambda n: 2),  # the widths first: they say where a target is
)
def vocab_cross_entropy(logits, target):
    """Return the mean loss of the tokens whose target is not -100, on every rank.

    Rank r has `logits`, one row per token and one column for each of **its** words: rank 0 the first words of the
    vocabulary, rank 1 the next, as many as each has columns. `target`, the same on all ranks, has each token's word in
    the whole vocabulary, or −100 for a token that does not count. Return the mean cross-entropy over the tokens that
    do, on every rank. Gather no logits.

    Every rank then calls `backward()` on this **one** loss, and wants the gradient of its own logits.
    Hint: Three numbers per token: the maximum, the sum of exp, and the target's logit from the one rank that has it.
    Hint: A target's place on this rank is `target` minus the number of words before: an all-gather of the widths.
    Outside 0 … width − 1 it is not here, and this rank brings 0 to the sum.
    Hint: Backward: (share − 1 for the target) / number of tokens, all of it known here. With `comms.all_reduce` every
    rank's loss would count, N times: use a `torch.autograd.Function` that communicates nothing.
    Afterwards: One loss on N ranks, or N losses that are added up? A differentiable all-reduce means the latter.
    Megatron's g, an all-reduce forward and nothing backward, means the former.
    """

    class CrossEntropy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, target):
            width = logits.shape[1]
            place = target - sum(comms.all_gather(width)[:rank])
            here = (place >= 0) & (place < width)

            top = logits.max(1).values
            dist.all_reduce(top, op=dist.ReduceOp.MAX)
            shifted = logits - top[:, None]
            hits = torch.where(here[:, None], place[:, None] == torch.arange(width, device=place.device), False)
            sums = torch.stack([shifted.exp().sum(1), (shifted * hits).sum(1)])
            dist.all_reduce(sums)

            kept = target != -100
            shares = shifted.exp() / sums[0][:, None]
            ctx.save_for_backward((shares - hits.to(shares)) * kept[:, None] / kept.sum())
            return (sums[0].log() - sums[1])[kept].mean()

        @staticmethod
        def backward(ctx, d_loss):
            return ctx.saved_tensors[0] * d_loss, None

    return CrossEntropy.apply(logits, target)


def _backward(xs: Sequence[Any]) -> list[Any]:
    rows, ys = np.concatenate([dy for dy, *_ in xs]), np.concatenate([y for _, y, *_ in xs])
    return [(dy - rows.mean(0) - y * (rows * ys).mean(0)) * scale for dy, y, scale, _ in xs]


def _slopes(n: int) -> list[Case]:
    rng = np.random.default_rng([8, 11, n])

    def draws(sizes: Sequence[int]) -> list[Any]:
        return [(*rng.integers(-4, 5, (2, size, 2)) / 2, np.array([0.5, 2.0]), sum(sizes)) for size in sizes]

    return [
        Case(draws([2] * n), "two rows per rank"),
        Case(draws([r + 1 for r in range(n)]), "uneven shards"),
        Case(draws([3, *[2] * (n - 2), 0]), "the last rank has no row"),
        Case(draws([100] * n), "100 rows per rank"),
    ]


def _one_row_each() -> list[Any]:
    rows = ([[3.0, 0.0]], [[-1.0, 0.0]]), ([[0.0, 3.0]], [[0.0, 1.0]]), ([[0.0, 6.0]], [[1.0, -1.0]])
    return [(np.array(dy), np.array(y), np.array([0.5, 2.0]), 3) for dy, y in rows]


@exercise(
    "What a batch norm sends on the way back",
    _backward,
    inputs=_slopes,
    picture=_one_row_each,
    minutes=8,
    difficulty=2,
    promises=(Calls(1),),
    budget=A_FEW,
    tolerance=1e-6,
    least=Least(rounds=lambda n: 1),
)
def batch_norm_backward(dy, y, scale, count):
    """Return the gradient of this rank's rows.

    The backward pass of a batch norm over all ranks, by hand and in **one** call. Each rank has `dy`, the gradient that
    arrives for its rows, and `y`, its normalised rows (both may be empty); `scale`, which is 1 / deviation of each
    feature; and `count`, the number of rows on all ranks. In one process the gradient of the rows is `(dy - mean(dy) -
    y * mean(dy * y)) * scale`, with the means of each feature over **all** rows. Return it for this rank's rows.
    Hint: Two means for each feature, over the rows of all ranks. What does each rank bring, so that adding it up gives
    them?
    Hint: `dy.sum(0)` and `(dy * y).sum(0)`, stacked: one tensor, one all-reduce. The sum of no rows is 0.
    Hint: Divide by `count`, which is that of all ranks already.
    Afterwards: `torch.nn.SyncBatchNorm` does the same: in the forward pass it all-gathers mean, 1 / deviation and
    count, in the backward pass it all-reduces these two sums. It refuses CPU tensors.
    """
    means = torch.stack([dy.sum(0), (dy * y).sum(0)]) / count
    dist.all_reduce(means)
    return (dy - means[0] - y * means[1]) * scale


def _norm(xs: Sequence[Any], p: float = 2.0) -> list[Any]:
    parts = [g for sharded, _ in xs for g in sharded] + list(xs[0][1])
    return [float(np.linalg.norm(np.concatenate([g.ravel().astype("float64") for g in parts]), p))] * len(xs)


def _gradients(n: int) -> list[Case]:
    rng = np.random.default_rng([8, 7, n])
    infinite = {"p": float("inf")}

    def sharded(shapes: Callable[[int], list[Any]], level: float = 1, dtype: str = "float32") -> list[Any]:
        bias = (rng.normal(size=3) * level).astype(dtype)
        ranks = [[(rng.normal(size=shape) * level).astype(dtype) for shape in shapes(r)] for r in range(n)]
        return [(own, [bias.copy()]) for own in ranks]

    def with_nan(r: int) -> list[Any]:
        xs = sharded(lambda _: [4])
        xs[r][0][0][1] = np.nan
        return xs

    return [
        Case(
            [([np.array([4.0 if r else 3.0], "float32")], []) for r in range(n)],
            "a gradient per rank, none replicated",
        ),
        Case(sharded(lambda r: [2 + r, (2, 2)]), "a replicated one"),
        Case(sharded(lambda r: [3] * r), "rank 0 has no shard"),
        Case(sharded(lambda r: [5], 300, "float16"), "float16 near 300"),
        Case(sharded(lambda r: [r + 1, 2]), "the largest entry", infinite),
        Case(sharded(lambda r: [], 2), "only a replicated one, the largest entry", infinite),
        Case(with_nan(0), "a nan on rank 0"),
        Case(with_nan(n - 1), "a nan on the last rank, the largest entry", infinite),
        Case(with_nan(0), "a nan on rank 0, the largest entry", infinite),
    ]


@exercise(
    "The norm of all gradients, each counted once",
    _norm,
    inputs=_gradients,
    minutes=15,
    difficulty=2,
    tolerance=1e-4,
    least=Least(rounds=lambda n: 1),
)
def grad_norm(sharded, replicated, p=2.0):
    """Return the norm of all gradients, each counted once, on every rank; p is 2 or inf.

    Each rank has two lists of gradients: `sharded`, its own parts, and `replicated`, tensors that are **the same on all
    ranks** (either may be empty). Return the norm of all of them together, each number counted once, on every rank: for
    `p = 2` the root of the sum of squares, for `p = inf` the largest absolute value. Gradients may be float16. A `nan`
    **anywhere** makes the norm `nan`.
    Hint: Norms do not add up. What does, for p = 2? And for p = inf, which operation merges?
    Hint: Let rank 0 alone put the replicated ones in; the all-reduce stands outside of that `if`.
    Hint: `MAX` may lose a `nan`, a sum never does: the sum of squares tells whether there is one.
    Afterwards: The sum of squares of no gradient is 0, and a rank without any makes the call like all others.
    """
    mine = sharded + (replicated if rank == 0 else [])
    flat = torch.cat([torch.zeros(1, device=device), *(g.flatten().float() for g in mine)])
    squares = (flat**2).sum()
    dist.all_reduce(squares)
    if p == 2:
        return squares.sqrt()
    top = flat.nan_to_num().abs().max()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    return torch.where(squares.isnan(), squares, top)


def _roundings(n: int) -> list[Case]:
    rng = np.random.default_rng([8, 8, n])
    pattern = np.array([1e8, 1.0, -1e8, 1.0], dtype="float32")

    def draws(size: int, dtype: str = "float32") -> list[Any]:
        return [(rng.normal(size=size) * 10.0 ** rng.integers(-4, 8, size)).astype(dtype) for _ in range(n)]

    return [
        Case(counting(n, 2 * n)),
        Case([np.full(2 * n, pattern[r % 4]) for r in range(n)], "1e8, 1, −1e8 and 1 at every place"),
        Case(draws(n + 1), f"{n + 1} elements, which {n} does not divide"),
        Case(draws(1), "one element"),
        Case(draws(0), "no element"),
        Case(draws(40 * n + 3, "float64"), "float64"),
        Case([np.full(3 * n, 256.0 if r == 0 else 1.0, dtype="float16") * 8 for r in range(n)], "float16"),
        Case(draws(600 * n), f"{600 * n} elements"),
    ]


@exercise(
    "A sum whose bits you can foretell",
    lambda xs: [sum(xs[1:], xs[0])] * len(xs),
    inputs=_roundings,
    minutes=25,
    difficulty=3,
    tolerance=0.0,
    budget=Budget(sent=lambda n, S: 2 * (n - 1) / n * S),
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 2, memory=lambda n, S: S),
)
def ordered_sum(x):
    """Return the sum of all ranks' x, added in rank order, on every rank.

    Return the sum of all ranks' flat `x` on every rank, **to the bit** as if it had been added in rank order, ((rank 0
    + rank 1) + rank 2) + …, rounded after every addition. Any length, also one that `world_size` does not divide. A
    rank may send no more than a ring all-reduce does: 2 S (N − 1) / N bytes, so gathering the whole `x` of every rank
    costs too much.
    Hint: Gathering the whole `x` of every rank fixes the order and costs N times too much. Who has to add up which
    part?
    Hint: A reduce-scatter leaves the order to the library. Lesson 04 built one from an all-to-all and a local sum.
    Hint: Chunk r of everyone to rank r: `dist.all_to_all_single` with sizes. Add in rank order, then all-gather the
    sums, padded to the longest chunk.
    Afterwards: In its bytes and in what it does, this is a reduce-scatter and an all-gather, but you do the additions
    yourself. With this number of ranks the bits are always the same, whichever algorithm the library uses.
    """
    sizes = [len(chunk) for chunk in x.tensor_split(world_size)]
    mine = sizes[rank]
    parts = x.new_empty(world_size, mine)
    dist.all_to_all_single(parts.view(-1), x, [mine] * world_size, sizes)

    total = x.new_zeros(sizes[0])  # the longest: an all-gather wants equal lengths
    total[:mine] = parts[0]
    for part in parts[1:]:
        total[:mine] += part
    totals = [torch.empty_like(total) for _ in range(world_size)]
    dist.all_gather(totals, total)
    return torch.cat([t[:size] for t, size in zip(totals, sizes, strict=True)])
