"""Lesson 04: means, buffers and columns gone wrong, a sharded step, and which call is for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import ANY, Budget, Case, Least, exercise
from labkit.grading.inputs import counting, divisible, draws, uneven
from labkit.grading.promises import Calls, Once
from labkit.theory import collectives
from labkit.theory.primitives import MESSAGES, OBJECTS
from workbook.cards import in_words, no_numbers

if TYPE_CHECKING:
    from labkit.rank.cell_names import comms, device, dist, everyones, name_it, rank, torch, world_size


def _stepped(xs: Sequence[Any], lr: float) -> list[Any]:
    weights, gradients = xs[0][0], [gradient for _, gradient in xs]
    return [weights - lr * sum(gradients[1:], gradients[0]) / len(xs)] * len(xs)


def _weights_and_gradients(n: int) -> list[Case]:
    def case(size: int, lr: float, about: str, seed: int, dtype: str = "float32") -> Case:
        weights = draws(1, size, dtype, seed)[0]
        return Case([(weights, gradient) for gradient in draws(n, size, dtype, seed + 1)], about, {"lr": lr})

    readable = [(np.full(n, 100.0, dtype="float32"), gradient) for gradient in counting(n, n)]
    return [
        Case(readable, options={"lr": 1.0}),
        case(3 * n, 0.5, "learning rate 0.5", 10),
        case(2 * n, 1.0, "float64", 20, "float64"),
        case(257 * n, 0.25, f"{257 * n} weights", 30),
    ]


def run_sharded_step(sharded_step, weights, gradient, lr):
    """Take the step, and name what a gradient that is not the average gives."""
    new = sharded_step(weights, gradient, lr=lr)
    total = sum(everyones(gradient))
    slips = {
        "adds up and does not divide by the number of ranks": weights - lr * total,
        "takes this rank's own gradient for the average": weights - lr * gradient,
    }
    name_it(new, weights - lr * total / world_size, slips)
    return new


@exercise(
    "One step, a part from each rank",
    _stepped,
    minutes=8,
    difficulty=2,
    inputs=_weights_and_gradients,
    forbids=("all_reduce", "reduce", "gather", *MESSAGES, *OBJECTS),
    promises=(Once(("reduce_scatter", "all_gather")),),
    keeps_input=True,
    harness=run_sharded_step,
    # S: the weights and as large a gradient.
    least=Least(sent=lambda n, S: (n - 1) / n * S, rounds=lambda n: 2, memory=lambda n, S: S / 2),
)
def sharded_step(weights, gradient, lr):
    """Return the weights after a step, of which this rank computes its part.

    Every rank brings all the `weights`, the same everywhere, and the `gradient` of its own share of the batch; both
    have one dimension and the same dtype, and `world_size` divides their length. Return, on every rank, the weights
    after one step with the **average** gradient: the old weights minus `lr * average`. Each rank may receive the total
    gradient of **its part** only: rank r updates the r-th of `world_size` equal parts, and in the end everybody gets
    all parts. One reduce-scatter and one all-gather. (In the picture the weights are all 100, the other numbers are the
    gradients, and `lr` is 1.)
    Hint: Before you can update your part, whose gradients for it do you need, and what do you do with them? Which of
    the two calls above does that?
    Hint: `reduce_scatter_single(room, gradient)` takes the gradient as one flat tensor and leaves your part of the sum
    in `room`. Divide it by `world_size`, and subtract `lr` times that from your part of the weights.
    Hint: `all_gather_single(new, part)` fills `new` with all parts, in the order of the ranks.
    Afterwards: An optimizer such as Adam keeps two more numbers for each weight that it updates. Here a rank would keep
    them for its part only. This is ZeRO stage 1 in ten lines; lesson 11 goes on from here.
    """
    # yours
    size = len(weights) // world_size
    mine = torch.empty_like(gradient[:size])
    dist.reduce_scatter_single(mine, gradient)
    part = weights[rank * size : (rank + 1) * size] - lr * mine / world_size
    # end
    new = torch.zeros_like(weights)
    # yours
    dist.all_gather_single(new, part)
    # end
    return new


@exercise(
    "An all-gather of unequal lengths",
    collectives.all_gather,
    minutes=12,
    difficulty=2,
    inputs=lambda n: [
        *uneven(n),
        Case([np.arange(r + 1) + 10 * r for r in range(n)], "integers"),
        Case([np.arange(r + 2) + 2**24 for r in range(n)], "integers too large for float32"),
    ],
    forbids=(*OBJECTS, *MESSAGES),
    least=Least(sent=lambda n, S: (n - 1) * (S + 8), rounds=lambda n: 2),  # padded, and the lengths
)
def all_gather_uneven(x):
    """Return the list of all ranks' x, whatever their lengths.

    Every rank brings a tensor `x` with one dimension and **a length of its own**, which the others do not know and
    which may be 0. The dtype is the same everywhere: floats or integers. Return, on every rank, the **list** of
    everyone's `x` in the order of the ranks, each with its own length and in this dtype. Use `dist.all_gather` on
    tensors: no objects, no send.
    Hint: All-gather wants equal shapes. What must all ranks know first, and which call tells them?
    Hint: All-gather the lengths, pad to the longest, all-gather the padded tensors. `x.new_zeros(longest)` has the
    dtype of `x`.
    Hint: Cut each part to the length that you gathered for its rank.
    Afterwards: Padding costs bytes: one long tensor makes all of them long. Where that hurts, use an uneven all-to-all.
    """
    length = torch.tensor([len(x)], device=device)
    lengths = [torch.zeros_like(length) for _ in range(world_size)]
    dist.all_gather(lengths, length)
    longest = max(lengths).item()
    padded = x.new_zeros(longest)
    padded[: len(x)] = x
    rooms = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(rooms, padded)
    return [room[:size] for room, size in zip(rooms, lengths)]


def broken_repair_mean(x):
    means = comms.all_gather(x.mean())
    return torch.stack(means).mean()


@exercise(
    "Repair the mean of means",
    lambda xs: [float(np.concatenate(xs).mean())] * len(xs),
    minutes=5,
    inputs=uneven,
    promises=(Calls(1),),
    tolerance=1e-5,
    keeps_input=True,
    least=Least(rounds=lambda n: 1),
)
def repair_mean(x):
    """Return the mean of all ranks' numbers.

    Every rank has a tensor `x` of floats with one dimension and **a length of its own**; it may be empty, but not on
    all ranks. Return the mean of all ranks' numbers, as a float or as a tensor with one element, on every rank, with
    **one** call that communicates. Run its check first: on which input does it fail?
    Hint: How much should a rank with one number count, compared with a rank that has three?
    Hint: A sum of sums is the sum of all numbers. What else do you have to add up to divide by?
    Hint: Put both into one tensor: one all-reduce adds its elements up side by side.
    Afterwards: Bring what adds up, and divide afterwards. The last batch of an epoch is often uneven, and so is a batch
    of sentences, counted in tokens: there this mistake gets into the gradients. Lesson 08 does the same with a variance
    and a softmax.
    """
    stats = torch.tensor([x.sum(), len(x)], device=device)
    dist.all_reduce(stats)
    return stats[0] / stats[1]


def broken_average_ints(x):
    total = x.clone()
    dist.all_reduce(total)
    total /= world_size
    return total


@exercise(
    "Repair the mean of integers",
    lambda xs: [m.astype("float32") for m in collectives.all_reduce(xs, op="AVG")],
    minutes=3,
    inputs=lambda n: [
        Case(counting(n, 3, "int64")),
        Case([np.array([r + 1]) for r in range(n)], "one integer"),
        Case(draws(n, 5, "int64", 1), "negative integers"),
        Case(draws(n, 4, "int32", 2), "int32"),
        Case(counting(n, 0, "int64"), "no element"),
        # 2**24 + 1 is not a float32: converted before they are added, the last digits are gone.
        Case(
            [np.array([2**24 + 1, 3]), *[np.array([0, r]) for r in range(2, n)], np.array([-(2**24), 5])],
            "integers too large for float32",
        ),
    ],
    tolerance=1e-6,
    keeps_input=True,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 1),
)
def average_ints(x):
    """Return the mean of all ranks' integers, as floats.

    Every rank brings a tensor `x` of **integers**, of the same shape and dtype, such as counts. Return the mean over
    the ranks, element by element, on every rank, as a tensor of **floats** (float32 will do). The sums are exact in
    integers, and nothing is rounded before the division. `x` stays as it is.
    Hint: Which line raises: the all-reduce or the division? What would it have to put where?
    Hint: `total /= world_size` writes its result into `total`, and a fraction does not fit into an integer. Which way
    to divide makes a new tensor?
    Afterwards: `/` makes a new tensor of floats. `//` would have raised nothing and dropped the fraction. `AVG` does
    not help: Gloo adds first and divides afterwards, so when it refuses, the sum has already replaced your own number.
    """
    total = x.clone()
    dist.all_reduce(total)
    return total / world_size


def broken_repair_all_gather(x):
    gathered = [torch.zeros(1, device=device) for _ in range(world_size)]
    dist.all_gather(gathered, x)
    return gathered


@exercise(
    "Repair an all-gather",
    collectives.all_gather,
    minutes=4,
    inputs=lambda n: [
        Case([np.array([r]) for r in range(n)]),
        Case([np.array([r + 0.5], dtype="float32") for r in range(n)], "float32"),
        Case([np.array([2**24 + r]) for r in range(n)], "large integers"),
        Case([np.array([0.1 * r]) for r in range(n)], "float64"),
    ],
    promises=(Once(("all_gather",)),),
    tolerance=0,
    least=Least(sent=lambda n, S: (n - 1) * S, rounds=lambda n: 1, memory=lambda n, S: (n - 1) * S),
)
def repair_all_gather(x):
    """Return the list of all ranks' x.

    This function was written for `x = torch.tensor([rank])`, and fails on it. Every rank brings a tensor `x` with one
    number, of the same dtype on all ranks: integers or floats. Return, on every rank, the list of all ranks' `x`, in
    their own dtype. Run the check first, and read what torch says.
    Hint: Of which dtype is `torch.tensor([rank])`, and of which is `torch.zeros(1)`?
    Hint: You can change `x` or the room. If you make floats of large integers, are they still the same numbers?
    Hint: `torch.zeros_like(x)` has the shape, the dtype and the device of `x`.
    Afterwards: The receiver makes the room, and no call converts what arrives. torch compares the dtypes that one rank
    brings; it does not compare them between ranks.
    """
    gathered = [torch.zeros_like(x) for _ in range(world_size)]
    dist.all_gather(gathered, x)
    return gathered


def _tables(n: int) -> list[Case]:
    def case(rows: int, columns: int, about: str, seed: int, dtype: str = "float32") -> Case:
        return Case([x.reshape(rows, columns) for x in draws(n, rows * columns, dtype, seed)], about)

    readable = Case([x.reshape(2, 3) for x in counting(n, 6)], "2 rows, 3 columns")
    odd = [case(1, 4, "one row", 40), case(3, 1, "one column", 41)]
    return [readable, *odd, case(4, 5, "float64", 42, "float64"), case(0, 2, "no row", 43)]


def _first_column_added(xs: Sequence[Any]) -> list[Any]:
    total = sum((x[:, 0] for x in xs[1:]), xs[0][:, 0])
    return [np.concatenate([total[:, None], x[:, 1:]], axis=1) for x in xs]


def broken_repair_column(table):
    dist.all_reduce(table[:, 0])


@exercise(
    "Repair the sum of a column",
    _first_column_added,
    minutes=5,
    inputs=_tables,
    picture=lambda: [x.reshape(2, 2) for x in counting(3, 4)],
    promises=(Once(("all_reduce",)),),
    in_place=True,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S / 5, rounds=lambda n: 1),  # S: five columns
)
def repair_column(table):
    """Add the first column up over the ranks, in place.

    Every rank brings a `table` of the same shape. Afterwards its **first column** holds, on every rank, the sum over
    the ranks, and the other columns are as they were. Work in place and return nothing. Run the check first:
    which numbers were added up instead?
    Hint: A table lies in memory row by row. Where does its first column lie, and where would a call look that takes as
    many numbers as the column has, beginning at its first one?
    Hint: `table[:, 0].is_contiguous()` says whether the numbers are neighbours in memory; `.contiguous()` makes a copy
    in which they are.
    Hint: The sum is then in the copy. Who writes it into the table?
    Afterwards: A collective moves a stretch of memory. Gloo takes it from the tensor's first element on, whatever the
    strides say, and gives no error. NCCL refuses such a tensor, according to torch's source (not run here).
    """
    column = table[:, 0].contiguous()
    dist.all_reduce(column)
    table[:, 0] = column


def _six_results(xs: Sequence[Any]) -> list[Any]:
    gradients, chunks, parts, tokens, losses, lrs = zip(*xs, strict=True)
    n = len(xs)
    own, every = np.split(sum(chunks), n), np.concatenate(parts)
    mine = [np.concatenate(got) for got in zip(*(np.split(sent, n) for sent in tokens), strict=True)]
    return [[sum(gradients), own[r], every, mine[r], sum(losses) if r == 0 else ANY, lrs[0]] for r in range(n)]


def _six_needs(n: int) -> list[Case]:
    def case(sizes: Sequence[int], about: str, seed: int) -> Case:
        columns = [draws(n, size, seed=seed + i) for i, size in enumerate(sizes)]
        return Case(list(zip(*columns, strict=True)), about)

    return [
        case((2, n, 1, n, 1, 1), "", 50),
        case((5, 2 * n, 3, 3 * n, 2 * n, 1), "longer tensors", 60),
        case((40, 20 * n, 7, 10 * n, 10 * n, 2), "still longer tensors", 70),
    ]


@exercise(
    "Six needs, six calls",
    in_words(_six_results, "all that this rank needs, by six calls"),
    difficulty=2,
    inputs=_six_needs,
    picture=no_numbers,
    forbids=("scatter", *MESSAGES, *OBJECTS),
    promises=(Once(("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "reduce", "broadcast")),),
    least=Least(rounds=lambda n: 6),
)
def right_calls(gradient, shares, weight, tokens, loss, lr):
    """Give the ranks what they need, by one call for each need.

    Everything here has one dimension. Do each of these with **one** call, a different one each time:

    `gradient`: every rank needs the sum over the ranks.

    `shares`: `world_size` equal parts; of the sum over the ranks, rank r needs part r and nothing else, in `my_share`.

    `weight`: one rank's piece of a layer; every rank needs all pieces, one after the other, in `layer`.

    `tokens`: `world_size` equal parts; part r is for rank r's expert, so a rank gets one part from each, in
    `my_tokens`, in the order of the senders.

    `loss`: rank 0 logs the sum over the ranks, and no other rank needs it.

    `lr`: rank 0 has decided on it, and every rank needs rank 0's.

    There is room for the results, and the last line returns all six; of `loss`, ranks other than 0 may return anything.
    Hint: Ask two questions of each: who needs the result, one rank or all? And is something added up?
    Hint: If something is added up: does everyone need all of the sum, or a part of it, or only rank 0? If nothing is:
    does everyone need the same, or something of its own?
    Hint: `reduce_scatter_single`, `all_gather_single` and `all_to_all_single` take first the room, then what you bring;
    the others take the tensor that they overwrite.
    Afterwards: All-reduce would have done for three of the six: with more bytes, and with a result on ranks that have
    no use for it. The table at the end of the lesson has all eight.
    """
    my_share = torch.zeros(len(shares) // world_size, device=device)
    layer = torch.zeros(len(weight) * world_size, device=device)
    my_tokens = torch.zeros_like(tokens)
    # yours
    dist.all_reduce(gradient)
    dist.reduce_scatter_single(my_share, shares)
    dist.all_gather_single(layer, weight)
    dist.all_to_all_single(my_tokens, tokens)
    dist.reduce(loss, dst=0)
    dist.broadcast(lr, src=0)
    # end
    return [gradient, my_share, layer, my_tokens, loss, lr]


@exercise(
    "A reduce-scatter for half of the bytes",
    lambda xs: collectives.reduce_scatter(xs, splits=[len(xs[0]) // len(xs)] * len(xs)),
    difficulty=2,
    inputs=lambda n: [*divisible(n), Case(draws(n, 2 * n, "int32", 9), "int32")],
    forbids=("reduce_scatter", *MESSAGES, *OBJECTS),
    promises=(Calls(1),),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S),
    keeps_input=True,
    # Everyone else's chunks, for which there has to be room.
    least=Least(sent=lambda n, S: (n - 1) / n * S, rounds=lambda n: 1, memory=lambda n, S: (n - 1) / n * S),
)
def lean_reduce_scatter(x):
    """Return the sum of everyone's chunk r, on rank r.

    Gloo's reduce-scatter sends twice the bytes that it needs. Write a better one. Every rank brings a tensor `x` with
    one dimension: `world_size` chunks of equal length, one behind the other. All ranks' `x` have the same length and
    dtype. Return the sum of everyone's chunk r on rank r: a tensor with `len(x) // world_size` elements, in the dtype
    of `x`. **One** collective, other than `dist.reduce_scatter`, and no rank sends more than S (N - 1) / N bytes. `x`
    stays as it is, and the chunks may be empty.
    Hint: S (N - 1) / N bytes: a rank sends everything that it brings but its own chunk, once. Which rank is each
    of these chunks for?
    Hint: Which collective leaves everyone's chunk r on rank r, in the order of the ranks? Then add them up.
    Hint: `room.view(world_size, len(x) // world_size)` has one chunk a row; `.sum(dim=0, dtype=x.dtype)` adds the rows.
    Afterwards: The bytes are the least possible; the memory is not: each rank holds everyone's chunk before it adds. A
    ring adds on the way and needs room for one chunk. You build it in lesson 06.
    """
    swapped = torch.empty_like(x)
    dist.all_to_all_single(swapped, x)
    return swapped.view(world_size, len(x) // world_size).sum(dim=0, dtype=x.dtype)


def _vocabularies(n: int) -> list[Case]:
    def case(sizes: Sequence[int], shape: tuple[int, ...], about: str, seed: int, columns: int = 2) -> Case:
        parts = [x.reshape(-1, columns) for x in draws(n, [size * columns for size in sizes], seed=seed)]
        text = np.random.default_rng([seed, n]).integers(0, sum(sizes), shape)
        return Case([(part, sum(sizes[:r]), text) for r, part in enumerate(parts)], about)

    return [
        case([2] * n, (3,), "3 characters", 80),
        case([r + 1 for r in range(n)], (5,), "uneven parts", 81),
        case([3] * n, (4, 8), "4 rows of 8 characters", 82, 4),
        case([4, *[0] * (n - 1)], (6,), "only rank 0 has a part", 83),
        case([5] * n, (0,), "no character", 84),
        case([9] * n, (60, 8), "60 rows of 8 characters", 85, 8),
    ]


@exercise(
    "An embedding in parts",
    lambda xs: [np.concatenate([part for part, _, _ in xs])[xs[0][2]]] * len(xs),
    minutes=12,
    difficulty=3,
    inputs=_vocabularies,
    picture=lambda: [(x.reshape(2, 2), 2 * r, np.array([2, 1])) for r, x in enumerate(counting(2, 4))],
    forbids=("all_gather", "gather", "broadcast", "all_to_all", *MESSAGES, *OBJECTS),
    promises=(Once(("all_reduce",)),),
    keeps_input=True,
    least=Least(rounds=lambda n: 1),
)
def split_embedding(part, first, text):
    """Return the rows of the whole table for this text.

    An embedding is a table with a row of numbers for each character; `table[text]` looks the rows up. Now each rank has
    a `part` of the table: the rows from number `first` on, as many as `part` has. The parts follow one another in the
    order of the ranks, and may differ in length or be empty. `text` holds integers, in any shape, and is the same on
    all ranks. Return `table[text]` on every rank, with **one** call that communicates, and without giving any rank the
    rest of the table.
    Hint: For each character exactly one rank has the row. What could the other ranks bring to a sum, so that it is that
    row?
    Hint: Make a tensor of zeros in the shape of the result. Fill in the rows that you have: a mask such as `(text >=
    first) & (text < first + len(part))` says where.
    Hint: `rows[mask] = part[text[mask] - first]` fills them in. Then one all-reduce.
    Afterwards: This is Megatron's vocabulary-parallel embedding. All-gathering the table would give each rank the
    whole table, which is too large for it; here the traffic depends on the text, not on the vocabulary.
    """
    here = (text >= first) & (text < first + len(part))
    rows = torch.zeros(*text.shape, part.shape[1], device=device)
    rows[here] = part[text[here] - first]
    dist.all_reduce(rows)
    return rows


def broken_centred(x):
    total = x.detach().clone()
    dist.all_reduce(total)
    return x - total / world_size


@exercise(
    "A mean that gradients pass through",
    lambda xs: [x - sum(xs[1:], xs[0]) / len(xs) for x in xs],
    minutes=15,
    difficulty=3,
    inputs=lambda n: [
        # No number is the mean: next to nothing would be left of it, and a mean that rounds otherwise be called wrong.
        Case([np.array([x], dtype="float32") for x in (1.0, 2.0, 6.0, 7.0)[:n]], "one number"),
        Case(draws(n, 3, "float64", 90), "float64"),
        Case([x.reshape(2, 2) for x in draws(n, 4, "float64", 91)], "2 rows, 2 columns"),
        Case(draws(n, 0, "float64", 92), "no element"),
    ],
    gradients=True,
    tolerance=1e-5,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 1, memory=lambda n, S: S),
)
def centred(x):
    """Return x minus the mean over the ranks.

    Every rank brings activations `x` of the same shape. Return `x` minus the mean over the ranks, element by element.
    Here `detach()` has silenced torch's warning: the numbers are right, and the gradients are still wrong. The check
    calls `backward()` on every rank and wants the gradient of the **sum of all ranks' losses**: every rank's loss
    depends on every rank's `x`. (A rank's loss is the sum of what it returns, with a different weight for each
    element.) Write the backward pass of the all-reduce yourself, in a `torch.autograd.Function`.
    Hint: Change rank 0's `x` a little. Whose losses change? Which ranks hold the gradients of those losses with respect
    to the sum?
    Hint: The sum is the same number for all ranks, and each rank's loss has a gradient with respect to it. The gradient
    of the sum of all losses is the sum of these: so what does backward have to call?
    Hint: A `torch.autograd.Function` has two static methods, `forward(ctx, x)` and `backward(ctx, gradient)`, and is
    called by `Sum.apply(x)`. Work on copies in both of them.
    Afterwards: The backward pass of an all-reduce is an all-reduce. `comms.all_reduce` of this workbook does it, and so
    does torch's batch normalisation over ranks. Now all ranks must call backward, and in the same order.
    """

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            total = x.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx, gradient):
            total = gradient.clone()
            dist.all_reduce(total)
            return total

    return x - Sum.apply(x) / world_size
