"""Fit curves by least squares, where a row that is off by far may not wreck the fit. Numpy alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

USUAL = 0.08  # an error that is nothing special: from there on a row pulls less and less
Numbers = npt.NDArray[np.float64]


def tamed(error: Numbers, usual: float = USUAL) -> Numbers:
    """Return errors in units of the usual one, with the large ones' roots taken: what a robust fit squares."""
    pull = 2 * (np.sqrt(1 + (error / usual) ** 2) - 1)
    return np.asarray(np.sign(error) * np.sqrt(pull))


def least_squares(
    residuals: Callable[[Numbers], Numbers], start: Numbers, rounds: int = 200, enough: float = 1e-7
) -> Numbers:
    """Find the x with the least sum of squared residuals near the start, by Levenberg's and Marquardt's steps.

    >>> least_squares(lambda x: np.array([x[0] - 3, 2 * (x[0] - 3)]), np.array([0.0])).round(6).tolist()
    [3.0]
    """
    x, damping = np.array(start, float), 1e-2
    r = residuals(x)
    for _ in range(rounds):
        slope = np.stack([(residuals(x + d) - r) / 1e-5 for d in 1e-5 * np.eye(len(x))], 1)
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
        if gain < enough * (r @ r):
            break
    return x
