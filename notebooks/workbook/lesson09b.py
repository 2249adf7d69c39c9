"""Exercises of lesson 09b: uneven batches, a loss over all ranks, fewer bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Budget, Case, Least, exercise
from labkit.grading.promises import Calls
from labkit.theory.log import Log
from workbook.harnesses import calls, with_gradients
from workbook.lesson08 import cross_entropy

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, name_it, rank, recorder, torch, world_size


def _by_rows(xs: Sequence[Any]) -> list[Any]:
    total = sum(rows for _, rows in xs)
    return [[sum(g[i] * rows for g, rows in xs) / total for i in range(len(xs[0][0]))] for _ in xs]


def _shares(n: int) -> list[Case]:
    def case(sizes: Sequence[int], about: str, seed: int, dtype: str = "float32") -> Case:
        rng = np.random.default_rng([9, seed, n])
        grads = [[rng.integers(-20, 21, s).astype(dtype) for s in ((2,), (2, 2))] for _ in sizes]
        return Case(list(zip(grads, sizes)), about)

    readable = [([np.array([4.0 * r, 12.0 - 4 * r], dtype="float32")], r + 1) for r in range(n)]
    return [
        Case(readable, "rank r has r + 1 rows"),
        case([3] * n, "equal shares", 1),
        case([2] * (n - 1) + [7], "the last rank has most rows", 2),
        case([0, *[r + 1 for r in range(1, n)]], "rank 0 has no row", 3),
        case([0] * (n - 1) + [5], "the last rank has all rows", 4, "float64"),
    ]


def run_average_by_rows(fn, grads, rows):
    """Give a model its gradients, or none on a rank without rows, and collect those that are left."""
    everyone = [(theirs, many) for theirs, many in everyones((grads, rows)) if many]
    total = sum(many for _, many in everyone)

    def added(weighed, divisor):
        return [sum(g[i] * (many if weighed else 1) for g, many in everyone) / divisor for i in range(len(grads))]

    model = with_gradients(*grads)
    if not rows:  # it has run no backward pass
        model.zero_grad()
    fn(model, rows)
    out = [p.grad for p in model]
    if not rows:
        assert calls(), "it has no rows, and stays away from the call: the others wait for it there. Bring zeros"
        assert all(grad is not None for grad in out), (
            "it has no rows, and its `p.grad` is None still: it needs the same gradient as the others"
        )
    slips = {
        "gives the gradient of every rank the same weight, however many rows it has": added(False, world_size),
        "divides by the number of ranks, and not by the number of all rows": added(True, world_size),
        "adds up, and does not divide by the number of all rows": added(True, 1),
        "divides by the number of all rows, and does not weigh each gradient with its own": added(False, total),
    }
    name_it(out, added(True, total), slips)
    return out


@exercise(
    "The gradient of uneven shares",
    _by_rows,
    inputs=_shares,
    minutes=8,
    difficulty=2,
    promises=(Calls(1),),
    tolerance=1e-5,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * (S + 8), rounds=lambda n: 1),  # the rows travel with the float64s
    harness=run_average_by_rows,
)
def average_by_rows(model, rows):
    """Replace each gradient by that of the mean loss over all ranks' rows.

    The last batch of an epoch is short, and the ranks get different numbers of its rows. `p.grad` is the gradient of
    the mean loss of **this rank's** `rows` rows. Replace it by the gradient of the mean loss of **all** ranks' rows, on
    every rank. A rank without rows has computed nothing: its `p.grad` is `None` before, and afterwards it needs the
    same gradient as the others. Make **one** call that communicates. Return nothing. (The picture shows a gradient of
    two numbers, and `rows`.)
    Hint: You cannot add means. What can you add, and what has to travel with it? Lesson 08 had the same problem.
    Hint: Each rank sends its gradient **times** its rows, and its rows. A rank without rows sends zeros and 0.
    Hint: One flat tensor: all gradients times `rows`, and `rows` behind them. All-reduce it, and divide by its last
    number.
    Afterwards: DDP always averages over the ranks, so with DDP you weigh before the backward pass: multiply the loss by
    rows × N / all rows. For language models the rows are tokens, and padding does not count.
    """
    grads = [torch.zeros_like(p) if p.grad is None else p.grad * rows for p in model.parameters()]
    flat = torch.cat([*(grad.flatten() for grad in grads), grads[0].new_tensor([rows])])
    dist.all_reduce(flat)
    flat = flat[:-1] / flat[-1]
    for p, part in zip(model.parameters(), flat.split([grad.numel() for grad in grads])):
        p.grad = part.view_as(p)


def _contrast(xs: Sequence[Any]) -> list[Any]:
    everyone = np.concatenate([b for _, b in xs])
    partners = np.split(np.arange(len(everyone)), len(xs))
    return [cross_entropy([(a @ everyone.T, its)])[0] for (a, _), its in zip(xs, partners)]


def _pairs(n: int) -> list[Case]:
    def case(rows: int, about: str, seed: int, scale: float = 1.0) -> Case:
        pairs = np.random.default_rng([9, seed, n]).integers(-2, 3, (n, 2, rows, 2)) * scale
        return Case([(a, b) for a, b in pairs], about)

    return [case(1, "one pair a rank", 1), case(2, "two pairs a rank", 2), case(3, "long vectors", 3, 4.0)]


def broken_contrast(a, b):
    everyone = [torch.empty_like(b) for _ in range(world_size)]
    dist.all_gather(everyone, b.detach())
    everyone[rank] = b  # so that my own rows keep their gradient
    target = torch.arange(len(a), device=device) + rank * len(a)
    return torch.nn.functional.cross_entropy(a @ torch.cat(everyone).T, target)


@exercise(
    "Every rank's loss depends on all ranks",
    _contrast,
    inputs=_pairs,
    difficulty=2,
    gradients=True,
    tolerance=1e-5,
)
def contrast(a, b):
    """Return the mean loss of this rank's rows, among all ranks' partners.

    As in CLIP, rank r has pairs: row i of `a` belongs to row i of `b`, and all ranks have equally many. Each row of `a`
    has to find its partner among **all** ranks' rows of `b`: the loss is the cross-entropy of the logits `a @ b.T`,
    with the partner's place as the target. Return the mean loss of this rank's rows. The function in the cell returns
    the right loss, and its gradient is wrong.

    Every rank calls `backward()` on its own loss. Make the gradients those of the **sum of all ranks' losses**: every
    rank's loss depends on every rank's `b`. (DDP then divides by the number of ranks.)
    Hint: The gradients of `a` are right. Which ranks' losses depend on a row of my `b`, and how does my rank learn of
    it?
    Hint: In the backward pass every rank knows the gradient of its own loss with respect to **all** rows of `b`. You
    need the sum of these over the ranks, and of the sum your own rows: a reduce-scatter.
    Hint: Write a `torch.autograd.Function`: forward an all-gather, backward an all-reduce of the gradient, of which you
    return your rows. Or use `comms.all_gather(b)`, which has the right backward pass.
    Afterwards: The backward pass of an all-gather is a reduce-scatter. Without it the model still trains, only worse:
    each row of `b` learns from the loss of one rank alone.
    """

    class AllGather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, b):
            everyone = [torch.empty_like(b) for _ in range(world_size)]
            dist.all_gather(everyone, b.contiguous())
            return torch.cat(everyone)

        @staticmethod
        def backward(ctx, slope):
            slope = slope.contiguous()
            dist.all_reduce(slope)  # what all ranks' losses say about all rows
            return slope.chunk(world_size)[rank]

    target = torch.arange(len(a), device=device) + rank * len(a)
    return torch.nn.functional.cross_entropy(a @ AllGather.apply(b).T, target)


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Round to the nearest numbers that bfloat16 has, ties to even, as float32.

    >>> bfloat16(np.array([257.0, 259.0])).tolist()
    [256.0, 260.0]
    """
    bits = x.astype("float32").view("uint32").astype("uint64")
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype("uint32").view("float32")


def _compressed(xs: Sequence[Any]) -> list[Any]:
    sent = [bfloat16(grad + error) for grad, error in xs]
    mean = bfloat16(sum(sent[1:], sent[0]) / np.float32(len(xs)))
    return [[mean, grad + error - s] for (grad, error), s in zip(xs, sent)]


def _with_errors(n: int) -> list[Case]:
    def case(about: str, grads: Sequence[Any], error: Callable[[int], float] = lambda r: 0.0) -> Case:
        both = [(np.asarray(grad, "float32"), np.full(len(grad), error(r), "float32")) for r, grad in enumerate(grads)]
        return Case(both, about)

    first, second = (np.random.default_rng([9, seed, n]) for seed in (1, 2))
    rounded = ", whose sum bfloat16 has to round" if n == 3 else ""
    whole = [[256 + 4 * r - r % 2, *[2 * r] * (n - 1)] for r in range(n)]  # no loss in bfloat16 once they are rounded
    large = "256 from one rank and 1 from the others, where a sum in bfloat16 stays at 256"
    return [
        case("whole numbers, and errors of 0.5", whole, lambda r: 0.5),
        case(large, [[1.0 if r else 256.0] * n for r in range(n)]),
        case("errors that were left from the last step", [[256.0] * n] * n, lambda r: 0.75 + r / 4),
        case(f"numbers near 10³⁰{rounded}", [[1e30] * n] * n),
        case(f"{2 * n + 1} numbers, which {n} does not divide", first.normal(size=(n, 2 * n + 1))),
        case(f"{512 * n} numbers", second.normal(size=(n, 512 * n))),
    ]


def run_compressed_average(fn, grad, error):
    """Look at the dtypes that travel, name mistakes in what is kept, and collect the mean and the error."""
    before = error.clone()
    sent = (grad + error).bfloat16().float()
    lost, beside = grad + error - sent, grad - sent
    mean = fn(grad, error)
    assert isinstance(mean, torch.Tensor), "it returns no tensor"
    assert mean.dtype == torch.float32, f"it returns {mean.dtype}, and float32 is asked for"
    for op in Log.of(recorder.records()).ops:
        assert op.dtype not in ("float16", "float32", "float64"), (
            f"it brings {op.dtype} to {op.called}{op.at}, and may send bfloat16 only"
        )
        assert op.dtype != "bfloat16" or not op.reduce, (
            f"{op.called}{op.at} adds up in bfloat16, and rounds at every addition: add up in float32 yourself"
        )
    slips = {
        "leaves the old `error` out of what it sends": grad - grad.bfloat16().float(),
        "leaves `error` as it was": before,
        "adds what is lost to the old error, which has been sent": before + lost,
        "takes what was sent off `grad` alone, and not off `grad + error`": beside,
        "keeps what rounding has added, with the wrong sign": -lost,
        "sets `error` to zero": torch.zeros_like(lost),
    }
    name_it(error, lost, slips, "error")
    return [mean, error]


@exercise(
    "Half the bytes, and nothing lost for good",
    _compressed,
    inputs=_with_errors,
    minutes=20,
    difficulty=3,
    budget=Budget(sent=lambda n, S: (n - 1) / n * S / 2 + 8.0 * n),
    least=Least(sent=lambda n, S: (n - 1) / n * S / 2, rounds=lambda n: 2),
    tolerance=1e-6,
    harness=run_compressed_average,
)
def compressed_average(grad, error):
    """Return the mean of all ranks' grad + error, sent as bfloat16; keep in error what rounding has lost.

    `grad` and `error` are flat float32 tensors of equal length, the same length on all ranks. Return the mean over the
    ranks of `grad + error` as float32, and send **bfloat16** only. Do it in this way: round `grad + error` to bfloat16,
    and keep what the rounding has lost in `error`, in place, for the next step. Send the rounded numbers so that they
    are **added up in float32**: rank r gets every rank's r-th part, adds these up, divides by the number of ranks and
    rounds the mean of its part to bfloat16; then every rank gets all parts.

    The length need not be a multiple of the number of ranks: pad with zeros. No rank may send more than a ring
    all-reduce of bfloat16 would. Gloo's all-to-all and all-gather take bfloat16. (The picture shows `grad` and `error`
    before, the mean and `error` after.)
    Hint: Three questions: what to send, what to keep, and how to add up without a sum in bfloat16. For the last one,
    cut an all-reduce in two: which rank adds up which part?
    Hint: `wanted = grad + error`, `sent = wanted.bfloat16()`, `error.copy_(wanted - sent)`. Then
    `dist.all_to_all_single(parts, padded)` brings every rank's r-th part to rank r.
    Hint: `parts.view(world_size, -1).float().sum(0) / world_size` is the mean of this rank's part; round it and
    `dist.all_gather_single` it.
    Afterwards: What rounding loses now is sent later, so the errors do not add up over the steps: this is error
    feedback. The more a compression leaves out, the more it needs error feedback. A library that reduces in bfloat16
    rounds at every addition, so it loses more with more ranks.
    """
    wanted = grad + error
    sent = wanted.bfloat16()
    error.copy_(wanted - sent)

    padded = torch.nn.functional.pad(sent, (0, -len(sent) % world_size))
    parts = torch.empty_like(padded)
    dist.all_to_all_single(parts, padded)  # every rank's part number `rank`
    mine = parts.view(world_size, -1).float().sum(0) / world_size

    means = torch.empty_like(padded)
    dist.all_gather_single(means, mine.bfloat16())
    return means[: len(grad)].float()
