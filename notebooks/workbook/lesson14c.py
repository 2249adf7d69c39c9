"""Exercises of lesson 14c, the exam: five broken programs that no lesson has shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from labkit.grading.inputs import counting, draws
from labkit.grading.prediction import series
from labkit.grading.promises import Calls, Messages

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, rank, torch, world_size


def _clipped(xs: Sequence[Any], limit: float) -> list[Any]:
    mean = np.mean(xs, axis=0, dtype="float64")
    norm = float(np.linalg.norm(mean))
    return [(mean * min(1.0, limit / norm if norm else 1.0)).astype("float32")] * len(xs)


def _gradients(n: int) -> list[Case]:
    steep = [np.float32([3, 4]) * (r + 1) for r in range(n)]
    opposite = [np.float32([6, 8]) * (-1) ** r * (1 + (r == 0)) for r in range(n)]
    return [
        Case(steep, "a steep gradient", {"limit": 1.0}),
        Case(steep, "a limit that is not reached", {"limit": 100.0}),
        Case(opposite, "large gradients that nearly cancel", {"limit": 5.0}),
        Case(draws(n, 50, seed=14), "50 numbers", {"limit": 0.5}),
    ]


def broken_exam_clip(gradient, limit):
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
)
def exam_clip(gradient, limit):
    """Return the mean gradient of all ranks, clipped to the norm limit.

    `gradient` is one rank's gradient, a vector. Return the **mean gradient of all ranks, clipped**: if its norm is
    larger than `limit`, scale it down to that norm; otherwise leave it as it is. All ranks return the same numbers.
    `gradient` stays as it is. One call is enough.
    Hint: Is `scale` the same number on all ranks? What happens to weights that get different updates?
    Hint: Which gradient's norm has to be compared with the limit, and when is that gradient known?
    Afterwards: Clip a gradient that is the same on all ranks: the averaged one, after the all-reduce. If the ranks hold
    shards of a model, the order is reversed: first sum the squares of the norms over the ranks, then clip.
    """
    mean = gradient.clone()
    dist.all_reduce(mean)
    mean /= world_size
    return mean * torch.clamp(limit / mean.norm(), max=1.0)


def broken_exam_edges(x):
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
    lambda xs: [np.concatenate([xs[r - 1][-1:], x, xs[(r + 1) % len(xs)][:1]]) for r, x in enumerate(xs)],
    minutes=7,
    difficulty=2,
    inputs=lambda n: [
        Case(counting(n, 3), ""),
        Case(counting(n, 1), "one number on each rank, which is both edges"),
        Case(draws(n, 40, seed=3), "40 numbers"),
        Case(draws(n, 5, "float64", 4), "float64"),
    ],
    ranks=(4, 2, 3),
    keeps_input=True,
    promises=(Messages(2),),
)
def exam_edges(x):
    """Return the strip between its two neighbours' edges.

    A long row of numbers is cut into strips, and `x` is this rank's strip. The strips form a ring: the last rank is the
    left neighbour of rank 0. Return the strip with one more number at each end: before it the last number of the left
    neighbour's strip, after it the first number of the right neighbour's. `x` stays as it is. Two messages from each
    rank are enough. It must work with two ranks, too, where both neighbours are the same rank.
    Hint: Write down the two messages that rank 1 sends: to which rank, and with which tag. Then write down the two that
    rank 2 expects.
    Hint: A message that comes from the left was sent to the right. Which tag did its sender give it?
    Afterwards: Both sides of a message have to agree on its tag: choose it by the direction in which the message
    travels, not by the side of the strip. Gloo compares tags. NCCL ignores them (pytorch#94819, #125079) and
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


def broken_exam_load(stored):
    if rank == 0:
        weight = stored.clone().t()
    else:
        weight = torch.empty(stored.shape[1], stored.shape[0], device=device)
    dist.broadcast(weight, src=0)
    return weight


@exercise(
    "Program C: load the weights",
    lambda xs: [xs[0].T] * len(xs),
    minutes=5,
    difficulty=2,
    inputs=lambda n: [
        Case([x.reshape(shape) for x in counting(n, shape[0] * shape[1])], about)
        for shape, about in (
            ((2, 3), ""),
            ((3, 3), "a square matrix"),
            ((1, 4), "a single column"),
            ((5, 8), "5 times 8"),
        )
    ],
    keeps_input=True,
    promises=(Calls(1),),
)
def exam_load(stored):
    """Return the transpose of rank 0's matrix.

    Rank 0 has read a matrix from a checkpoint that keeps it transposed: the rows of `stored` are the model's columns.
    (The other ranks bring a matrix of the same shape, with other numbers.) Return the model's `weight`, the
    transpose of **rank 0's** `stored`, on every rank. `stored` stays as it is. One call is enough.
    Hint: Which rank is right? Compare what rank 1 holds with rank 0's `stored`, number by number, in their order.
    Hint: Run `print(weight.shape, weight.stride())` on each rank. Does a message carry the shape, or the stride?
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


def _hits(n: int) -> list[Case]:
    def case(rows: int, about: str, seed: int) -> Case:
        hits = np.random.default_rng([seed, n]).integers(0, 2, rows).astype("float32")
        hits[0] = 1.0
        padded = np.append(hits, np.resize(hits, -rows % n))
        return Case([padded[r::n].copy() for r in range(n)], about, {"rows": rows})

    return [
        case(n + 1, "one row more than ranks", 1),
        case(3 * n, "rows that can be dealt out evenly", 2),
        case(10 * n + 1, "the last row is on rank 0 alone", 3),
        case(5, "five rows", 5),
    ]


def broken_exam_accuracy(hits, rows):
    accuracy = hits.mean()
    dist.all_reduce(accuracy)
    return accuracy / world_size


@exercise(
    "Program D: the accuracy",
    lambda xs, rows: [np.float32(np.stack(xs, axis=1).reshape(-1)[:rows].mean())] * len(xs),  # row i is on rank i % n
    minutes=6,
    difficulty=2,
    inputs=_hits,
    tolerance=1e-5,
    promises=(Calls(1),),
)
def exam_accuracy(hits, rows):
    """Return the accuracy over the rows of the test set.

    A sampler dealt out the `rows` rows of a test set in turn, row i to rank i % world_size, and made sure that all
    ranks have the same number of rows. `hits` has a 1 for each row of this rank that was predicted right, in their
    order, and a 0 for each other row. On every rank, return the accuracy over the `rows` rows of the test set, as a
    tensor with one number. One call is enough.
    Hint: Count the rows that all ranks have together. Are there `rows` of them?
    Hint: Row i is on rank i % world_size at place i // world_size. Which places of this rank are real rows?
    Afterwards: `DistributedSampler` repeats rows. That does no harm in training, but it shifts every metric, and more
    so with a smaller test set or more ranks. No tool finds it: count the rows.
    """
    mine = len(range(rank, rows, world_size))  # without repeated rows
    right = hits[:mine].sum()
    dist.all_reduce(right)
    return right / rows


def broken_exam_deal(x):
    each = -(-len(x) // world_size)  # rounded up
    mine = x.new_empty(each)
    parts = list(x.chunk(world_size)) if rank == 0 else None
    dist.scatter(mine, parts, src=0)
    return mine


@exercise(
    "Program E: deal out the rows",
    lambda xs: [*np.append(xs[0], np.zeros(-len(xs[0]) % len(xs), "float32")).reshape(len(xs), -1)],
    minutes=6,
    inputs=lambda n: [
        Case(counting(n, 2 * n), "rows that can be dealt out evenly"),
        Case(counting(n, 2 * n + 1), "one row too many"),
        Case(counting(n, 1), "one row"),
        Case(draws(n, 3 * n - 1, seed=5), "one row too few"),
    ],
    ranks=(4, 3),
    keeps_input=True,
    promises=(Calls(1),),
)
def exam_deal(x):
    """Return this rank's rows of rank 0's x.

    Rank 0 deals out its `x`, with one number per row: the first rows to rank 0, the next ones to rank 1, and so on,
    `ceil(len(x) / world_size)` rows to each. If there are too few rows, zeros fill up the rest. Return this rank's
    rows. (`x` has the same length on all ranks, and only rank 0's numbers are used.) `x` stays as it is. One call is
    enough.
    Hint: What is `len(parts)` for 9 rows and 4 ranks? Try `[len(part) for part in torch.arange(9).chunk(4)]`.
    Hint: Fill up `x` with zeros first: then every part has the same length, and there are enough of them.
    Afterwards: `chunk(4)` gives four parts at most: 9 rows make three parts of 3 (pytorch#145026). `tensor_split(4)`
    always gives four, but of different lengths, which `scatter` does not take either. If the number of rows is a
    multiple of the number of ranks, all three ways are the same, and the test passes.
    """
    each = -(-len(x) // world_size)  # rounded up
    mine = x.new_empty(each)
    full = x.new_zeros(each * world_size)
    full[: len(x)] = x
    parts = list(full.chunk(world_size)) if rank == 0 else None
    dist.scatter(mine, parts, src=0)
    return mine


exam_diagnosis = series(
    """
Two questions about each program: what does it do on four ranks with Gloo, and what is the cause?
""",
    exam_a_does="""
**Program A**, `exam_clip`, on four different gradients, all of them steeper than the limit:
( ) ranks wait for ever, and none raises
    > All ranks make the same single call, so no rank is missing.
( ) at least one rank raises an error
    > Shapes and dtypes agree, and `limit / norm` is an ordinary division.
( ) all end well, with the same wrong result
    > They would agree if `scale` were computed from the mean. Is it?
(x) all end well, but their results disagree
( ) all end well, with the right result
    > It is right if no gradient reaches the limit. These do.
Why: Each rank scales the same mean by a different factor, so the weights drift apart.
""",
    exam_a_because="""
**Program A**, the cause:
( ) the mean is divided by the number of ranks twice
    > It is divided once, by `world_size`.
( ) the all-reduce writes into the caller's gradient
    > It would without `.clone()`.
(x) the norm is taken of the gradient before the all-reduce
( ) the scale has an upper bound but no lower one
    > A scale is never negative here.
Why: An update may depend only on numbers that are the same on all ranks: take the norm of the mean, after the
all-reduce.
""",
    exam_b_does="""
**Program B**, `exam_edges`, on four strips of three numbers:
(x) ranks wait for ever, and none raises
( ) at least one rank raises an error
    > All ranks and tags are legal, and the lengths agree. No single rank sees anything wrong.
( ) all end well, with the same wrong result
    > No two ranks should hold the same here. But does every `recv` get a message at all?
( ) all end well, but their results disagree
    > That would be true if a `recv` took any message of the right length. Gloo also compares the tag.
( ) all end well, with the right result
    > The two sends and the two receives look alike. Follow one message, with its tag, from rank 0 to rank 1.
Why: Each rank waits in its first `recv` for a message with tag 0 from the left. What the left neighbour sends to the
right has tag 1.
Elsewhere: **With NCCL**, which ignores tags, messages are taken in the order in which they were sent. On three ranks or
more that would be the right message, if single sends and receives get that far there: they should be in one
`batch_isend_irecv`. (From torch's source and the reports below, not run.)
""",
    exam_b_because="""
**Program B**, the cause:
( ) the handles of `isend` are waited for after the calls of `recv`
    > That is the right order: the sends run in the background meanwhile.
( ) all ranks send before they receive, around a closed ring
    > With `send` this would be a cycle of waits. `isend` returns at once.
( ) the neighbours of the first and the last rank are computed wrongly
    > In Python, `-1 % 4` is 3, so the ring closes.
(x) a message has one tag for its sender and another for its receiver
Why: A tag should name the direction in which a message travels: a message *from* the left was sent *to* the right.
""",
    exam_c_does="""
**Program C**, `exam_load`, on matrices of 2 rows and 3 columns:
( ) ranks wait for ever, and none raises
    > All ranks make the same call, with the same root and number of bytes: each rank gets what it waits for.
( ) at least one rank raises an error
    > Both tensors are 3 by 2, and Gloo checks nothing else.
( ) all end well, with the same wrong result
    > Print rank 0's `weight`: it does hold the transpose.
(x) all end well, but their results disagree
( ) all end well, with the right result
    > It would be right if a broadcast sent elements by their index. What does it send?
Why: Rank 0 holds the transpose. The others got its numbers in the order of rank 0's memory, which is the order of
`stored`.
Elsewhere: **With NCCL** rank 0 raises an error: torch takes only contiguous tensors there. (From its source, not run.)
""",
    exam_c_because="""
**Program C**, the cause:
(x) `t()` leaves the numbers in memory as they were
( ) `clone()` copies `stored` before it is transposed
    > Copying first is not the mistake: `.t().clone()` keeps the strides, too.
( ) `empty` makes a matrix with rows and columns swapped
    > The transpose of 2 by 3 is 3 by 2, which is what it makes.
( ) `broadcast` has a different tensor name on rank 0
    > It is called `weight` everywhere, and a name would not travel anyway.
Why: A transposed view has the strides (1, 3), an empty tensor of this shape has (2, 1). Only the memory travels. Make
it contiguous before the call.
""",
    exam_d_does="""
**Program D**, `exam_accuracy`, for 5 rows on four ranks, 2 each:
( ) ranks wait for ever, and none raises
    > The sampler has made sure that all ranks have the same number of rows, and each makes one call.
( ) at least one rank raises an error
    > `hits` are floats, so they have a mean: a tensor of the same shape on each rank.
(x) all end well, with the same wrong result
( ) all end well, but their results disagree
    > All get the same sum and divide it by the same 4.
( ) all end well, with the right result
    > It is the mean of all rows that were dealt out. Are these the rows of the test set?
Why: Three repeated rows count as if they were new: 8 entries of `hits` are averaged, and there are 5 rows.
""",
    exam_d_because="""
**Program D**, the cause:
( ) the ranks average over different numbers of rows
    > All of them have the same number of rows, so this is not the mistake here.
(x) the rows that fill up the last round count like all others
( ) the mean of ones and zeros is rounded on each rank
    > A mean of floats is not rounded to 0 or 1.
( ) the order of the rows is not the same in each epoch
    > Nothing is shuffled here, and an accuracy does not depend on the order.
Why: No tool can see it. Count the rows that go into a metric, and compare with the size of the test set.
""",
    exam_e_does="""
**Program E**, `exam_deal`, for 9 rows on four ranks:
( ) ranks wait for ever, and none raises
    > Ranks 1 to 3 wait, but for whom? Count the parts that rank 0 has.
(x) at least one rank raises an error
( ) all end well, with the same wrong result
    > Each rank should hold something different here. But do they get that far?
( ) all end well, but their results disagree
    > That would be true if the last rank's part were left as it was made. `scatter` needs a part for each rank.
( ) all end well, with the right result
    > It is right for 8 rows. How long are the parts of 9 rows, and how many of them are there?
Why: Rank 0 has three parts for four ranks, and `scatter` refuses the list. The other three ranks wait in `scatter` for
rank 0, which has left: as in case 7, look at the error, not at those who wait.
""",
    exam_e_because="""
**Program E**, the cause:
( ) `parts` is not known on the ranks other than rank 0
    > Only the root has to bring a list.
( ) `each` is rounded up where it should be rounded down
    > With 2 rows each, one of the nine would belong to no rank.
(x) `chunk` may give fewer parts than it was asked for
( ) `mine` has as many numbers on rank 0 as on the others
    > That is what `scatter` needs, and what the card asks for.
Why: `x.chunk(4)` first decides on the length, 3, and then cuts: 3 + 3 + 3. Fill up with zeros first.
""",
)
