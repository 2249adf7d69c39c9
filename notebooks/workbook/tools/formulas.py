"""Closed formulas: how many steps an algorithm takes, what it sends and what it adds. Neither torch nor a cluster.

S is the largest buffer that one rank holds, in bytes, as in `tools.schedules`: the tensor of an all-reduce, reduce or
broadcast; all that is gathered or scattered (N·D); the N chunks of a rank in a reduce-scatter or an all-to-all.
Whatever says how long an algorithm takes (`tools.costs`, the what-if) takes it from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.floor.errors import LabError


@dataclass(frozen=True)
class Figures:
    """What an algorithm takes: its steps, and bytes as shares of S. Numbers, or arrays of them where n was one.

    `sent` is the most that one rank sends, `total` what all send together, `serial` the bytes through the busiest
    rank, one direction, step after step, and `added` those that it adds to its own. `exact` is False where `sent` and
    `serial` are bounds that a schedule stays below.
    """

    steps: Any
    sent: Any
    total: Any
    serial: Any
    added: Any = 0.0
    exact: bool = True

    def seconds(self, alpha: Any, moving: Any, adding: Any = 0.0) -> Any:
        """steps·α + serial·S·β + added·S·γ: α in seconds per message; moving is S·β, adding S·γ, both in seconds."""
        return self.steps * alpha + self.serial * moving + self.added * adding


_Formula = Callable[[Any, Any, int | None], Figures]  # of n, pieces and aggregate


def figures(op: str, algorithm: str, n: Any, pieces: Any = None, aggregate: int | None = None) -> Figures:
    """Return the closed formulas of an algorithm, by its name, as fast for 100,000 ranks as for 2; n may be an array.

    >>> figures("all_reduce", "ring", 4)
    Figures(steps=6, sent=1.5, total=6.0, serial=1.5, added=0.75, exact=True)
    >>> figures("all_reduce", "halving-doubling", np.array([1, 8, 100_000])).steps
    array([ 0,  6, 34])

    `pieces` is that of a ring's broadcast or reduce (default N) and of a double tree (default 1), `aggregate` PAT's.
    Sources: ring, Patarasuk and Yuan 2009; recursive doubling, halving-doubling and folding, Thakur, Rabenseifner and
    Gropp 2005; Bruck et al. 1997; double tree, NCCL's trees.cc after Sanders, Speck and Träff 2009; PAT, Jeaugey 2025
    (arXiv 2506.20252). Raises `LabError` for what is not there.
    """
    known = FORMULAS.get(op, {})
    if algorithm not in known:
        raise LabError(f"No formula for {op!r} by {algorithm!r}. For {op} there is: {', '.join(known) or 'nothing'}.")
    if np.any(np.less(n, 1)):
        raise LabError(f"n={n!r} is not a number of ranks. Choose 1 or more.")
    f = known[algorithm](n, pieces, aggregate)
    shares = f.sent, f.total, f.serial, f.added
    steps, sent, total, serial, added = (np.where(np.greater(n, 1), x, 0 * x) for x in (f.steps, *shares))
    if isinstance(n, int):
        return Figures(steps.item(), float(sent), float(total), float(serial), float(added), f.exact)
    return Figures(steps, sent, total, serial, added, f.exact)


def log2_up(n: Any) -> Any:
    """⌈log2 n⌉, for n of 1 or more; exact for whole numbers.

    >>> log2_up(5), log2_up(np.array([1, 2, 3, 4, 5])).tolist()
    (3, [0, 1, 2, 2, 3])
    """
    if isinstance(n, int):
        return (n - 1).bit_length()
    return np.ceil(np.log2(np.maximum(n, 1)) - 1e-12).astype(int)


def _power(n: Any) -> tuple[Any, Any, Any]:
    """log2 of the largest power of two in n, that power, and 1 where n is more."""
    up = log2_up(n)
    more = (2**up != n) * 1
    return up - more, 2 ** (up - more), more


def _ones(n: Any) -> Any:
    """Count the ones in the binary numbers 0 to n - 1."""
    levels = range(int(np.max(log2_up(n))))
    return sum((n >> k + 1 << k) + np.maximum(0, n % (2 << k) - (1 << k)) for k in levels)


def _halvings(n: Any, _: int | None) -> Any:
    levels, _p, more = _power(n)
    if np.any(more):
        raise LabError(f"Halving or doubling alone needs a power of two, not {n}. Take Bruck's.")
    return levels


def _pats_steps(n: Any, aggregate: int | None) -> Any:
    full = 2 ** log2_up(n)
    most = np.minimum(aggregate or full, np.maximum(1, full // 2))
    return np.where(most == 1, n - 1, log2_up(most) + full // most - 1)


# Of n and aggregate: the steps of a reduce-scatter, and of an all-gather, which is its mirror image.
STEPS: dict[str, Callable[[Any, int | None], Any]] = {
    "ring": lambda n, _: n - 1,
    "bidirectional ring": lambda n, _: n // 2,
    "halving-doubling": _halvings,
    "Bruck": lambda n, _: log2_up(n),
    "PAT": _pats_steps,
}


def _rounds(by: str, times: int, adds: int) -> _Formula:
    """Take so many rounds, in each of which a rank sends n - 1 parts."""

    def formula(n: Any, _: Any, aggregate: int | None) -> Figures:
        share, steps = (n - 1) / n, STEPS[by](n, aggregate)
        return Figures(times * steps, times * share, times * (n - 1.0), times * share, adds * share)

    return formula


def _chain(adds: int) -> _Formula:
    def formula(n: Any, pieces: Any, _: Any) -> Figures:
        cut = n if pieces is None else pieces
        return Figures(n - 2 + cut, 1.0 + 0 * n, n - 1.0, (n - 2 + cut) / cut, adds + 0.0 * n)

    return formula


def _double_tree(n: Any, pieces: Any, _: Any) -> Figures:
    cut = 1 if pieces is None else pieces
    count = 2 * log2_up(n) + cut - 1
    return Figures(count, 2.0 + 0 * n, 2.0 * (n - 1), 2.0 * count / cut, 1.0 + 0 * n, exact=False)


def _recursive_doubling(n: Any, *_: Any) -> Figures:
    levels, p, more = _power(n)
    total = p * levels + 2.0 * (n - p)
    return Figures(levels + 2 * more, levels + more + 0.0, total, levels + 2.0 * more, levels + more + 0.0)


def _halving_doubling(n: Any, *_: Any) -> Figures:
    levels, p, more = _power(n)
    half = (p - 1) / p
    return Figures(
        2 * levels + 2 * more, 2 * half + more, 2.0 * (p - 1) + 2 * (n - p), 2 * half + 2 * more, half + more
    )


def _bruck_all_to_all(n: Any, *_: Any) -> Figures:
    ones = _ones(n)
    return Figures(log2_up(n), ones / n, 1.0 * ones, ones / n)


def _parts_by_tree(n: Any, *_: Any) -> Figures:
    return Figures(log2_up(n), (n - 1) / n, _ones(n) / n, (n - 1) / n, exact=False)


def _ring_then_gather(n: Any, *_: Any) -> Figures:
    share = (n - 1) / n
    return Figures(2 * (n - 1), 1.0 + 0 * n, n - 1 + share, 2 * share, share)


FORMULAS: dict[str, dict[str, _Formula]] = {
    "all_reduce": {
        "naive": lambda n, *_: Figures(2 * (n - 1), n - 1.0, 2.0 * (n - 1), 2.0 * (n - 1), n - 1.0),
        "ring": _rounds("ring", 2, 1),
        "bidirectional ring": _rounds("bidirectional ring", 2, 1),
        "tree": lambda n, *_: Figures(2 * log2_up(n), log2_up(n), 2.0 * (n - 1), 2.0 * log2_up(n), log2_up(n)),
        "double tree": _double_tree,
        "recursive doubling": _recursive_doubling,
        "halving-doubling": _halving_doubling,
        "Bruck": _rounds("Bruck", 2, 1),
        "PAT": _rounds("PAT", 2, 1),
    },
    "reduce_scatter": {by: _rounds(by, 1, 1) for by in STEPS} | {"as an all-reduce": _rounds("ring", 2, 1)},  # Gloo's
    "all_gather": {by: _rounds(by, 1, 0) for by in STEPS},
    "broadcast": {
        "naive": lambda n, *_: Figures(n - 1, n - 1.0, n - 1.0, n - 1.0),
        "tree": lambda n, *_: Figures(log2_up(n), log2_up(n), n - 1.0, log2_up(n)),
        "ring": _chain(0),
    },
    "reduce": {
        "naive": lambda n, *_: Figures(n - 1, 1.0 + 0 * n, n - 1.0, n - 1.0, n - 1.0),
        "tree": lambda n, *_: Figures(log2_up(n), 1.0 + 0 * n, n - 1.0, log2_up(n), log2_up(n)),
        "ring": _chain(1),
        "ring, then gather": _ring_then_gather,  # what Gloo does
    },
    "gather": {
        "linear": lambda n, *_: Figures(n - 1, 1 / n, (n - 1) / n, (n - 1) / n),
        "tree": _parts_by_tree,
    },
    "scatter": {
        "linear": lambda n, *_: Figures(n - 1, (n - 1) / n, (n - 1) / n, (n - 1) / n),
        "tree": _parts_by_tree,
    },
    "all_to_all": {
        "pairwise": _rounds("ring", 1, 0),
        "Bruck": _bruck_all_to_all,
    },
    "barrier": {"dissemination": lambda n, *_: Figures(log2_up(n), 0.0 * n, 0.0 * n, 0.0 * n)},
    "send_recv": {"one message": lambda n, *_: Figures(1 + 0 * n, 1.0 + 0 * n, 1.0 * n, 1.0 + 0 * n)},  # to the next
}
PIPELINED = (("broadcast", "ring"), ("reduce", "ring"), ("all_reduce", "double tree"))  # cut into pieces in a row
