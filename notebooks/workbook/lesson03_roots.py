"""Lesson 03: what a root collects and deals out, and its calls made of others, or of sends and receives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.floor.words import count
from labkit.grading.exercise import Budget, Least, exercise
from labkit.grading.inputs import Case, draws, vectors
from labkit.grading.promises import Once
from labkit.theory import collectives
from labkit.theory.primitives import OBJECTS
from labkit.theory.record import Record
from labkit.theory.values import split

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, rank, torch, world_size


def _losses(n: int) -> list[Case]:
    return [
        Case([np.array([r + 1.0], dtype="float32") for r in range(n)]),
        Case([np.array([0.5 - 2 * r], dtype="float32") for r in range(n)], "negative losses"),
        Case([np.array([2.0**r], dtype="float64") for r in range(n)], "float64"),
    ]


_mean_on_0 = partial(collectives.reduce, root=0, op="AVG")


def _tensor_on_0(out, loss):
    # Numbers are compared, and a Python number counts as a tensor of one: so what the root returns is looked at here.
    assert rank != 0 or out is None or isinstance(out, torch.Tensor), (
        f"it returns {out!r:.40}, a {type(out).__name__}, and a tensor is asked for"
    )
    return out


def broken_repair_gather_losses(loss):
    all_losses = [0.0] * world_size
    room = [torch.full_like(loss, each) for each in all_losses] if rank == 0 else None
    dist.gather(loss, room, dst=0)
    if rank == 0:
        return torch.tensor([sum(all_losses) / world_size], dtype=loss.dtype, device=device)


@exercise(
    "Repair: the average loss",
    _mean_on_0,
    minutes=5,
    inputs=_losses,
    forbids=("reduce", "all_reduce", *OBJECTS),
    promises=(Once(("gather",)),),
    least=Least(sent=lambda n, S: S, rounds=lambda n: 1, memory=lambda n, S: n * S),
    collect=_tensor_on_0,
)
def repair_gather_losses(loss):
    """Return the mean of all ranks' losses, on rank 0.

    This is the function of the lesson that logs 0.0. Run it, run the check, and repair it with a **gather**. `loss` is
    a tensor with one number on every rank. Return, on rank 0, a tensor with one number: the mean of all losses, in the
    dtype of `loss`. What the other ranks return does not count.
    Hint: The gather fills the tensors in the list that it is given. Which list is averaged?
    Hint: `torch.stack(room).mean(dim=0)` is a tensor with one number.
    Afterwards: The losses arrived in `room`, but the mean was that of `all_losses`, which still held its zeros.
    """
    room = [torch.zeros_like(loss) for _ in range(world_size)] if rank == 0 else None
    dist.gather(loss, room, dst=0)
    if rank == 0:
        return torch.stack(room).mean(dim=0)


def run_repair_reduce(repair_reduce, loss):
    """Collect the loss, unless it is one that the reduce has worked in: it comes back other than it went in."""
    before = loss.clone()
    out = _tensor_on_0(repair_reduce(loss), loss)
    assert rank == 0 or out is not loss or loss.equal(before), (
        f"it returns its `loss`, which was {before.item():g} and is {loss.item():g} now: on any rank `dist.reduce` may "
        "leave a part of the sum in the tensor that it is given. Give it a copy"
    )
    return out


def broken_repair_reduce(loss):
    if rank == 0:
        total = dist.reduce(loss, dst=0, op=dist.ReduceOp.SUM)
        return total / world_size
    return loss


@dataclass(frozen=True)
class Root:
    """Where a collective has a root, it is this rank, numbered as torch numbers the ranks of the world."""

    rank: int

    def broken(self, record: Record) -> str:
        for op in record.calls:
            if op.kind == "collective" and op.peer not in (None, self.rank):
                named = f"calls {op.called} with rank {op.peer} as the root{op.at}"
                return f"Rank {op.rank} {named}, and rank {self.rank} is asked for."
        return ""


@exercise(
    "Repair: rank 0 logs the loss",
    lambda xs: [_mean_on_0(xs)[0], *xs[1:]],
    minutes=6,
    inputs=_losses,
    forbids=("all_reduce", "gather", "all_gather", *OBJECTS),
    promises=(Once(("reduce",)), Root(0)),
    least=Least(sent=lambda n, S: S, rounds=lambda n: 1, memory=lambda n, S: S),
    harness=run_repair_reduce,
)
def repair_reduce(loss):
    """Return the mean of all losses on rank 0, and this rank's own loss elsewhere.

    The idea of this function: only rank 0 logs, so only rank 0 reduces. Run it and its check, and repair it with a
    **reduce**. It has more than one fault. `loss` is a tensor with one number on every rank. Rank 0 returns a tensor
    with the mean of all losses, in the dtype of `loss`. Every other rank returns **its own** `loss`, as it was.
    Hint: How many ranks reach the line with `dist.reduce`, and how many must?
    Hint: `dist.reduce` returns `None`. Rank 0 finds the sum in the tensor that it passed.
    Hint: Off the root, you cannot rely on what the passed tensor holds afterwards. Pass a copy:
    `loss.detach().clone()`.
    Afterwards: Three faults in two lines: a collective under `if rank == 0` (a hang), the result of a call that returns
    `None`, and a loss that is overwritten on the other ranks.
    """
    total = loss.detach().clone()
    dist.reduce(total, dst=0)
    return total / world_size if rank == 0 else loss


def _answers(n: int) -> list[Case]:
    """Draw which of a rank's validation samples the model got right; every rank has a different number of them."""

    def drawn(sizes: Sequence[int], seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng([seed, n])
        return [rng.random(size) < 0.2 + 0.2 * r for r, size in enumerate(sizes)]

    return [
        Case([np.arange(4 * (r + 1)) < 1 + 3 * r for r in range(n)]),
        Case(drawn([7 * (n - r) for r in range(n)], 1), "the last rank has the fewest samples"),
        Case(drawn([0, *[10 + r for r in range(1, n)]], 2), "rank 0 has no sample"),
        Case(drawn([300 + r for r in range(n)], 3), "some 300 samples per rank"),
        Case([np.zeros(3 + r, dtype=bool) for r in range(n)], "the model got all samples wrong"),
    ]


@exercise(
    "Accuracy over everyone's samples",
    lambda xs: [(right := np.concatenate(xs)).sum() / len(right), *[None] * (len(xs) - 1)],
    minutes=6,
    inputs=_answers,
    promises=(Once(("reduce",)), Root(0)),
    least=Least(rounds=lambda n: 1),
)
def accuracy(right):
    """Return the accuracy over all ranks' samples, on rank 0.

    Each rank validated a different number of samples: `right` is a tensor of booleans, one for each of this rank's
    samples, and may be empty. Return, on rank 0, the accuracy over **all** samples, with a single `dist.reduce`. What
    the other ranks return does not count.
    Hint: A mean of means weighs a rank with 3 samples as much as one with 300. Which two numbers add up?
    Hint: Put how many are right and how many there are into one tensor, and reduce that.
    Afterwards: Reduce what adds up, and divide afterwards. It is the same with a loss over uneven batches: reduce the
    sum and the count.
    """
    counts = torch.tensor([right.sum(), right.numel()], dtype=torch.float64, device=device)
    dist.reduce(counts, dst=0)
    return counts[0] / counts[1]


def _in_order(xs: Sequence[Any]) -> list[Any]:
    everyone = np.zeros(sum(map(len, xs)), dtype="int64")
    for r, x in enumerate(xs):
        everyone[r :: len(xs)] = x
    return [everyone, *[None] * (len(xs) - 1)]


@exercise(
    "Put the predictions back in order",
    _in_order,
    minutes=12,
    difficulty=2,
    inputs=lambda n: [
        Case([x[r::n].astype("int64") for r in range(n)], about)
        for x, about in (
            (np.arange(3 * n), ""),
            (np.arange(2 * n + 1) + 100, count(2 * n + 1, "sample")),
            (np.arange(4 * n - 1)[::-1], count(4 * n - 1, "sample")),
            (np.arange(n - 1) - 5, f"{count(n - 1, 'sample')}, so the last rank has none"),
            (np.zeros(0), "no sample"),
            (np.arange(1, 301) ** 2 % 97, "300 samples"),
        )
    ],
    forbids=(*OBJECTS, "send", "isend"),
    budget=Budget(sent=lambda n, S: S + 96),  # its own, padded, and what tells the sizes
    least=Least(rounds=lambda n: 2),
)
def gather_predictions(mine):
    """Return everyone's predictions on rank 0, in the order of the samples.

    Samples were dealt out one by one: rank r predicted samples r, r + N, r + 2N and so on, N being `world_size`. N need
    not divide their number, and no rank knows that number. `mine` is a tensor of integers, this rank's predictions in
    that order. Return, on rank 0, all predictions in the **order of the samples**. What the other ranks return does not
    count. Use tensors, and let no rank but rank 0 receive the others' predictions.
    Hint: `dist.gather` wants equal shapes. How long must the tensors be, and how does every rank learn it?
    Hint: Pad with zeros to the longest share. Its length is known after an all-gather of the sizes.
    Hint: The k-th predictions of ranks 0, 1, 2 … are neighbours in the order of the samples: `torch.stack(parts,
    dim=1)` has them side by side.
    Hint: Only the last ranks can be one short, so all padding ends up at the end: cut it off there.
    Afterwards: A sampler that deals out samples often pads by repeating some of them, so that all shares are equal.
    Then the repeated ones must be cut off before an accuracy is computed, or they count twice.
    """
    size = torch.tensor([len(mine)], device=device)
    sizes = [torch.zeros_like(size) for _ in range(world_size)]
    dist.all_gather(sizes, size)
    padded = mine.new_zeros(max(sizes).item())
    padded[: len(mine)] = mine
    parts = [torch.zeros_like(padded) for _ in range(world_size)] if rank == 0 else None
    dist.gather(padded, parts, dst=0)
    if rank == 0:
        return torch.stack(parts, dim=1).flatten()[: sum(sizes).item()]


@exercise(
    "Deal out what does not divide",
    lambda xs: split(xs[0], len(xs)),
    minutes=15,
    difficulty=2,
    inputs=lambda n: [  # more elements than ranks, fewer, none
        Case([x[: 0 if r else None] for r, x in enumerate(draws(n, k, dtype, seed=k))], about)
        for k, dtype, about in (
            (2 * n, "float32", ""),
            (2 * n + 1, "float32", f"{2 * n + 1} elements, which {n} does not divide"),
            (1, "float32", "one element for all ranks"),
            (0, "float32", "no element"),
            (3 * n - 1, "int64", "integers"),
            (101, "float64", "float64"),
        )
    ],
    forbids=(*OBJECTS, "send", "isend"),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S + 64),  # 64: the length, told to all
    least=Least(sent=lambda n, S: (n - 1) / n * S + 8, rounds=lambda n: 2, memory=lambda n, S: S / n),
)
def scatter_uneven(x):
    """Return part r of rank 0's x, on rank r.

    Rank 0 has a tensor `x` with one dimension and any number of elements. The others bring an empty one of the same
    dtype and do **not** know how long rank 0's is. Cut it into `world_size` consecutive parts as
    `x.tensor_split(world_size)` does: the first parts are one element longer where it does not divide. Rank r returns
    part r, which may be empty. Use tensors: no object collectives and no send. About S (N - 1) / N bytes may leave rank
    0, S being the bytes of its `x`, so no other rank gets the whole.
    Hint: What must the others know before they can make room? One number does it.
    Hint: `dist.scatter` wants tensors of equal shape: pad the short parts, and cut the padding off after the call.
    Hint: With `short, longer = divmod(length, world_size)`, part r has `short + (rank < longer)` elements.
    Afterwards: Pad, or send the sizes first: every library that deals out uneven work does one of the two.
    `comms.scatter` does.
    """
    length = torch.tensor([len(x)], device=device)
    dist.broadcast(length, src=0)
    short, longer = divmod(length.item(), world_size)
    mine = torch.zeros(short + 1, dtype=x.dtype, device=device)
    padded = None
    if rank == 0:
        padded = [torch.zeros_like(mine) for _ in range(world_size)]
        for room, part in zip(padded, x.tensor_split(world_size)):
            room[: len(part)] = part
    dist.scatter(mine, padded, src=0)
    return mine[: short + (rank < longer)]


@exercise(
    "A broadcast without a broadcast",
    collectives.broadcast,
    minutes=12,
    difficulty=2,
    forbids=("broadcast", "reduce", "all_reduce", "send", "isend", "gather", "all_to_all", *OBJECTS),
    promises=(Once(("scatter", "all_gather")),),
    keeps_input=True,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 2, memory=lambda n, S: S),
)
def broadcast_from_scatter_all_gather(x):
    """Return rank 0's x on every rank, by a scatter and an all-gather.

    Every rank brings a tensor `x` with one dimension, of the same length and dtype. Return a tensor like it with **rank
    0's** numbers, on every rank, by a `dist.scatter` of the parts and a `dist.all_gather` of them. The length need not
    divide by `world_size`, and may be 0. `x` stays as it is.
    Hint: A scatter wants equal parts. What can you put behind the last element?
    Hint: `-(-len(x) // world_size)` rounds up. `padded.view(world_size, size)` has one part a row.
    Hint: After the all-gather, `torch.cat(parts)` and cut the padding off.
    Afterwards: The root now sends S (N - 1) / N bytes in the scatter and as much in the all-gather: less than 2 S,
    however many ranks there are. A tree's root sends S · ⌈log2 N⌉. Long messages are broadcast like this.
    """
    size = -(-len(x) // world_size)
    padded = x.new_zeros(size * world_size)
    padded[: len(x)] = x
    mine = x.new_empty(size)
    dist.scatter(mine, list(padded.view(world_size, size)) if rank == 0 else None, src=0)
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    return torch.cat(parts)[: len(x)]


def _every_root(n: int) -> list[Case]:
    """Make buffers with every rank as the root in turn, the first case with root 0."""
    return [
        replace(case, about=f"root {i % n}" + (f", {case.about}" if case.about else ""), options={"root": i % n})
        for i, case in enumerate(vectors(n))
    ]


@exercise(
    "A broadcast in ⌈log2 N⌉ steps",
    collectives.broadcast,
    minutes=15,
    difficulty=3,
    inputs=_every_root,
    forbids=("collectives",),
    budget=Budget(steps=lambda n: (n - 1).bit_length()),
    keeps_input=True,
    least=Least(
        sent=lambda n, S: (n.bit_length() - 1) * S, rounds=lambda n: (n - 1).bit_length(), memory=lambda n, S: S
    ),
)
def tree_broadcast(x, root):
    """Return the root's x on every rank: whoever has it passes it on.

    Every rank brings a tensor `x` of the same shape and dtype. Return a tensor like it with the numbers of rank
    **`root`**, on every rank, by send and receive only. In a step a rank sends one message at most, and all is done in
    ⌈log2 N⌉ **steps**: two with four ranks. So the root must not serve every rank itself. `x` stays as it is.
    Hint: Take root 0 first. After the first step two ranks have it. How many can have it after the second one, if both
    pass it on?
    Hint: In the step in which the ranks below `have` have it, rank r serves rank r + `have`. Double `have` after each
    step, and mind the ranks that do not exist.
    Hint: For another root count the places from there: `place = (rank - root) % world_size`.
    Afterwards: Gloo broadcasts by such a tree. `lab.last.steps()` shows it step by step.
    """
    got = x.clone()
    place = (rank - root) % world_size  # counted from the root
    have = 1  # the places below this one have it
    while have < world_size:
        if place < have and place + have < world_size:
            dist.send(got, dst=(rank + have) % world_size)
        elif have <= place < 2 * have:
            dist.recv(got, src=(rank - have) % world_size)
        have *= 2
    return got


@exercise(
    "A scatter in ⌈log2 N⌉ steps",
    lambda xs: [xs[0][r] for r in range(len(xs))],
    minutes=20,
    difficulty=3,
    inputs=lambda n: [
        Case([x.reshape(n, k) for x in draws(n, n * k, dtype, seed=k)], about)
        for k, dtype, about in (
            (2, "float32", ""),
            (1, "float32", "one number a row"),
            (0, "float32", "empty rows"),
            (3, "int64", "integers"),
            (101, "float64", "101 numbers a row"),
        )
    ],
    forbids=("collectives",),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S, steps=lambda n: (n - 1).bit_length()),
    keeps_input=True,
    least=Least(
        sent=lambda n, S: (n - 1) / n * S, rounds=lambda n: (n - 1).bit_length(), memory=lambda n, S: n // 2 * S / n
    ),
)
def tree_scatter(x):
    """Return row r of rank 0's x, on rank r.

    Rank 0 has a tensor `x` with one row for each rank. The others bring a tensor of the same shape and dtype whose
    numbers do not count. Return row `rank` of **rank 0's** `x`, on every rank, by send and receive only and in ⌈log2 N⌉
    **steps**, for any number of ranks. Rank 0 sends no row twice: S (N - 1) / N bytes at most, S being the bytes of
    `x`.
    Hint: Rank 0 sends the rows of half of the ranks to one of them. Who deals those out, and what does rank 0 do
    meanwhile?
    Hint: Every rank keeps track of the block of ranks that it belongs to, from `low` up to `high`; rank `low` has the
    block's rows. Cut the block at `middle` in each step.
    Hint: Round `middle` up: with three ranks the lower block then has two ranks, and two steps are enough.
    Afterwards: The same bytes leave rank 0 as in a plain scatter, in ⌈log2 N⌉ messages instead of N - 1. For short
    messages to many ranks that is faster; for long ones the rows in the middle travel more than once for nothing.
    """
    rows = x.clone()
    low, high = 0, world_size  # rank `low` has the rows of the ranks from low up to high
    while high - low > 1:
        middle = (low + high + 1) // 2
        if rank == low:
            dist.send(rows[middle:high], dst=middle)
        elif rank == middle:
            dist.recv(rows[middle:high], src=low)
        low, high = (low, middle) if rank < middle else (middle, high)
    return rows[rank]
