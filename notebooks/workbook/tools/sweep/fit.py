"""Fit α and β to times over sizes, by relative error. Numpy alone.

Ordinary least squares minimise the *absolute* error: the largest message, which takes a thousand times longer than
the smallest, decides alone, and α is nearly free. Here each point counts by how far off it is in per cent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from labkit.floor.errors import LabError

Numbers = Sequence[float] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """A line T = `alpha` + `beta` · bytes through measured times: seconds, and seconds per byte.

    >>> fit([1e3, 1e6, 1e9], [11e-6, 1.01e-3, 1.00001])
    α = 10 µs, β = 1 ns/byte (1 GB/s); off by 0 % in the median, by 0 % at most
    """

    alpha: float
    beta: float
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def bandwidth(self) -> float:
        """1 / β in GB/s, 10⁹ bytes per second."""
        return 1e-9 / self.beta if self.beta else float("inf")

    @property
    def residuals(self) -> tuple[float, ...]:
        """How far off the line is at each point, as a share of what was measured: 0.1 is 10 % too slow."""
        return tuple(float(self.at(s) / t - 1) for s, t in zip(self.sizes, self.seconds, strict=True))

    @property
    def worst(self) -> float:
        """The largest residual, without its sign."""
        return max(abs(r) for r in self.residuals)

    def at(self, nbytes: float) -> float:
        """Predict the seconds for a size, also outside of what was measured.

        >>> round(fit([1e3, 1e6, 1e9], [11e-6, 1.01e-3, 1.00001]).at(0), 12)
        1e-05
        """
        return self.alpha + self.beta * nbytes

    def __repr__(self) -> str:
        off = np.abs(self.residuals)
        gbs = f" ({self.bandwidth:.3g} GB/s)" if self.beta else ""
        return (
            f"α = {self.alpha * 1e6:.3g} µs, β = {self.beta * 1e9:.3g} ns/byte{gbs}; "
            f"off by {np.median(off):.0%} in the median, by {self.worst:.0%} at most"
        ).replace("%", " %")


def fit(sizes: Numbers, seconds: Numbers) -> Fit:
    """Fit T = α + β · bytes to measured times, with the least *relative* error.

    >>> round(fit([1e3, 1e6, 1e9], [11e-6, 1.01e-3, 1.00001]).bandwidth, 6)  # GB/s
    1.0

    α and β are never below zero. Raises `LabError` for fewer than two different sizes, or a time that is not above
    zero.
    """
    pairs = sorted(zip((float(s) for s in sizes), (float(t) for t in seconds), strict=True))
    x, t = (np.array(column) for column in zip(*pairs, strict=True)) if pairs else (np.array([]), np.array([]))
    if len(set(x)) < 2:
        raise LabError("A line needs two sizes at least. Measure more sizes.")
    if not (np.isfinite(t).all() and np.isfinite(x).all() and (t > 0).all() and (x >= 0).all()):
        raise LabError("Times must be above zero and sizes not below. Look for the rows that were not measured.")
    return Fit(*_line(x, t), tuple(map(float, x)), tuple(map(float, t)))


def _line(x: npt.NDArray[np.float64], t: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return α and β, neither below zero, with the least sum of ((α + β x - t) / t)²."""
    u, v = 1 / t, x / t  # α u + β v should be 1 everywhere
    uu, uv, vv, su, sv = u @ u, u @ v, v @ v, u.sum(), v.sum()
    found = [(su / uu, 0.0)] + ([(0.0, sv / vv)] if vv else [])
    inverse = uu * vv - uv * uv
    if inverse > 1e-12 * uu * vv:
        alpha, beta = (su * vv - sv * uv) / inverse, (sv * uu - su * uv) / inverse
        if alpha >= 0 and beta >= 0:
            found = [(alpha, beta)]
    alpha, beta = min(found, key=lambda line: float(((line[0] * u + line[1] * v - 1) ** 2).sum()))
    return float(alpha), float(beta)
