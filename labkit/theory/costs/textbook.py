"""α-β-γ: how often an algorithm pays a message's latency, and for how many bytes, on one kind of link.

T = steps·α + moved·S·β + added·S·γ, with α in seconds a message, β in seconds a byte, γ in seconds a byte that is
added. S is what one rank holds at most, as in `labkit.theory.formulas`: the tensor of an all-reduce, a reduce or a
broadcast; all n parts of the others. Every rank has a link of its own, both ways at once. Steps and bytes are those of
`labkit.theory.formulas` (tests hold them equal), for whole arrays of n at once; the sources stand there.

What can be cut into pieces that follow one another (a chain, a double tree) takes, in c pieces, fill + c steps of
α + moved·S·β/c each; the best c is √(fill·moved·S·β / α), and then T = (√(fill·α) + √(moved·S·β))².
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.errors import LabError

Count = Callable[[Any], Any]  # an array of numbers of ranks → how much of it


@dataclass(frozen=True)
class Algorithm:
    """Its messages one after the other, and shares of S that the busiest rank moves and adds."""

    name: str
    steps: Count  # of a pipeline: those that fill it
    moved: Count
    added: Count
    pipelined: bool = False
    note: str = ""

    def seconds(self, n: Any, nbytes: Any, alpha: float, beta: float, gamma: float = 0.0) -> Any:
        """How long it takes; n and nbytes may be arrays."""
        n, size = np.asarray(n), np.asarray(nbytes, float)
        latency, moving = self.steps(n) * alpha, self.moved(n) * size * beta
        if self.pipelined:
            whole = latency + alpha * (n > 1) + (self.steps(n) + 1) * moving  # in one piece
            cut = moving > np.maximum(alpha, 1e-300) / np.maximum(self.steps(n), 1)
            moving = np.where(cut, (np.sqrt(latency) + np.sqrt(moving)) ** 2, whole)
            latency = 0.0
        return np.where(n > 1, latency + moving + self.added(n) * size * gamma, 0.0)


def log2(n: Any) -> Any:
    """⌈log₂ n⌉, exact for whole numbers.

    >>> log2(np.array([1, 2, 3, 4, 5])).tolist()
    [0, 1, 2, 2, 3]
    """
    return np.ceil(np.log2(np.maximum(n, 1)) - 1e-12).astype(int)


def _more(n: Any) -> Any:
    """1 where n is no power of two: the ranks beyond one hand their data to another and get the result back."""
    return (2 ** log2(n) != n).astype(int)


def _levels(n: Any) -> Any:
    return log2(n) - _more(n)


def _ring(n: Any) -> Any:
    return n - 1


def _share(n: Any) -> Any:
    return (n - 1) / n


def _none(n: Any) -> Any:
    return 0.0 * n


def _one(n: Any) -> Any:
    return 1.0 + 0 * n


def _core(n: Any) -> Any:
    return 1 - 2.0 ** -_levels(n)  # (p-1)/p with p the largest power of two in n


def _ones(n: Any) -> Any:
    """The ones in the binary numbers 0 to n - 1, over n: the share of all parts that Bruck's all-to-all moves."""
    total = 0 * n
    for k in range(int(np.max(log2(n)))):
        total = total + (n >> (k + 1) << k) + np.maximum(0, n % (2 << k) - (1 << k))
    return total / n


def _twice(count: Count) -> Count:
    return lambda n: 2 * count(n)


def _halving(moved_more: int) -> Count:
    return lambda n: 2 * _core(n) + moved_more * _more(n)


GLOO = "what Gloo does"
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    op: {a.name: a for a in algorithms}
    for op, algorithms in {
        "all_reduce": (
            Algorithm("naive", _twice(_ring), _twice(_ring), _ring, note="one rank gathers, adds and sends"),
            Algorithm("ring", _twice(_ring), _twice(_share), _share),
            Algorithm("bidirectional ring", lambda n: 2 * (n // 2), _twice(_share), _share),
            Algorithm("tree", _twice(log2), _twice(log2), log2, note="up, then down"),
            Algorithm("double tree", lambda n: np.maximum(2 * log2(n) - 1, 0), _twice(_one), _one, True),
            Algorithm(
                "recursive doubling", lambda n: _levels(n) + 2 * _more(n), lambda n: _levels(n) + 2 * _more(n),
                lambda n: _levels(n) + _more(n),
            ),
            Algorithm(
                "halving-doubling", lambda n: 2 * (_levels(n) + _more(n)), _halving(2), lambda n: _core(n) + _more(n)
            ),
        ),
        "reduce_scatter": (
            Algorithm("ring", _ring, _share, _share),
            Algorithm("bidirectional ring", lambda n: n // 2, _share, _share),
            Algorithm("PAT", log2, _share, _share),
            Algorithm("as an all-reduce", _twice(_ring), _twice(_share), _share, note=GLOO),
        ),
        "all_gather": (
            Algorithm("ring", _ring, _share, _none),
            Algorithm("bidirectional ring", lambda n: n // 2, _share, _none),
            Algorithm("Bruck", log2, _share, _none),
            Algorithm("PAT", log2, _share, _none),
        ),
        "broadcast": (
            Algorithm("naive", _ring, _ring, _none, note="the root sends to each in turn"),
            Algorithm("tree", log2, log2, _none),
            Algorithm("ring", lambda n: np.maximum(n - 2, 0), _one, _none, True),
        ),
        "reduce": (
            Algorithm("naive", _ring, _ring, _ring),
            Algorithm("tree", log2, log2, log2),
            Algorithm("ring", lambda n: np.maximum(n - 2, 0), _one, _one, True),
            Algorithm("ring, then gather", _twice(_ring), _twice(_share), _share, note=GLOO),
        ),
        "gather": (Algorithm("linear", _ring, _share, _none), Algorithm("tree", log2, _share, _none)),
        "scatter": (Algorithm("linear", _ring, _share, _none), Algorithm("tree", log2, _share, _none)),
        "all_to_all": (Algorithm("pairwise", _ring, _share, _none), Algorithm("Bruck", log2, _ones, _none)),
        "barrier": (Algorithm("dissemination", log2, _none, _none),),
        "send_recv": (Algorithm("one message", _one, _one, _none),),
    }.items()
}  # fmt: skip


def of(op: str) -> dict[str, Algorithm]:
    """The algorithms of an operation, by name; `LabError` where there are none."""
    if op not in ALGORITHMS:
        raise LabError(f"{op!r} has no costs here. Choose one of: {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[op]


def seconds(op: str, algorithm: str, n: Any, nbytes: Any, alpha: float, beta: float, gamma: float = 0.0) -> Any:
    """Seconds that an operation takes by an algorithm; n and nbytes may be arrays.

    >>> round(float(seconds("all_reduce", "ring", 4, 1e6, alpha=1e-5, beta=1e-9)) * 1e6)  # 6 α + 1.5 MB, in µs
    1560
    """
    known = of(op)
    if algorithm not in known:
        raise LabError(f"{op} has no algorithm {algorithm!r} here. Choose one of: {', '.join(known)}.")
    return known[algorithm].seconds(n, nbytes, alpha, beta, gamma)


def flat(op: str, nbytes: Any, n: Any, alpha: float, beta: float, gamma: float = 0.0) -> dict[str, Any]:
    """Seconds of each algorithm where every pair of ranks has the same α and β; arrays are welcome."""
    size, n = np.broadcast_arrays(np.asarray(nbytes, float), np.asarray(n))
    return {name: a.seconds(n, size, alpha, beta, gamma) for name, a in of(op).items()}


def crossover(op: str, one: str, other: str, n: int, alpha: float, beta: float, gamma: float = 0.0) -> float | None:
    """The size in bytes, up to 1 TB, at which two algorithms take equally long; None where one is never slower.

    >>> round(crossover("all_reduce", "ring", "recursive doubling", 8, alpha=1e-5, beta=1e-9) / 1e3)  # kB
    88
    """

    def apart(nbytes: float) -> float:
        return float(
            seconds(op, one, n, nbytes, alpha, beta, gamma) - seconds(op, other, n, nbytes, alpha, beta, gamma)
        )

    low, high = 1.0, 1e12
    if apart(low) * apart(high) >= 0:
        return None
    for _ in range(200):  # halve the gap; the sizes' logarithms, for they span twelve decades
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if apart(low) * apart(middle) > 0 else (low, middle)
    return float(np.sqrt(low * high))
