"""Exercises for lesson 08: mean, variance, argmax and softmax, over uneven, empty and masked shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.grading.exercise import Budget, Case, Exercise, Least, Mutant
from labkit.grading.promises import Calls, Returns, Travels

# A few float64 numbers to or from every rank; who moves the data itself sends more in the larger inputs.
A_FEW = Budget(sent=lambda n, S: 64.0 * n)


def everywhere(value: Any, n: int) -> list[Any]:
    """The same value on each of n ranks."""
    return [np.array(value) if isinstance(value, np.ndarray) else value for _ in range(n)]


def normal(n: int, seed: int) -> np.random.Generator:
    """Reproducible draws, others for every n and every case."""
    return np.random.default_rng([8, seed, n])


# -- the mean of rows, dealt out unevenly -------------------------------------------------------------------------


def _mean(xs: Sequence[Any]) -> list[Any]:
    rows = np.concatenate(xs).astype("float64")
    with np.errstate(invalid="ignore"):
        return everywhere(rows.sum(0) / len(rows), len(xs))


def _tables(n: int) -> list[Case]:
    rng = normal(n, 1)

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
        Case(tables([0] * n), "nobody has a row"),
    ]


MEAN = Exercise(
    name="distributed_mean",
    lesson="08",
    title="The mean of uneven shards, in one call",
    statement=(
        "Rank r has a table `x` of some rows, perhaps of none; the columns are the same everywhere. Return the mean "
        "of each column over **all** rows of **all** ranks, as float64, on every rank. Where nobody has a row, it is "
        "`nan`. The rows stay where they are: a rank sends a few numbers, in **one** call and as float64."
    ),
    means=_mean,
    inputs=_tables,
    minutes=8,
    difficulty=1,
    promises=(Calls(1), Travels("float64"), Returns("float64")),
    budget=A_FEW,
    least=Least(rounds=lambda n: 1),
    solution='''
def distributed_mean(x):
    """Return the mean of each column over all ranks' rows, in float64, on every rank."""
    count = torch.tensor([len(x)], dtype=torch.float64, device=x.device)
    stats = torch.cat([x.double().sum(0), count])
    dist.all_reduce(stats)
    return stats[:-1] / stats[-1]
''',
    mutants=(
        Mutant(
            "averages the ranks' means",
            source="""
def distributed_mean(x):
    mean = x.double().mean(0)
    dist.all_reduce(mean)
    return mean / world_size
""",
        ),
        Mutant("divides by its own count", replace=("/ stats[-1]", "/ len(x)"), says="disagree"),
        Mutant("adds up in the table's own dtype", replace=("x.double().sum(0)", "x.sum(0).double()"), says="inf"),
        Mutant(
            "leaves a rank without rows out",
            replace=(
                "    count =",
                "    if len(x) == 0:\n        return torch.zeros(x.shape[1]).double()\n    count =",
            ),
            verdict="deadlock",
            says="rank 0 has no row",
        ),
        Mutant(
            "sums and counts in two calls",
            source="""
def distributed_mean(x):
    total, count = x.double().sum(0), torch.tensor(float(len(x)), dtype=torch.float64, device=x.device)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count
""",
            verdict="not as asked",
            says="makes 2 calls",
        ),
        Mutant(
            "rounds to float32 before the call",
            replace=(
                "    dist.all_reduce(stats)\n",
                "    stats = stats.float()\n    dist.all_reduce(stats)\n    stats = stats.double()\n",
            ),
            verdict="not as asked",
            says="float32 to dist.all_reduce",
        ),
        Mutant(
            "returns float32",
            replace=("return stats[:-1] / stats[-1]", "return (stats[:-1] / stats[-1]).float()"),
            verdict="not as asked",
            says="returns float32",
        ),
        Mutant(
            "gathers all rows",
            source="""
def distributed_mean(x):
    return torch.cat(comms.all_gather(x)).double().mean(0)
""",
            verdict="costly",
            says="is possible",
        ),
    ),
    hints=(
        "Which numbers of a rank's rows add up over the ranks? The mean is not among them.",
        "`x.sum(0)` has one number a column, and the sum of no rows is 0. Put the count behind it: `torch.cat`.",
        "A float16 ends at 65,504, and an integer has no fraction: turn to float64 before you add.",
    ),
    after="An empty shard brings zeros and makes the call like all others. That is why it needs no `if`.",
)


# -- the variance, where squares fail -----------------------------------------------------------------------------


def _variance(xs: Sequence[Any]) -> list[Any]:
    return everywhere(np.concatenate(xs).astype("float64").var(), len(xs))


def _spreads(n: int) -> list[Case]:
    rng = normal(n, 2)
    sizes = [r + 1 for r in range(n)]

    def draws(sizes: Sequence[int], level: float, dtype: str = "float64") -> list[Any]:
        return [(level + rng.integers(-5, 6, size) + r).astype(dtype) for r, size in enumerate(sizes)]

    return [
        Case([np.array([10.0 * r - 1, 10.0 * r + 1], dtype="float32") for r in range(n)], "two numbers a rank"),
        Case(draws(sizes, 0, "float32"), "uneven shards"),
        Case(draws([0, *sizes[1:]], 20, "float32"), "rank 0 has none"),
        Case(draws([3] * n, 10_000, "float32"), "float32 near 10,000"),
        Case(draws(sizes[::-1], 1e9), "float64 near 1,000,000,000"),
        Case([np.full(s, 7.0) for s in sizes], "no spread at all"),
        Case(draws([150] * n, -70), "150 numbers a rank"),
    ]


VARIANCE = Exercise(
    name="distributed_variance",
    lesson="08",
    title="A variance that survives a large mean",
    statement=(
        "Rank r has some numbers in `x`, perhaps none. Return the variance of **all** numbers (the mean squared "
        "distance from the common mean, as `var(correction=0)`) as a float64 tensor of one number, on every rank. It "
        "must also be right where the numbers are near 10⁹ and differ by 1. The numbers themselves stay where they "
        "are: a rank sends a few."
    ),
    means=_variance,
    inputs=_spreads,
    minutes=12,
    difficulty=2,
    promises=(Returns("float64"),),
    budget=A_FEW,
    tolerance=1e-6,
    least=Least(rounds=lambda n: 1),
    solution='''
def distributed_variance(x):
    """Return the variance of all ranks' numbers, as float64, on every rank."""
    x = x.double()
    mean = x.sum() / max(len(x), 1)
    part = torch.stack([torch.full_like(mean, len(x)), mean, ((x - mean) ** 2).sum()])
    parts = [torch.empty_like(part) for _ in range(world_size)]
    dist.all_gather(parts, part)
    counts, means, spreads = torch.stack(parts).T
    mean = (counts * means).sum() / counts.sum()
    return (spreads + counts * (means - mean) ** 2).sum() / counts.sum()
''',
    mutants=(
        Mutant(
            "takes the mean of the squares minus the square of the mean",
            source="""
def distributed_variance(x):
    x = x.double()
    stats = torch.stack([x.sum(), (x**2).sum(), torch.tensor(float(len(x))).double()])
    dist.all_reduce(stats)
    return stats[1] / stats[2] - (stats[0] / stats[2]) ** 2
""",
            says="1,000,000,000",
        ),
        Mutant("forgets how far the means lie apart", replace=("spreads + counts * (means - mean) ** 2", "spreads")),
        Mutant("weighs every rank's mean alike", replace=("(counts * means).sum() / counts.sum()", "means.mean()")),
        Mutant(
            "divides by the count minus one", replace=("** 2).sum() / counts.sum()", "** 2).sum() / (counts.sum() - 1)")
        ),
        Mutant(
            "returns float32",
            replace=("** 2).sum() / counts.sum()", "** 2).sum().float() / counts.sum().float()"),
            verdict="not as asked",
            says="returns float32",
        ),
        Mutant(
            "gathers all numbers",
            source="""
def distributed_variance(x):
    return torch.cat(comms.all_gather(x)).double().var(correction=0)
""",
            verdict="costly",
            says="is possible",
        ),
        Mutant(
            "averages the variances",
            source="""
def distributed_variance(x):
    variance = x.double().var(correction=0)
    dist.all_reduce(variance)
    return variance / world_size
""",
        ),
    ),
    hints=(
        "In float64 the square of 10⁹ keeps steps of 128. Subtract a mean before you square.",
        "Two ways: all-reduce the mean first, then the squared distances from it. Or bring count, own mean and own "
        "squared distances together, and merge.",
        "Merging: the parts' squared distances add up, plus count · (own mean − common mean)² for each part.",
    ),
    after="`torch.nn.SyncBatchNorm` merges (mean, deviation, count) of every rank with this formula.",
)


# -- the largest, and where ---------------------------------------------------------------------------------------


def _argmax(xs: Sequence[Any]) -> list[Any]:
    found: tuple[Any, int, int] | None = None
    for r, x in enumerate(xs):
        for place, value in enumerate(x.tolist()):
            if found is None or value > found[0]:
                found = (value, r, place)
    return everywhere(found, len(xs))


def _scores(n: int) -> list[Case]:
    rng = normal(n, 3)
    big = 2**53

    def draws(sizes: Sequence[int], low: int, high: int, dtype: str = "float32") -> list[Any]:
        return [rng.integers(low, high, size).astype(dtype) for size in sizes]

    last = n - 1
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


ARGMAX = Exercise(
    name="distributed_argmax",
    lesson="08",
    title="The largest, who has it, and where",
    statement=(
        "Every rank brings a flat tensor `x` of any length, also of none, floats or int64, without `nan`. "
        "Return `(value, rank, place)` on every rank, as Python numbers: the largest value of all, the rank that has "
        "it, and its place there. In a tie the **lowest rank** wins, and on it the **lowest place**."
    ),
    means=_argmax,
    inputs=_scores,
    minutes=15,
    difficulty=2,
    tolerance=0.0,
    least=Least(rounds=lambda n: 1),  # the value's bits and its place in one tensor
    solution='''
def distributed_argmax(x):
    """Return (largest value, its rank, its place there) on every rank; in a tie the first."""
    smallest = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    best = x.max() if len(x) else torch.tensor(smallest, dtype=x.dtype, device=x.device)
    dist.all_reduce(best, op=dist.ReduceOp.MAX)

    offers = torch.tensor([world_size << 40], device=x.device)
    places = (x == best).nonzero().flatten()
    first = torch.cat([offers, (rank << 40) + places]).min()
    dist.all_reduce(first, op=dist.ReduceOp.MIN)
    return best.item(), first.item() >> 40, first.item() & (2**40 - 1)
''',
    mutants=(
        Mutant(
            "every rank names itself",
            replace=("    dist.all_reduce(first, op=dist.ReduceOp.MIN)\n", ""),
            says="disagree",
        ),
        Mutant(
            "lets the last one win a tie",
            replace=(
                "[offers, (rank << 40) + places]).min()\n    dist.all_reduce(first, op=dist.ReduceOp.MIN)",
                "[0 * offers, (rank << 40) + places]).max()\n    dist.all_reduce(first, op=dist.ReduceOp.MAX)",
            ),
            says="ties",
        ),
        Mutant("takes 0 for the maximum of nothing", replace=("torch.tensor(smallest,", "torch.tensor(0,")),
        Mutant(
            "asks nothing for its maximum",
            replace=(" if len(x) else torch.tensor(smallest, dtype=x.dtype, device=x.device)", ""),
            verdict="raises",
            says="max()",
        ),
        Mutant(
            "stays away with an empty shard",
            replace=("    smallest =", "    if len(x) == 0:\n        return 0.0, 0, 0\n    smallest ="),
            verdict="deadlock",
            says="all_reduce",
        ),
        Mutant(
            "compares integers as floats",
            replace=("    smallest =", "    x = x.double()\n    smallest ="),
            says="integers that no float64",
        ),
    ),
    hints=(
        "Two all-reduces: `MAX` of the values, then `MIN` of an offer. What does a rank offer that has not got the "
        "maximum?",
        "(rank, place) as one int64 that sorts like the pair: `rank << 40` plus the place. `world_size << 40` loses "
        "against all of them.",
        "`(x == best).nonzero()` has the places, and none for an empty shard. For the maximum of nothing take −inf, "
        "or `torch.iinfo(x.dtype).min`.",
    ),
    after="Rank and place in one sortable number: MPI's `MAXLOC` does it for pairs, with the same rule for ties.",
)


# -- softmax over all ranks ---------------------------------------------------------------------------------------


def _softmax(xs: Sequence[Any]) -> list[Any]:
    whole = np.concatenate(xs).astype("float64")
    with np.errstate(invalid="ignore"):
        powers = np.exp(whole - whole.max())
        shares = powers / powers.sum()
    return [
        part.astype(x.dtype) for part, x in zip(np.split(shares, np.cumsum([len(x) for x in xs])[:-1]), xs, strict=True)
    ]


def _logits(n: int) -> list[Case]:
    rng = normal(n, 4)

    def draws(sizes: Sequence[int], level: float, dtype: str = "float32") -> list[Any]:
        return [(rng.normal(size=size) * 2 + level).astype(dtype) for size in sizes]

    sizes = [r + 1 for r in range(n)]
    masked = [np.where(np.arange(3) <= r, x, -np.inf).astype("float32") for r, x in enumerate(draws([3] * n, 0))]
    first = [np.full(2, -np.inf, dtype="float32"), *draws([2] * (n - 1), 0)]
    return [
        Case([np.array([r, 0.0], dtype="float32") for r in range(n)], "two logits a rank"),
        Case(draws(sizes, 0), "uneven shards"),
        Case(draws(sizes, 1000, "float64"), "logits near 1,000"),
        Case([x + np.float32(200 * r) for r, x in enumerate(draws([2] * n, 0))], "each rank 200 above the last"),
        Case(draws([0, *sizes[1:]], 3), "rank 0 has none"),
        Case(draws([3] + [0] * (n - 1), 0), "only rank 0 has some"),
        Case(masked, "−inf among them"),
        Case(first, "all of rank 0's are −inf"),
        Case(draws([333] * n, -50), "333 logits a rank"),
    ]


SOFTMAX = Exercise(
    name="distributed_softmax",
    lesson="08",
    title="A softmax that nothing overflows",
    statement=(
        "The logits of **one** softmax are spread over the ranks: each brings a flat `x`, of any length, also of none, "
        "with −inf where something is masked (not everywhere). Return this rank's part of the softmax over **all** of "
        "them. Logits may be about 1,000, and a rank's may all be −inf. Gather no logits: a rank sends one or two "
        "numbers."
    ),
    means=_softmax,
    inputs=_logits,
    minutes=12,
    difficulty=2,
    budget=A_FEW,
    least=Least(rounds=lambda n: 1),  # everyone's maximum, and the sum that goes with it
    solution='''
def distributed_softmax(x):
    """Return this rank's part of the softmax over all ranks' x."""
    top = x.max() if len(x) else torch.tensor(-torch.inf, dtype=x.dtype, device=x.device)
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    powers = (x - top).exp()
    total = powers.sum()
    dist.all_reduce(total)
    return powers / total
''',
    mutants=(
        Mutant("takes no maximum off", replace=("(x - top)", "x"), says="nan"),
        Mutant("takes its own maximum off", replace=("    dist.all_reduce(top, op=dist.ReduceOp.MAX)\n", "")),
        Mutant("divides by its own sum", replace=("    dist.all_reduce(total)\n", "")),
        Mutant(
            "asks nothing for its maximum",
            replace=(" if len(x) else torch.tensor(-torch.inf, dtype=x.dtype, device=x.device)", ""),
            verdict="raises",
            says="max()",
        ),
        Mutant(
            "stays away with an empty shard",
            replace=("    top =", "    if len(x) == 0:\n        return x\n    top ="),
            verdict="deadlock",
            says="all_reduce",
        ),
        Mutant(
            "gathers the logits",
            source="""
def distributed_softmax(x):
    parts = comms.all_gather(x)
    return torch.cat(parts).softmax(0).split([len(part) for part in parts])[rank]
""",
            verdict="costly",
            says="is possible",
        ),
        Mutant(
            "merges pairs without a guard for −inf",
            source="""
def distributed_softmax(x):
    top = x.max() if len(x) else torch.tensor(-torch.inf, dtype=x.dtype)
    pair = torch.stack([top, (x - top).exp().sum()])
    parts = [torch.empty_like(pair) for _ in range(world_size)]
    dist.all_gather(parts, pair)
    tops, sums = torch.stack(parts).T
    return (x - tops.max()).exp() / (sums * (tops - tops.max()).exp()).sum()
""",
            says="−inf",
        ),
    ),
    hints=(
        "exp(x − c) / Σ exp(x − c) is the same for every c. Which c leaves nothing above 1, on any rank?",
        "Two all-reduces of one number: `MAX` of the maxima, then the sum of exp(x − the global maximum).",
        "The maximum of nothing is −inf. It loses every `MAX`, and a sum over nothing is 0: no other `if` is needed.",
    ),
    after=(
        "With the global maximum even a shard of −inf is harmless: exp(−inf − a number) is 0. Only who takes his own "
        "maximum off needs the guard."
    ),
)


EXERCISES = (MEAN, VARIANCE, ARGMAX, SOFTMAX)
