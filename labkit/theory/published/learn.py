"""The constants of `theory.costs.estimate`, fitted to published tables, again each time. Numpy alone.

Each constant has a guess, NCCL's own value or a data sheet's, and a share by which it may well be off; tables move it
away from there as far as they agree. What counts is the error in per cent, each table alike, and a row that is off by
far (the spike of a first call) counts little more than one that is just off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from labkit.theory.costs.estimate import Constants, estimate
from labkit.theory.published.tables import TABLES, Table

GUESS = {  # constant: what it would be by NCCL's model or a data sheet, and how far off it may well be
    "base": (6.7, 0.3),
    "blackwell": (11.0, 0.7),
    "launch": (4.0, 0.5),
    "launch_channel": (0.2, 0.4),
    "step": (0.7, 0.4),
    "net_step": (1.2, 0.4),
    "efa1": (70.0, 0.7),
    "efa": (25.0, 0.7),
    "tcpx": (25.0, 0.7),
    "ll": (0.9, 0.4),
    "ring": (0.95, 0.1),
    "network": (0.95, 0.1),
    "many": (0.92, 0.1),
    "nvls": (0.85, 0.1),
    "nvls_blackwell": (0.65, 0.15),
    "nvls_tree": (0.92, 0.1),
    "fill": (0.2, 1.0),
    "nvls_fill": (0.8, 0.6),
}
NAMES = tuple(f.name for f in fields(Constants))
USUAL = 0.08  # an error that is nothing special: from there on a row pulls less and less
PRIOR = 0.7  # how hard the guesses hold on
Numbers = npt.NDArray[np.float64]


def modelled(tables: Sequence[Table] = TABLES) -> list[Table]:
    """The tables that the model makes a claim about: NCCL's."""
    return [t for t in tables if t.cluster is not None]


def errors(table: Table, constants: Constants) -> Numbers:
    """log(estimate / published), row by row: 0.1 is 10 % too slow."""
    assert table.cluster is not None
    sizes, us = np.array(table.rows).T
    return np.log(estimate(table.op, sizes, table.n, table.cluster, constants) * 1e6 / us)


def learn(tables: Sequence[Table]) -> Constants:
    """The constants that fit these tables best, in about a second."""
    known = modelled(tables)
    guess = np.log([GUESS[name][0] for name in NAMES])
    spread = np.array([GUESS[name][1] for name in NAMES])

    def residuals(x: Numbers) -> Numbers:
        constants = _constants(x)
        off = [tamed(errors(t, constants)) * 4 / np.sqrt(len(t.rows)) for t in known]
        return np.concatenate([*off, PRIOR * (x - guess) / spread])

    return _constants(least_squares(residuals, guess))


def tamed(error: Numbers, usual: float = USUAL) -> Numbers:
    """Errors in units of the usual one, with the large ones' roots taken: what a robust fit squares."""
    pull = 2 * (np.sqrt(1 + (error / usual) ** 2) - 1)
    return np.asarray(np.sign(error) * np.sqrt(pull))


def least_squares(residuals: Callable[[Numbers], Numbers], start: Numbers, rounds: int = 200) -> Numbers:
    """The x with the least sum of squared residuals near the start: Levenberg and Marquardt."""
    x, damping = np.array(start, float), 1e-2
    r = residuals(x)
    for _ in range(rounds):
        nudges = 1e-5 * np.eye(len(x))
        slope = np.stack([(residuals(x + d) - residuals(x - d)) / 2e-5 for d in nudges], 1)
        square, downhill = slope.T @ slope, slope.T @ r
        while damping < 1e9:
            step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-12), -downhill)
            tried = residuals(x + step)
            if tried @ tried < r @ r:
                break
            damping *= 4
        else:
            break
        gain, x, r = r @ r - tried @ tried, x + step, tried
        damping = max(damping / 8, 1e-9)
        if gain < 1e-8 * (r @ r):
            break
    return x


def _constants(x: Numbers) -> Constants:
    return Constants(**dict(zip(NAMES, map(float, np.exp(x)), strict=True)))
