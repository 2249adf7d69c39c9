"""Exercises for lesson 01: groups, and who is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.grading.exercise import Exercise, Least, Mutant
from labkit.grading.inputs import Case, vectors
from labkit.theory import collectives


def _sum_of_halves(xs: Sequence[Any]) -> list[Any]:
    middle = len(xs) // 2
    return collectives.all_reduce(xs[:middle]) + collectives.all_reduce(xs[middle:])


HALF_SUM = Exercise(
    name="half_sum",
    lesson="01",
    title="A sum for each half",
    statement=(
        "The ranks below `world_size // 2` are the lower half, the others the upper half; with an odd number of ranks "
        "the upper half has one more. Every rank brings a tensor `x` of the same shape and dtype. Return a new tensor, "
        "like `x`, with the sum over **your own half**. Make the groups inside the function."
    ),
    minutes=10,
    difficulty=2,
    means=_sum_of_halves,
    inputs=lambda n: vectors(n)[:6],
    least=Least(
        sent=lambda n, S: 2 * (1 - 1 / (n - n // 2)) * S,  # the upper half is the larger one
        rounds=lambda n: 1,
        memory=lambda n, S: S,
    ),
    solution='''
def half_sum(x):
    """Return the sum of x over this rank's half of the ranks."""
    middle = world_size // 2
    lower = dist.new_group(range(middle))
    upper = dist.new_group(range(middle, world_size))
    total = x.clone()
    dist.all_reduce(total, group=lower if rank < middle else upper)
    return total
''',
    mutants=(
        Mutant("sums over the world", replace=(", group=lower if rank < middle else upper", "")),
        Mutant(
            "calls in the other half's group, where it is no member",
            replace=("lower if rank < middle else upper", "upper if rank < middle else lower"),
        ),
        Mutant("rounds the middle up", replace=("world_size // 2", "(world_size + 1) // 2")),
        Mutant(
            "lets only the lower half wait for everybody",
            replace=("    total = x.clone()", "    if rank < middle:\n        dist.barrier()\n    total = x.clone()"),
            verdict="deadlock",
        ),
    ),
    hints=(
        "`dist.new_group` takes the ranks of a group. How many groups are there, and who has to make each of them?",
        "Every rank makes **both** groups, in the same order, also the one to which it does not belong.",
        "`dist.all_reduce(total, group=…)`: pass the group of your own half.",
    ),
    after="Two all-reduces ran side by side, and no number crossed. Grids of ranks are made of such groups.",
)

WHO_IS_LEFT = Exercise(
    name="who_is_left",
    lesson="01",
    title="Who is left?",
    statement=(
        "Some ranks have lost their data. `alive` is a tensor with one integer: 1 where the rank still has its data, "
        "and 0 where not. All ranks take part. Return the **list of the ranks** that have theirs, as Python integers "
        "in increasing order, the same list on every rank. The list may be empty."
    ),
    minutes=8,
    difficulty=1,
    means=lambda xs: [[r for r, x in enumerate(xs) if x[0]] for _ in xs],
    inputs=lambda n: [
        Case([np.array([int(r != 1)]) for r in range(n)], "rank 1 has lost its data"),
        Case([np.array([int(r == n - 1)]) for r in range(n)], f"only rank {n - 1} has its data"),
        Case([np.array([1]) for _ in range(n)], "all have their data"),
        Case([np.array([0]) for _ in range(n)], "nobody has their data"),
        Case([np.array([r % 2], dtype="int32") for r in range(n)], "the odd ranks have theirs, in int32"),
    ],
    least=Least(rounds=lambda n: 1),
    solution='''
def who_is_left(alive):
    """Return the ranks whose alive is 1, in increasing order, on every rank."""
    flags = [torch.zeros_like(alive) for _ in range(world_size)]
    dist.all_gather(flags, alive)
    return [r for r in range(world_size) if flags[r].item() == 1]
''',
    mutants=(
        Mutant("lists those that have lost", replace=("== 1", "== 0")),
        Mutant("counts from 1", replace=("[r for r", "[r + 1 for r")),
        Mutant("hears nobody but itself", replace=("dist.all_gather(flags, alive)", "flags[rank].copy_(alive)")),
        Mutant(
            "says how many there are, not who",
            replace=(
                "[r for r in range(world_size) if flags[r].item() == 1]",
                "sum(flag.item() for flag in flags)",
            ),
        ),
        Mutant(
            "leaves those that have lost out of the call",
            replace=(
                "    dist.all_gather(flags, alive)",
                "    if alive.item() == 1:\n        dist.all_gather(flags, alive)",
            ),
            verdict="deadlock",
        ),
    ),
    hints=(
        "How many ranks are left is a sum. **Who** is left needs everyone's flag.",
        "`dist.all_gather(flags, alive)` wants a list of `world_size` tensors like `alive` to fill.",
        "`flags[r]` is rank r's: list the r for which it is 1.",
    ),
    after="A rank that has nothing to give still makes the call: without it the others would wait for ever.",
)

EXERCISES = (HALF_SUM, WHO_IS_LEFT)
