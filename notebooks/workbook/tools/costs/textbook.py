"""Price algorithms where every link is alike: α-β-γ.

T = steps·α + serial·S·β + added·S·γ, with α in seconds a message, β in seconds a byte, γ in seconds a byte that is
added; steps, bytes and S are those of `workbook.tools.formulas`, where the sources stand. Every rank has a link of its
own, both ways at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools.formulas import FORMULAS, PIPELINED, figures

# Formulas that are not compared: what needs a power of two, and what is a reduce-scatter and an all-gather of others.
APART = {
    "all_reduce": ("Bruck", "PAT"),
    "reduce_scatter": ("Bruck", "halving-doubling"),
    "all_gather": ("halving-doubling",),
}
ALGORITHMS = {op: tuple(name for name in known if name not in APART.get(op, ())) for op, known in FORMULAS.items()}


def of(op: str) -> tuple[str, ...]:
    """Return the names of an operation's algorithms; `LabError` where there are none."""
    if op not in ALGORITHMS:
        raise LabError(f"{op!r} has no costs here. Choose one of: {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[op]


def seconds(op: str, algorithm: str, n: Any, nbytes: Any, alpha: float, beta: float, gamma: float = 0.0) -> Any:
    """Return the seconds that an operation takes by an algorithm; n and nbytes may be arrays.

    >>> round(float(seconds("all_reduce", "ring", 4, 1e6, alpha=1e-5, beta=1e-9)) * 1e6)  # 6 α + 1.5 MB, in µs
    1560

    What can be cut into pieces that follow one another (a chain, a double tree) is cut into the best number of them.
    In one piece it takes fill + 1 steps, and in c pieces fill + c steps of a c-th of the bytes, so that the best c is
    √(fill·S·β / α), S being what one step moves in one piece.
    """
    if algorithm not in of(op):
        raise LabError(f"{op} has no algorithm {algorithm!r} here. Choose one of: {', '.join(ALGORITHMS[op])}.")
    n, size = np.asarray(n), np.asarray(nbytes, float)
    pieces = None
    if (op, algorithm) in PIPELINED:
        whole = figures(op, algorithm, n, pieces=1)
        moving = whole.serial / np.maximum(whole.steps, 1) * size * beta
        pieces = np.maximum(1, np.sqrt(np.maximum(whole.steps - 1, 0) * moving / max(alpha, 1e-300)))
    return figures(op, algorithm, n, pieces).seconds(alpha, size * beta, size * gamma)


def flat(op: str, nbytes: Any, n: Any, alpha: float, beta: float, gamma: float = 0.0) -> dict[str, Any]:
    """Return the seconds of each algorithm where every pair of ranks has the same α and β; arrays are welcome."""
    size, n = np.broadcast_arrays(np.asarray(nbytes, float), np.asarray(n))
    return {name: seconds(op, name, n, size, alpha, beta, gamma) for name in of(op)}
