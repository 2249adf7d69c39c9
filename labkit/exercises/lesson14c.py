"""Exercises of lesson 14c, the exam: five broken programs that no lesson has shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.grading.exercise import Case, Exercise, Mutant
from labkit.grading.inputs import counting, draws
from labkit.grading.promises import Calls

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


EXAM_CLIP = Exercise(
    name="exam_clip",
    lesson="14c",
    title="Program A: clip the gradient",
    statement=(
        "`gradient` is one rank's gradient, a vector. Return the **mean gradient of all ranks, clipped**: if its "
        "norm is "
        "larger than `limit`, scaled down to that norm; otherwise as it is. All ranks return the same numbers. "
        "`gradient` stays as it is. One call is enough."
    ),
    minutes=6,
    difficulty=2,
    means=_clipped,
    inputs=_gradients,
    keeps_input=True,
    promises=(Calls(1),),
    specimen='''
def exam_clip(gradient, limit):
    """Return the mean gradient of all ranks, clipped to the norm limit."""
    scale = torch.clamp(limit / gradient.norm(), max=1.0)
    mean = gradient.clone()
    dist.all_reduce(mean)
    mean /= world_size
    return mean * scale
''',
    solution='''
def exam_clip(gradient, limit):
    """Return the mean gradient of all ranks, clipped to the norm limit."""
    mean = gradient.clone()
    dist.all_reduce(mean)
    mean /= world_size
    return mean * torch.clamp(limit / mean.norm(), max=1.0)
''',
    mutants=(
        Mutant(
            "clips every rank's own gradient, then takes the mean",
            replace=("mean = gradient.clone()", "mean = gradient * torch.clamp(limit / gradient.norm(), max=1.0)"),
        ),
        Mutant("clips the sum", replace=("    mean /= world_size\n", "")),
        Mutant("never clips", replace=(" * torch.clamp(limit / mean.norm(), max=1.0)", "")),
        Mutant("scales small gradients up", replace=("max=1.0", "min=0.0")),
        Mutant(
            "averages the norms as well",
            replace=("    mean /= world_size\n", "    mean /= world_size\n    dist.all_reduce(gradient.norm())\n"),
            verdict="not as asked",
        ),
    ),
    hints=(
        "Is `scale` the same number on all ranks? What becomes of weights that get different updates?",
        "Which gradient's norm has to be held against the limit, and when is that gradient known?",
    ),
    after=(
        "Clip what is the same on all ranks: the averaged gradient, after the all-reduce. With shards of a model it is "
        "the other way round: there the squares of the norms are summed over the ranks first."
    ),
)

# -- B: as long as there is data ----------------------------------------------------------------------------------


def _epochs(xs: Sequence[Any]) -> list[Any]:
    longest = max(len(x) for x in xs)
    total = np.zeros(longest, dtype="float32")
    for x in xs:
        total[: len(x)] += x
    return [total] * len(xs)


def _shards(n: int) -> list[Case]:
    def case(sizes: Sequence[int], about: str) -> Case:
        return Case([np.arange(1, k + 1, dtype="float32") * 10**r for r, k in enumerate(sizes)], about)

    return [
        case([3] * (n - 1) + [2], "the last rank has a batch less"),
        case([2] * n, "as many batches on each rank"),
        case([*range(1, n), 4], "a different number on each rank"),
        case([3] * (n - 1) + [0], "the last rank has none"),
    ]


EXAM_EPOCH = Exercise(
    name="exam_epoch",
    lesson="14c",
    title="Program B: one epoch",
    statement=(
        "`batches` holds one number for each batch of this rank, its gradient. The ranks have **different numbers of "
        "batches**, perhaps none. In step i, all ranks sum the gradients of their i-th batches; a rank that has no "
        "more "
        "adds 0. Return the sums of all steps, as many as the rank with the most batches has, a tensor, on every "
        "rank. (How "
        "many calls it takes is up to you.)"
    ),
    minutes=8,
    difficulty=2,
    means=_epochs,
    inputs=_shards,
    specimen='''
def exam_epoch(batches):
    """Return the summed gradients of all steps of an epoch."""
    sums = []
    for gradient in batches:
        total = gradient.clone()
        dist.all_reduce(total)
        sums.append(total)
    return torch.stack(sums)
''',
    solution='''
def exam_epoch(batches):
    """Return the summed gradients of all steps of an epoch."""
    steps = torch.tensor(len(batches), device=device)
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    sums = torch.zeros(steps.item(), dtype=batches.dtype, device=device)
    sums[: len(batches)] = batches
    dist.all_reduce(sums)
    return sums
''',
    mutants=(
        Mutant(
            "drops what not all ranks have",
            replace=(
                "    sums[: len(batches)] = batches\n",
                "    dist.all_reduce(steps.fill_(len(batches)), op=dist.ReduceOp.MIN)\n    sums[: steps.item()] = "
                "batches[: steps.item()]\n",
            ),
        ),
        Mutant(
            "takes rank 0's number of batches",
            replace=("dist.all_reduce(steps, op=dist.ReduceOp.MAX)", "dist.broadcast(steps, src=0)"),
            verdict="raises",
        ),
        Mutant("makes room for everybody's batches", replace=(", op=dist.ReduceOp.MAX", "")),
        Mutant("averages", replace=("return sums", "return sums / world_size")),
        Mutant("puts its batches at the end", replace=("sums[: len(batches)]", "sums[len(sums) - len(batches) :]")),
    ),
    hints=(
        "How many times does each rank call `all_reduce`?",
        "Agree on the number of steps first: `op=dist.ReduceOp.MAX`. Whoever has no batch left brings a zero.",
    ),
    after=(
        "`torch.distributed.algorithms.Join` does this for DDP: a rank without data shadows the others' collectives. "
        "Most training loops drop the last batches instead, or repeat some rows."
    ),
)

# -- C: load the weights ------------------------------------------------------------------------------------------


def _loaded(xs: Sequence[Any]) -> list[Any]:
    return [tuple(xs[0])] * len(xs)


def _weights(n: int) -> list[Case]:
    def case(shape: tuple[int, ...], about: str) -> Case:
        size = int(np.prod(shape))
        pairs = zip(counting(n, size), counting(n, size), strict=True)
        return Case([(a.reshape(shape) + 1, -b.reshape(shape) - 1) for a, b in pairs], about)

    return [case((2,), ""), case((2, 3), "matrices"), case((1,), "one number each")]


EXAM_LOAD = Exercise(
    name="exam_load",
    lesson="14c",
    title="Program C: load the weights",
    statement=(
        "Rank 0 has read a checkpoint, in which the tensors lie in the order in which they were saved; the other ranks "
        "have made the same tensors in the order of their code. Return `query` and `key` **of rank 0**, in this "
        "order, on "
        "every rank. You may overwrite the arguments. Two calls are enough."
    ),
    minutes=5,
    difficulty=1,
    means=_loaded,
    inputs=_weights,
    promises=(Calls(2),),
    specimen='''
def exam_load(query, key):
    """Return rank 0's query and key."""
    if rank == 0:
        weights = {"key": key, "query": query}  # as they were saved
    else:
        weights = {"query": query, "key": key}
    for weight in weights.values():
        dist.broadcast(weight, src=0)
    return weights["query"], weights["key"]
''',
    solution='''
def exam_load(query, key):
    """Return rank 0's query and key."""
    if rank == 0:
        weights = {"key": key, "query": query}  # as they were saved
    else:
        weights = {"query": query, "key": key}
    for name in sorted(weights):
        dist.broadcast(weights[name], src=0)
    return weights["query"], weights["key"]
''',
    mutants=(
        Mutant("broadcasts the last rank's", replace=("src=0", "src=world_size - 1")),
        Mutant(
            "returns them the other way round",
            replace=('return weights["query"], weights["key"]', 'return weights["key"], weights["query"]'),
        ),
        Mutant("broadcasts the queries only", replace=("in sorted(weights)", 'in ["query"]')),
        Mutant(
            "looks for a tensor that is not there",
            replace=("sorted(weights)", '["query", "keys"]'),
            verdict="raises",
            says="KeyError",
        ),
    ),
    hints=(
        "Write down the calls of rank 0 in their order, with the tensors' names; then those of rank 1.",
        "The order has to come from something that is the same everywhere: the sorted names, say.",
    ),
    after=(
        "All shapes agree, so no tool of torch's sees anything. Go through names in a sorted order, or "
        "broadcast the names first. A set of names is worse: strings hash differently in each process."
    ),
)

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


EXAM_ACCURACY = Exercise(
    name="exam_accuracy",
    lesson="14c",
    title="Program D: the accuracy",
    statement=(
        "`rows` rows of a test set were dealt out in turn: row i is on rank i % world_size. So that all ranks have the "
        "same number, a sampler repeated some of the first rows at the end. `hits` has a 1 for each row of this "
        "rank "
        "that was predicted right, in their order, and a 0 for each other one. Return the accuracy over the `rows` "
        "rows "
        "of the test set, a tensor with one number, on every rank. One call is enough."
    ),
    minutes=6,
    difficulty=2,
    means=_accuracy,
    inputs=_hits,
    tolerance=1e-5,
    promises=(Calls(1),),
    specimen='''
def exam_accuracy(hits, rows):
    """Return the accuracy over the rows of the test set."""
    accuracy = hits.mean()
    dist.all_reduce(accuracy)
    return accuracy / world_size
''',
    solution='''
def exam_accuracy(hits, rows):
    """Return the accuracy over the rows of the test set."""
    mine = len(range(rank, rows, world_size))  # without repeated rows
    right = hits[:mine].sum()
    dist.all_reduce(right)
    return right / rows
''',
    mutants=(
        Mutant("counts repeated rows and divides by the real ones", replace=("hits[:mine]", "hits")),
        Mutant("leaves out one row too many", replace=("hits[:mine]", "hits[: mine - 1]")),
        Mutant(
            "deals out in blocks",
            replace=("len(range(rank, rows, world_size))", "min(len(hits), max(0, rows - rank * len(hits)))"),
        ),
        Mutant(
            "averages the ranks' accuracies", replace=("hits[:mine].sum()", "hits[:mine].mean() * rows / world_size")
        ),
        Mutant(
            "sums the rows as well",
            replace=(
                "    dist.all_reduce(right)\n",
                "    dist.all_reduce(right)\n    dist.all_reduce(torch.tensor(mine, device=device))\n",
            ),
            verdict="not as asked",
        ),
    ),
    hints=(
        "Count the rows that all ranks have together. Is it `rows`?",
        "Row i is on rank i % world_size at place i // world_size. Which places of this rank are real rows?",
    ),
    after=(
        "`DistributedSampler` repeats rows, which does no harm in training, and shifts every metric. The smaller the "
        "test set and the more ranks, the more. No tool finds it: count the rows."
    ),
)

# -- E: pairs -----------------------------------------------------------------------------------------------------


def _pair(xs: Sequence[Any]) -> list[Any]:
    return [xs[r - r % 2] for r in range(len(xs))]


EXAM_PAIRS = Exercise(
    name="exam_pairs",
    lesson="14c",
    title="Program E: ask the neighbour",
    statement=(
        "Ranks 0 and 1 are a pair, 2 and 3 are the next one, and so on. In every pair the **first rank** tells its `x` "
        "to the second one. Return that `x` on both. `x` stays as it is. It must work with any even number of ranks."
    ),
    minutes=5,
    difficulty=1,
    means=_pair,
    ranks=(2, 4),
    keeps_input=True,
    specimen='''
def exam_pairs(x):
    """Return the x of the first rank of my pair."""
    for first in range(0, world_size, 2):
        pair = dist.new_group([first, first + 1])
        if rank in (first, first + 1):
            got = x.clone()
            dist.broadcast(got, src=0, group=pair)
    return got
''',
    solution='''
def exam_pairs(x):
    """Return the x of the first rank of my pair."""
    for first in range(0, world_size, 2):
        pair = dist.new_group([first, first + 1])
        if rank in (first, first + 1):
            got = x.clone()
            dist.broadcast(got, src=first, group=pair)
    return got
''',
    mutants=(
        Mutant("asks the second one", replace=("src=first", "src=first + 1")),
        Mutant("asks rank 0, without a group", replace=("src=first, group=pair", "src=0")),
        Mutant("receives into x", replace=("x.clone()", "x")),
        Mutant(
            "asks the next pair's first",
            replace=("src=first", "src=(first + 2) % 4"),
            verdict="raises",
            says="not part of group",
        ),
    ),
    hints=(
        "Read the error: which rank raises it, and which number does it name?",
        "`src` is a rank of the whole job. In the pair (2, 3) there is no rank 0.",
    ),
    after=(
        "With two ranks it is right, with four it raises: test with more ranks than one team has. `group_src=0` says "
        "what was meant."
    ),
)

EXERCISES = (EXAM_CLIP, EXAM_EPOCH, EXAM_LOAD, EXAM_ACCURACY, EXAM_PAIRS)
