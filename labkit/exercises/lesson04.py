"""Exercises for lesson 04: collectives out of other collectives, uneven parts, and a mean of integers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import Any

import numpy as np

from labkit.grading.exercise import Exercise, Least, Mutant
from labkit.grading.inputs import Case, counting, divisible, draws, uneven
from labkit.grading.promises import Once
from labkit.theory import collectives
from labkit.theory.primitives import MESSAGES, OBJECTS


def _own_chunk_of_the_sum(xs: Sequence[Any]) -> list[Any]:
    n = len(xs)
    return collectives.reduce_scatter(xs, splits=[len(xs[0]) // n] * n)


def _integers(n: int) -> list[Case]:
    return [
        Case(counting(n, 3, "int64")),
        Case([np.array([r + 1]) for r in range(n)], "one integer"),
        Case(draws(n, 5, "int64", 1), "negative integers"),
        Case(draws(n, 4, "int32", 2), "int32"),
        Case(counting(n, 0, "int64"), "no element"),
    ]


ALL_REDUCE_BY_HAND = Exercise(
    name="all_reduce_by_hand",
    lesson="04",
    title="An all-reduce from two others",
    statement=(
        "Every rank brings a tensor `x` of the same shape and dtype. Return a new tensor like it with the sum over the "
        "ranks, on **every** rank, without `dist.all_reduce`: one `dist.reduce` and one `dist.broadcast`. "
        "`x` stays as it is."
    ),
    minutes=5,
    difficulty=1,
    means=collectives.all_reduce,
    forbids=("all_reduce", "all_gather", "gather", "reduce_scatter", "all_to_all", *MESSAGES, *OBJECTS),
    promises=(Once(("reduce", "broadcast")),),
    keeps_input=True,
    least=Least(
        sent=lambda n, S: ((n - 1) / n + ceil(log2(n))) * S,  # the root, in the reduce and in the broadcast
        rounds=lambda n: 2,
        memory=lambda n, S: S,
    ),
    solution='''
def all_reduce_by_hand(x):
    """Return the sum of all ranks' x on every rank, without all_reduce."""
    total = x.clone()
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0)
    return total
''',
    mutants=(
        Mutant("forgets the broadcast", replace=("    dist.broadcast(total, src=0)\n", "")),
        Mutant("broadcasts from a rank that has no sum", replace=("src=0", "src=world_size - 1")),
        Mutant(
            "broadcasts first",
            replace=(
                "    dist.reduce(total, dst=0)\n    dist.broadcast(total, src=0)\n",
                "    dist.broadcast(total, src=0)\n    dist.reduce(total, dst=0)\n",
            ),
        ),
        Mutant(
            "reduces on rank 0 alone",
            replace=("    dist.reduce(", "    if rank == 0:\n        dist.reduce("),
            verdict="deadlock",
        ),
        Mutant(
            "reduces to every rank in turn",
            source="""
def all_reduce_by_hand(x):
    for root in range(world_size):
        total = x.clone()
        dist.reduce(total, dst=root)
        mine = total if rank == root else None if root == 0 else mine
    return mine
""",
            verdict="not as asked",
            says="calls dist.reduce",
        ),
        Mutant(
            "calls all_reduce",
            replace=("dist.reduce(total, dst=0)", "dist.all_reduce(total)"),
            verdict="forbidden",
            says="all_reduce",
        ),
    ),
    hints=(
        "Where is the sum after a reduce? How do the others get it?",
        "Both calls need every rank, and both name the same root.",
    ),
    after=(
        "The meaning is that of an all-reduce; the cost is not. In lesson 06 you count the bytes that leave each rank."
    ),
)

REDUCE_SCATTER_FROM_ALL_TO_ALL = Exercise(
    name="reduce_scatter_from_all_to_all",
    lesson="04",
    title="A reduce-scatter from an all-to-all",
    statement=(
        "Every rank brings a tensor `x` with one dimension: `world_size` chunks of equal length, one behind the other. "
        "All ranks' `x` have the same length and dtype. Return the sum of everyone's chunk r on rank r: a tensor "
        "with `len(x) // world_size` elements, in the dtype of `x`. The one collective is `dist.all_to_all_single`. "
        "`x` stays as it is, and the chunks may be empty."
    ),
    minutes=10,
    difficulty=2,
    means=_own_chunk_of_the_sum,
    inputs=lambda n: [*divisible(n), Case(draws(n, 2 * n, "int32", 9), "int32")],
    forbids=("all_reduce", "reduce", "reduce_scatter", "gather", "all_gather", *MESSAGES, *OBJECTS),
    promises=(Once(("all_to_all_single",)),),
    keeps_input=True,
    least=Least(sent=lambda n, S: (n - 1) / n * S, rounds=lambda n: 1, memory=lambda n, S: S),
    solution='''
def reduce_scatter_from_all_to_all(x):
    """Return the sum of everyone's chunk r, on rank r."""
    swapped = torch.empty_like(x)
    dist.all_to_all_single(swapped, x)
    return swapped.view(world_size, len(x) // world_size).sum(dim=0, dtype=x.dtype)
''',
    mutants=(
        Mutant(
            "sums its own chunks: no numbers move", replace=("dist.all_to_all_single(swapped, x)", "swapped.copy_(x)")
        ),
        Mutant(
            "adds up along the wrong dimension",
            replace=("view(world_size, len(x) // world_size)", "view(len(x) // world_size, world_size)"),
        ),
        Mutant("returns one number, the sum of all", replace=("sum(dim=0, dtype=x.dtype)", "sum(dtype=x.dtype)")),
        Mutant("leaves everyone's chunk r side by side", replace=(".sum(dim=0, dtype=x.dtype)", "[0]")),
        Mutant(
            "exchanges the halves of its chunks one after the other",
            source="""
def reduce_scatter_from_all_to_all(x):
    size = len(x) // world_size
    sums = []
    for columns in x.view(world_size, size).tensor_split(2, dim=1):
        swapped = torch.empty(columns.shape, dtype=x.dtype, device=device)
        dist.all_to_all_single(swapped, columns.contiguous())
        sums.append(swapped.sum(dim=0, dtype=x.dtype))
    return torch.cat(sums)
""",
            verdict="not as asked",
            says="2 times",
        ),
        Mutant(
            "all-reduces and keeps a part",
            source="""
def reduce_scatter_from_all_to_all(x):
    total = x.clone()
    dist.all_reduce(total)
    return total.view(world_size, len(x) // world_size)[rank].clone()
""",
            verdict="forbidden",
            says="all_reduce",
        ),
    ),
    hints=(
        "After `dist.all_to_all_single(swapped, x)`, whose numbers does rank r hold?",
        "It holds everyone's chunk r, in the order of the ranks. All that is left is to add them up.",
        "`swapped.view(world_size, len(x) // world_size)` has one chunk a row; `.sum(dim=0, dtype=x.dtype)` adds the "
        "rows.",
    ),
    after="S (N - 1) / N bytes leave each rank: what a reduce-scatter needs, and half of what Gloo's own sends.",
)

ALL_GATHER_UNEVEN = Exercise(
    name="all_gather_uneven",
    lesson="04",
    title="An all-gather of unequal lengths",
    statement=(
        "Every rank brings a tensor `x` with one dimension and **a length of its own**, which the others do not know "
        "and which may be 0. The dtype is the same everywhere. Return, on every rank, the **list** of everyone's `x` "
        "in the order of the ranks, each with its own length. Use `dist.all_gather` on tensors: no objects, no send."
    ),
    minutes=12,
    difficulty=2,
    means=collectives.all_gather,
    inputs=uneven,
    forbids=(*OBJECTS, *MESSAGES),
    least=Least(
        sent=lambda n, S: (n - 1) * (S + 8),  # padded, and the lengths
        rounds=lambda n: 2,
        memory=lambda n, S: n * S,
    ),
    solution='''
def all_gather_uneven(x):
    """Return the list of all ranks' x, whatever their lengths."""
    length = torch.tensor([len(x)], device=device)
    lengths = [torch.zeros_like(length) for _ in range(world_size)]
    dist.all_gather(lengths, length)
    longest = max(lengths).item()
    padded = x.new_zeros(longest)
    padded[: len(x)] = x
    rooms = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(rooms, padded)
    return [room[:size] for room, size in zip(rooms, lengths)]
''',
    mutants=(
        Mutant("returns the padding as well", replace=("room[:size]", "room")),
        Mutant("cuts everything to its own length", replace=("room[:size]", "room[: len(x)]")),
        Mutant(
            "returns the parts in one tensor",
            replace=(
                "return [room[:size] for room, size in zip(rooms, lengths)]",
                "return torch.cat([room[:size] for room, size in zip(rooms, lengths)])",
            ),
        ),
        Mutant(
            "begins the list with its own",
            replace=("dist.all_gather(rooms, padded)", "dist.all_gather(rooms[rank:] + rooms[:rank], padded)"),
        ),
        Mutant(
            "leaves ranks with nothing out of the call",
            replace=(
                "    dist.all_gather(rooms, padded)",
                "    if len(x) > 0:\n        dist.all_gather(rooms, padded)",
            ),
            verdict="deadlock",
        ),
        Mutant(
            "pickles",
            source="""
def all_gather_uneven(x):
    everyone = [None] * world_size
    dist.all_gather_object(everyone, x)
    return everyone
""",
            verdict="forbidden",
            says="all_gather_object",
        ),
    ),
    hints=(
        "All-gather wants equal shapes. What must all ranks know first, and which call tells them?",
        "All-gather the lengths, pad to the longest, all-gather the padded tensors.",
        "Cut each part to the length that you gathered for its rank.",
    ),
    after="Padding costs bytes: one long tensor makes all of them long. Where that hurts, use an uneven all-to-all.",
)

AVERAGE_INTS = Exercise(
    name="average_ints",
    lesson="04",
    title="The mean of integers",
    statement=(
        "Every rank brings a tensor `x` of **integers**, of the same shape and dtype. Return the mean over the ranks, "
        "element by element, on every rank, as a tensor of **floats** (float32 will do). The sums are exact in "
        "integers, and nothing is rounded before the division. `x` stays as it is."
    ),
    minutes=5,
    difficulty=1,
    means=lambda xs: [m.astype("float32") for m in collectives.all_reduce(xs, op="AVG")],
    inputs=_integers,
    tolerance=1e-6,
    keeps_input=True,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 1, memory=lambda n, S: S),
    solution='''
def average_ints(x):
    """Return the mean of all ranks' integers, as floats."""
    total = x.clone()
    dist.all_reduce(total)
    return total / world_size
''',
    mutants=(
        Mutant(
            "divides in place, which integers refuse",
            replace=("    return total / world_size", "    total /= world_size\n    return total"),
            verdict="raises",
            says="RuntimeError",
        ),
        Mutant("drops the fraction", replace=("total / world_size", "total // world_size")),
        Mutant(
            "asks for AVG, which Gloo refuses",
            replace=("dist.all_reduce(total)", "dist.all_reduce(total, op=dist.ReduceOp.AVG)"),
            verdict="raises",
            says="RuntimeError",
        ),
        Mutant("divides before it adds", replace=("x.clone()", "x // world_size")),
        Mutant("forgets to divide", replace=("total / world_size", "total.float()")),
    ),
    hints=(
        "Three things can go wrong: `/=`, `//`, `ReduceOp.AVG`. The lesson shows each of them.",
        "`/` makes a new tensor of floats.",
    ),
    after="Sum first, divide afterwards, with `/`: the result is a float, and only the last step rounds.",
)

EXERCISES = (ALL_REDUCE_BY_HAND, REDUCE_SCATTER_FROM_ALL_TO_ALL, ALL_GATHER_UNEVEN, AVERAGE_INTS)
