"""Exercises for lesson 07: from bytes and seconds to bandwidth, to α and β, and to a choice."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import Any

import numpy as np

from labkit.grading.exercise import Exercise, Least, Mutant
from labkit.grading.inputs import Case
from labkit.theory.fit import fit
from labkit.theory.timing import busbw


def _times(n: int) -> list[Case]:
    """The bytes of one rank's buffer and this rank's seconds."""
    return [
        Case([(1_000_000, 0.001 * (r + 1)) for r in range(n)], "1 MB; the last rank is slowest"),
        Case([(4 * 2**20, 0.02 / (r + 1)) for r in range(n)], "4 MiB; rank 0 is slowest"),
        Case([(8, 30e-6 + (r == 1) * 5e-6) for r in range(n)], "8 bytes; rank 1 is slowest"),
    ]


def _busbw(xs: Sequence[tuple[int, float]]) -> list[float]:
    return [busbw("all_reduce", len(xs), nbytes, max(seconds for _, seconds in xs)) for nbytes, _ in xs]


def _sweeps(n: int) -> list[Case]:
    """Sizes and times of a sweep: on the line, and a few per cent off it, whatever the size."""
    sizes = np.array([2.0**k for k in range(10, 25, 2)])
    rng = np.random.default_rng(7)
    noise = rng.uniform(-0.1, 0.1, size=len(sizes))

    def sweep(alpha: float, beta: float, off: Any, take: slice = slice(None)) -> Case:
        seconds = (alpha + beta * sizes) * (1 + off)
        about = f"{len(sizes[take])} sizes, α about {alpha * 1e6:g} µs and β about {beta * 1e9:g} ns/byte"
        return Case([(sizes[take], seconds[take])] * n, about)

    return [
        sweep(100e-6, 1e-9, 0, slice(0, 4)),
        sweep(100e-6, 1e-9, 0),
        sweep(50e-6, 0.5e-9, noise),
        sweep(20e-6, 2e-9, -noise),
        sweep(5e-6, 1e-10, 0, slice(0, 2)),
    ]


def _fitted(xs: Sequence[tuple[Any, Any]]) -> list[np.ndarray]:
    fits = [fit(sizes, seconds) for sizes, seconds in xs]
    return [np.array([f.alpha, f.beta]) for f in fits]


def _questions(n: int) -> list[Case]:
    """n of the job, bytes, α and β: another question for each rank."""
    asked = [
        (4, 1e3, 20e-6, 1e-9),
        (4, 1e8, 20e-6, 1e-9),
        (1024, 1e6, 10e-6, 1e-10),
        (1024, 1e9, 10e-6, 1e-10),
        (1000, 3e10, 10e-6, 1e-10),
        (2, 1e6, 1e-5, 1e-9),
        (100_000, 1e9, 5e-6, 4e-11),
        (5, 5e5, 1e-6, 1e-9),
    ]
    return [Case([asked[(i + r) % len(asked)] for r in range(n)], f"from question {i + 1} on") for i in range(0, 8, 2)]


def _faster(xs: Sequence[tuple[int, float, float, float]]) -> list[str]:
    def ring(n: int, s: float, alpha: float, beta: float) -> float:
        return 2 * (n - 1) * alpha + 2 * s * (n - 1) / n * beta

    def tree(n: int, s: float, alpha: float, beta: float) -> float:
        return 2 * ceil(log2(n)) * alpha + 2 * s * beta

    return ["ring" if ring(*x) <= tree(*x) else "tree" for x in xs]


BUSBW_OF = Exercise(
    name="busbw_of",
    lesson="07",
    title="From seconds to busbw",
    statement=(
        "An all-reduce of a buffer of `nbytes` bytes a rank took `seconds` by **this** rank's clock. Return its **bus "
        "bandwidth** in GB/s as nccl-tests defines it, a Python float, the same on every rank: nbytes / t, times "
        "2 (N - 1) / N, where t is the time of the **slowest** rank and 1 GB/s is 10⁹ bytes a second."
    ),
    minutes=6,
    difficulty=1,
    means=_busbw,
    inputs=_times,
    tolerance=1e-9,
    least=Least(rounds=lambda n: 1),
    solution='''
def busbw_of(nbytes, seconds):
    """Return the bus bandwidth of an all-reduce in GB/s."""
    slowest = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return nbytes / slowest.item() * 2 * (world_size - 1) / world_size / 1e9
''',
    mutants=(
        Mutant("returns algbw: forgets the factor", replace=(" * 2 * (world_size - 1) / world_size", "")),
        Mutant("takes the factor of an all-gather", replace=(" * 2 * (world_size - 1)", " * (world_size - 1)")),
        Mutant("trusts its own clock", replace=("    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)\n", "")),
        Mutant("averages the clocks", replace=("op=dist.ReduceOp.MAX)", "op=dist.ReduceOp.AVG)")),
        Mutant("counts in GiB", replace=("/ 1e9", "/ 2**30")),
    ),
    hints=(
        "Which rank's time counts, and how does everyone learn it?",
        "`dist.all_reduce(t, op=dist.ReduceOp.MAX)` on a tensor of float64.",
    ),
    after=(
        "The factor makes busbw comparable with a link's speed, whatever N is. It says nothing about how long you wait."
    ),
)

FIT_ALPHA_BETA = Exercise(
    name="fit_alpha_beta",
    lesson="07",
    title="α and β from a sweep",
    statement=(
        "`sizes` (bytes) and `seconds` are tensors of float64 from a sweep, the same on every rank. Fit "
        "t = α + β · size so that the sum of the squared **relative** errors, ((α + β · size - t) / t)², is least. "
        "Return a tensor of float64 with two elements, α in seconds and β in seconds a byte."
    ),
    minutes=15,
    difficulty=3,
    means=_fitted,
    inputs=_sweeps,
    tolerance=1e-6,
    solution='''
def fit_alpha_beta(sizes, seconds):
    """Return α and β of the line with the least relative error."""
    u, v = 1 / seconds, sizes / seconds  # α u + β v should be 1 in every row
    uu, uv, vv, su, sv = u @ u, u @ v, v @ v, u.sum(), v.sum()
    return torch.stack([su * vv - sv * uv, sv * uu - su * uv]) / (uu * vv - uv * uv)
''',
    mutants=(
        Mutant(
            "minimises the absolute error",
            replace=(
                "u, v = 1 / seconds, sizes / seconds  # α u + β v should be 1 in every row\n    uu, uv, vv, su, sv = "
                "u @ u, u @ v, v @ v, u.sum(), v.sum()",
                "u, v = torch.ones_like(sizes), sizes\n    uu, uv, vv, su, sv = u @ u, u @ v, v @ v, u @ seconds, v @ "
                "seconds",
            ),
        ),
        Mutant(
            "returns β first",
            replace=("[su * vv - sv * uv, sv * uu - su * uv]", "[sv * uu - su * uv, su * vv - sv * uv]"),
        ),
        Mutant(
            "returns the bandwidth for β",
            replace=(
                "    return torch.stack([su * vv - sv * uv, sv * uu - su * uv]) / (uu * vv - uv * uv)",
                "    alpha, beta = torch.stack([su * vv - sv * uv, sv * uu - su * uv]) / (uu * vv - uv * uv)\n"
                "    return torch.stack([alpha, 1 / beta])",
            ),
        ),
        Mutant(
            "takes α from the smallest size and β from the largest",
            replace=(
                "return torch.stack([su * vv - sv * uv, sv * uu - su * uv]) / (uu * vv - uv * uv)",
                "return torch.stack([seconds[0], seconds[-1] / sizes[-1]])",
            ),
        ),
    ),
    hints=(
        "Divide the equation by t: α · (1 / t) + β · (size / t) should be 1 in every row.",
        "That is a linear least-squares problem with two columns and a right side of ones.",
        "Two normal equations: (u·u) α + (u·v) β = Σu and (u·v) α + (v·v) β = Σv. Solve them by hand, or scale the "
        "columns and use `torch.linalg.lstsq`.",
    ),
    after="By absolute error the largest message decides alone, and α comes out at random, sometimes below zero.",
)

BEST_ALGORITHM = Exercise(
    name="best_algorithm",
    lesson="07",
    title="Ring or tree?",
    statement=(
        "A job of `n` ranks all-reduces `nbytes` bytes; a message costs `alpha` seconds and `beta` seconds a byte. A "
        "**ring** takes 2 (n - 1) α + 2 · nbytes · (n - 1) / n · β, a pipelined **tree** 2 ⌈log2 n⌉ α + 2 · nbytes · "
        "β. "
        'Return the text `"ring"` or `"tree"`, whichever is faster; `"ring"` where they tie. Every rank is asked about '
        "another job, and `n` is that job's, not yours."
    ),
    minutes=6,
    difficulty=1,
    means=_faster,
    inputs=_questions,
    solution='''
def best_algorithm(n, nbytes, alpha, beta):
    """Return "ring" or "tree", whichever all-reduces faster."""
    ring = 2 * (n - 1) * alpha + 2 * nbytes * (n - 1) / n * beta
    tree = 2 * (n - 1).bit_length() * alpha + 2 * nbytes * beta
    return "ring" if ring <= tree else "tree"
''',
    mutants=(
        Mutant(
            "compares the bytes alone",
            replace=("2 * (n - 1) * alpha + 2 * nbytes * (n - 1) / n * beta", "2 * nbytes * (n - 1) / n * beta"),
        ),
        Mutant(
            "compares the steps alone",
            replace=(
                " + 2 * nbytes * (n - 1) / n * beta\n    tree = 2 * (n - 1).bit_length() * alpha + 2 * nbytes * beta",
                "\n    tree = 2 * (n - 1).bit_length() * alpha",
            ),
        ),
        Mutant("asks for its own world", replace=("2 * (n - 1) * alpha", "2 * (world_size - 1) * alpha")),
        Mutant(
            "answers the slower one",
            replace=('"ring" if ring <= tree else "tree"', '"tree" if ring <= tree else "ring"'),
        ),
    ),
    hints=(
        "Write the two formulas down as they stand.",
        "`(n - 1).bit_length()` is ⌈log2 n⌉ for whole n ≥ 1; so is `math.ceil(math.log2(n))`.",
    ),
    after="With many ranks the ring needs a huge buffer before its smaller byte count pays for its steps.",
)

EXERCISES = (BUSBW_OF, FIT_ALPHA_BETA, BEST_ALGORITHM)
