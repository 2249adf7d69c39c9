"""The constants of `tools.costs.estimate`, fitted to published tables, again each time. Numpy alone.

Each constant has a guess, NCCL's own value or a data sheet's, and a share by which it may well be off; tables move it
away from there as far as they agree. What counts is the error in per cent, each table alike, and a row that is off by
far (the spike of a first call) counts little more than one that is just off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from workbook.tools.costs.estimate import Constants, estimate
from workbook.tools.costs.robust import least_squares, tamed
from workbook.tools.published import Table

GUESS = {  # constant: what it would be by NCCL's model or a data sheet, and how far off it may well be
    "base": (6.7, 0.4),
    "launch": (4.0, 0.5),
    "launch_channel": (0.2, 0.4),
    "near_network": (1.8, 0.3),
    "post": (1.5, 0.5),
    "step": (0.7, 0.4),
    "net_step": (1.2, 0.4),
    "ll": (0.9, 0.4),
    "ring": (0.95, 0.1),
    "pairwise": (0.8, 0.2),
    "nvls": (1.0, 0.1),
    "rack": (0.85, 0.2),
    "nvls_tree": (0.92, 0.1),
    "fill": (0.2, 1.0),
    "nvls_fill": (0.8, 0.6),
    "efa1": (50.0, 0.7),
    "efa": (25.0, 0.7),
    "tcpxo": (25.0, 0.7),
}
NAMES = tuple(f.name for f in fields(Constants))
MANY = 4  # tables of one publisher, from where on they count together
PRIOR = 0.7  # how hard the guesses hold on
Numbers = npt.NDArray[np.float64]


def errors(table: Table, constants: Constants) -> Numbers:
    """log(estimate / published), row by row: 0.1 is 10 % too slow."""
    assert table.cluster is not None
    sizes, us = np.array(table.rows).T
    return np.log(estimate(table.op, sizes, table.n, table.cluster, constants) * 1e6 / us)


def learn(tables: Sequence[Table], start: Constants | None = None, enough: float = 1e-7) -> Constants:
    """The constants that fit these tables best, in about twenty seconds, or a few from a start nearby."""
    known = [t for t in tables if t.claimed]
    guess = np.log([GUESS[name][0] for name in NAMES])
    publishers = Counter(t.publisher for t in known)
    weights = [4 / np.sqrt(len(t.rows) * max(1, publishers[t.publisher] / MANY)) for t in known]
    spread = np.array([GUESS[name][1] for name in NAMES])

    def residuals(x: Numbers) -> Numbers:
        constants = _constants(x)
        off = [tamed(errors(t, constants)) * w for t, w in zip(known, weights, strict=True)]
        return np.concatenate([*off, PRIOR * (x - guess) / spread])

    first = guess if start is None else np.log([getattr(start, name) for name in NAMES])
    return _constants(least_squares(residuals, first, enough=enough))


def _constants(x: Numbers) -> Constants:
    return Constants(**dict(zip(NAMES, map(float, np.exp(x)), strict=True)))
