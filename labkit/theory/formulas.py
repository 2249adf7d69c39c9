"""Closed formulas: how many steps an algorithm takes and how many bytes a rank sends. Neither torch nor a cluster.

S is the largest buffer that one rank holds, in bytes, as in `theory.schedules`: the tensor of an all-reduce, reduce or
broadcast; all that is gathered or scattered (N·D); the N chunks of a rank in a reduce-scatter or an all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkit.errors import LabError

OPS = (
    "broadcast",
    "reduce",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)


def traffic_of(op: str, n: int, nbytes: float, root: int = 0) -> tuple[np.ndarray, str]:
    """Bytes from each rank to each other one as textbooks and Gloo's source have it, `matrix[src, dst]`, and its name.

    `nbytes` is S. Broadcast is Gloo's binomial tree, all-reduce its ring (each rank sends to the one before it),
    reduce its ring of reduce-scatters with a gather at the end. For a reduce-scatter it is the textbook's ring,
    S(N-1)/N from each rank: torch's Gloo runs an all-reduce under it and sends twice that.

    >>> matrix, name = traffic_of("all_reduce", 4, 4.0)
    >>> matrix.sum(axis=1).tolist(), name
    ([6.0, 6.0, 6.0, 6.0], 'ring: 2S(N-1)/N from each rank')
    """
    if op not in OPS:
        raise LabError(f"{op!r} has no textbook figure. Use one of {', '.join(OPS)}.")
    if n < 1 or root not in range(n):
        raise LabError(f"n={n}, root={root}: there is no such root. Choose one of 0 to n - 1.")
    matrix = np.zeros((n, n))
    ranks = np.arange(n)
    part = nbytes / n
    if op == "broadcast":
        for v in range(1, n):  # a rank gets it from the one that lacks its highest bit
            matrix[(v - (1 << v.bit_length() - 1) + root) % n, (v + root) % n] = nbytes
        return matrix, "binomial tree: S into each rank but the root"
    if op == "gather":
        matrix[ranks, root] = part
        matrix[root, root] = 0
        return matrix, "each rank sends S/N to the root"
    if op == "scatter":
        matrix[root, :] = part
        matrix[root, root] = 0
        return matrix, "the root sends S/N to each rank"
    if op == "all_to_all":
        return part * (1 - np.eye(n)), "pairwise: S/N from each rank to each other one"
    if n == 1 or op == "barrier":
        return matrix, "no data"
    if op == "all_gather":
        matrix[ranks, (ranks + 1) % n] = part * (n - 1)
        return matrix, "ring: S(N-1)/N from each rank"
    if op == "reduce_scatter":
        matrix[ranks, (ranks - 1) % n] = part * (n - 1)
        return matrix, "ring: S(N-1)/N from each rank"
    if op == "all_reduce":
        matrix[ranks, (ranks - 1) % n] = 2 * part * (n - 1)
        return matrix, "ring: 2S(N-1)/N from each rank"
    matrix[ranks, (ranks - 1) % n] = part * (n - 1)
    matrix[ranks, root] += part
    matrix[root, root] = 0
    return matrix, "ring: S(N-1)/N from each rank, then S/N from each to the root"


@dataclass(frozen=True)
class Figures:
    """What an algorithm takes: its steps, and bytes as shares of S.

    `sent` is the most that one rank sends, `total` what all send together, `serial` the bytes through the busiest
    rank, one direction, step after step: time = steps·α + serial·S·β. `exact` is False where `sent` and `serial` are
    bounds that a schedule stays below.
    """

    steps: int
    sent: float
    total: float
    serial: float
    exact: bool = True


_Formula = Callable[[int, int | None, int | None], Figures]


def figures(op: str, algorithm: str, n: int, pieces: int | None = None, aggregate: int | None = None) -> Figures:
    """The closed formulas of an algorithm of `theory.schedules`, by its name; as fast for 100,000 ranks as for 2.

    >>> figures("all_reduce", "ring", 4)
    Figures(steps=6, sent=1.5, total=6.0, serial=1.5, exact=True)
    >>> figures("all_reduce", "halving-doubling", 100_000).steps
    34

    `pieces` is that of a ring's broadcast or reduce (default N) and of a double tree (default 1), `aggregate` PAT's.
    Sources: ring, Patarasu and Yuan 2009; recursive doubling, halving-doubling and folding, Thakur, Rabenseifner and
    Gropp 2005; Bruck et al. 1997; double tree, NCCL's trees.cc after Sanders, Speck and Träff 2009; PAT, Jeaugey 2025
    (arXiv 2506.20252). Raises `LabError` for what is not there.
    """
    if (algorithm, op) not in _FORMULAS:
        known = ", ".join(a for a, o in _FORMULAS if o == op) or "nothing"
        raise LabError(f"No formula for {op!r} by {algorithm!r}. For {op} there is: {known}.")
    if n < 1:
        raise LabError(f"n={n!r} is no number of ranks. Choose 1 or more.")
    if n == 1:
        return Figures(0, 0.0, 0.0, 0.0)
    return _FORMULAS[algorithm, op](n, pieces, aggregate)


def hierarchical(op: str, nodes: int, gpus: int) -> tuple[Figures, float]:
    """The figures of a hierarchical ring, and the share of S that each rank sends out of its node.

    >>> hierarchical("all_reduce", nodes=2, gpus=4)
    (Figures(steps=8, sent=1.75, total=14.0, serial=1.75, exact=True), 0.25)
    """
    if op not in ("all_reduce", "all_gather", "reduce_scatter"):
        raise LabError(f"No formula for a hierarchical {op!r}. Take all_reduce, all_gather or reduce_scatter.")
    n, times = nodes * gpus, 2 if op == "all_reduce" else 1
    share = times * (n - 1) / n
    return Figures(times * (nodes + gpus - 2), share, share * n, share), times * (nodes - 1) / n


def steps(op: str, algorithm: str, n: int, pieces: int | None = None, aggregate: int | None = None) -> int:
    """How many steps an algorithm takes: `steps("all_reduce", "ring", 4)` is 6."""
    return figures(op, algorithm, n, pieces, aggregate).steps


def sent_per_rank(op: str, algorithm: str, n: int, nbytes: float = 1.0) -> float:
    """The bytes that the rank which sends most sends, of a buffer of `nbytes`."""
    return figures(op, algorithm, n).sent * nbytes


def log2_up(n: int) -> int:
    """⌈log2 n⌉, for n of 1 or more."""
    return (n - 1).bit_length()


def _power(n: int) -> tuple[int, int, int]:
    """log2 of the largest power of two in n, that power, and 1 where n is more."""
    levels = n.bit_length() - 1
    return levels, 1 << levels, int(n > 1 << levels)


def _ring(times: int) -> _Formula:
    return lambda n, *_: Figures(times * (n - 1), times * (n - 1) / n, times * (n - 1.0), times * (n - 1) / n)


def _chain(n: int, pieces: int | None, _: int | None) -> Figures:
    cut = pieces or n
    return Figures(n - 2 + cut, 1.0, n - 1.0, (n - 2 + cut) / cut)


def _bidirectional(times: int) -> _Formula:
    return lambda n, *_: Figures(times * (n // 2), times * (n - 1) / n, times * (n - 1.0), times * (n - 1) / n)


def _naive(n: int, *_: object) -> Figures:
    return Figures(n - 1, n - 1.0, n - 1.0, n - 1.0)


def _double_tree(n: int, pieces: int | None, _: int | None) -> Figures:
    cut = pieces or 1
    count = 2 * log2_up(n) + cut - 1
    return Figures(count, 2.0, 2.0 * (n - 1), 2.0 * count / cut, exact=False)


def _recursive_doubling(n: int, *_: object) -> Figures:
    levels, p, more = _power(n)
    extra = n - p
    return Figures(levels + 2 * more, levels + more + 0.0, p * levels + 2.0 * extra, levels + 2.0 * more)


def _halving_doubling(n: int, *_: object) -> Figures:
    levels, p, more = _power(n)
    half = 2 * (p - 1) / p
    return Figures(2 * levels + 2 * more, half + more, 2.0 * (p - 1) + 2 * (n - p), half + 2 * more)


def _halving(n: int, *_: object) -> Figures:
    levels, _p, more = _power(n)
    if more:
        raise LabError(f"Halving or doubling alone needs a power of two, not {n}. Take Bruck's.")
    return Figures(levels, (n - 1) / n, n - 1.0, (n - 1) / n)


def _bruck(times: int) -> _Formula:
    return lambda n, *_: Figures(times * log2_up(n), times * (n - 1) / n, times * (n - 1.0), times * (n - 1) / n)


def _bruck_all_to_all(n: int, *_: object) -> Figures:
    ones = sum((n >> k + 1 << k) + max(0, n % (2 << k) - (1 << k)) for k in range(log2_up(n)))  # in 0 to n-1
    return Figures(log2_up(n), ones / n, float(ones), ones / n)


def _pat(n: int, _: int | None, aggregate: int | None) -> Figures:
    full = 1 << log2_up(n)
    most = min(aggregate or full, max(1, full // 2))
    count = n - 1 if most == 1 else most.bit_length() - 1 + full // most - 1
    return Figures(count, (n - 1) / n, n - 1.0, (n - 1) / n)


_FORMULAS: dict[tuple[str, str], _Formula] = {
    ("naive", "broadcast"): _naive,
    ("naive", "reduce"): lambda n, *_: Figures(n - 1, 1.0, n - 1.0, n - 1.0),
    ("naive", "all_reduce"): lambda n, *_: Figures(2 * (n - 1), n - 1.0, 2.0 * (n - 1), 2.0 * (n - 1)),
    ("linear", "gather"): lambda n, *_: Figures(n - 1, 1 / n, (n - 1) / n, (n - 1) / n),
    ("linear", "scatter"): lambda n, *_: Figures(n - 1, (n - 1) / n, (n - 1) / n, (n - 1) / n),
    ("ring", "all_gather"): _ring(1),
    ("ring", "reduce_scatter"): _ring(1),
    ("ring", "all_reduce"): _ring(2),
    ("ring", "broadcast"): _chain,
    ("ring", "reduce"): _chain,
    ("bidirectional ring", "all_gather"): _bidirectional(1),
    ("bidirectional ring", "reduce_scatter"): _bidirectional(1),
    ("bidirectional ring", "all_reduce"): _bidirectional(2),
    ("tree", "broadcast"): lambda n, *_: Figures(log2_up(n), log2_up(n), n - 1.0, log2_up(n)),
    ("tree", "reduce"): lambda n, *_: Figures(log2_up(n), 1.0, n - 1.0, log2_up(n)),
    ("tree", "all_reduce"): lambda n, *_: Figures(2 * log2_up(n), log2_up(n), 2.0 * (n - 1), 2.0 * log2_up(n)),
    ("double tree", "all_reduce"): _double_tree,
    ("recursive doubling", "all_reduce"): _recursive_doubling,
    ("halving-doubling", "all_reduce"): _halving_doubling,
    ("halving-doubling", "all_gather"): _halving,
    ("halving-doubling", "reduce_scatter"): _halving,
    ("Bruck", "all_gather"): _bruck(1),
    ("Bruck", "reduce_scatter"): _bruck(1),
    ("Bruck", "all_reduce"): _bruck(2),
    ("Bruck", "all_to_all"): _bruck_all_to_all,
    ("PAT", "all_gather"): _pat,
    ("PAT", "reduce_scatter"): _pat,
    ("pairwise", "all_to_all"): lambda n, *_: Figures(n - 1, (n - 1) / n, n - 1.0, (n - 1) / n),
}
