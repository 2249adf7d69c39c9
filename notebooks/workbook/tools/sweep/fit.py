"""Times over sizes → α and β, by relative error. Numpy alone; where the times come from is somebody else's affair.

Ordinary least squares minimise the *absolute* error: the largest message, which takes a thousand times longer than
the smallest, decides alone, and α is nearly free. Here each point counts by how far off it is in per cent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from labkit.floor.errors import LabError

FEW = 3  # points that a segment needs at least: two are met exactly and prove nothing
Numbers = Sequence[float] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Segment:
    """T = alpha + beta · bytes, from `first` to `last` bytes. Seconds, and seconds a byte."""

    first: float
    last: float
    alpha: float
    beta: float

    @property
    def bandwidth(self) -> float:
        """1 / β in GB/s, 10⁹ bytes a second."""
        return 1e-9 / self.beta if self.beta else float("inf")


@dataclass(frozen=True)
class Fit:
    """A line through all points, `alpha` + `beta` · bytes, and the segments that `at` predicts with.

    >>> fit([1e3, 1e6, 1e9], [11e-6, 1.01e-3, 1.00001])
    α = 10 µs, β = 1 ns/byte (1 GB/s); off by 0 % in the median, by 0 % at most
    """

    alpha: float
    beta: float
    segments: tuple[Segment, ...]
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def bandwidth(self) -> float:
        """1 / β of the one line, in GB/s."""
        return 1e-9 / self.beta if self.beta else float("inf")

    @property
    def residuals(self) -> tuple[float, ...]:
        """How far off the prediction is at each point, as a share of what was measured: 0.1 is 10 % too slow."""
        return tuple(float(self.at(s) / t - 1) for s, t in zip(self.sizes, self.seconds, strict=True))

    @property
    def worst(self) -> float:
        """The largest residual, without its sign."""
        return max(abs(r) for r in self.residuals)

    @property
    def crossing(self) -> float:
        """α / β in bytes: below, a message costs mostly its latency; above, mostly its bytes."""
        return self.alpha / self.beta if self.beta else float("inf")

    def at(self, nbytes: float) -> float:
        """Seconds predicted for a size, also outside of what was measured: there by the first or the last segment.

        >>> round(fit([1e3, 1e6, 1e9], [11e-6, 1.01e-3, 1.00001]).at(0), 12)
        1e-05
        """
        ends = [segment.last for segment in self.segments[:-1]]
        segment = self.segments[int(np.searchsorted(ends, nbytes))]
        return segment.alpha + segment.beta * nbytes

    def __repr__(self) -> str:
        off = np.abs(self.residuals)
        gbs = f" ({self.bandwidth:.3g} GB/s)" if self.beta else ""
        several = f" in {len(self.segments)} segments" if len(self.segments) > 1 else ""
        return (
            f"α = {self.alpha * 1e6:.3g} µs, β = {self.beta * 1e9:.3g} ns/byte{gbs}; "
            f"off{several} by {np.median(off):.0%} in the median, by {self.worst:.0%} at most"
        ).replace("%", " %")


def fit(sizes: Numbers, seconds: Numbers, segments: int = 1) -> Fit:
    """Fit T = α + β · bytes to measured times, with the least *relative* error.

    >>> round(fit([1e3, 1e6, 1e9], [11e-6, 1.01e-3, 1.00001]).bandwidth, 6)  # GB/s
    1.0

    α and β are never below zero. `segments` cuts the sizes into so many stretches at most, each with an α and a β
    of its own and three points at least, where the cuts cost least: caches and changes of protocol bend the line.
    Raises `LabError` for fewer than two different sizes, or a time that is not above zero.
    """
    pairs = sorted(zip((float(s) for s in sizes), (float(t) for t in seconds), strict=True))
    x, t = (np.array(column) for column in zip(*pairs, strict=True)) if pairs else (np.array([]), np.array([]))
    if len(set(x)) < 2:
        raise LabError("A line needs two sizes at least. Measure more sizes.")
    if not (np.isfinite(t).all() and np.isfinite(x).all() and (t > 0).all() and (x >= 0).all()):
        raise LabError("Times must be above zero and sizes not below. Look for the rows that were not measured.")
    alpha, beta = _line(x, t)
    cut = [Segment(float(x[a]), float(x[b - 1]), *_line(x[a:b], t[a:b])) for a, b in _cuts(x, t, segments)]
    return Fit(alpha, beta, tuple(cut), tuple(map(float, x)), tuple(map(float, t)))


def _line(x: npt.NDArray[np.float64], t: npt.NDArray[np.float64]) -> tuple[float, float]:
    """α and β, neither below zero, with the least sum of ((α + β x - t) / t)²."""
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


def _off(x: npt.NDArray[np.float64], t: npt.NDArray[np.float64]) -> float:
    alpha, beta = _line(x, t)
    return float((((alpha + beta * x) / t - 1) ** 2).sum())


def _cuts(x: npt.NDArray[np.float64], t: npt.NDArray[np.float64], most: int) -> list[tuple[int, int]]:
    """Where to cut into at most so many stretches: the least squared relative error, by dynamic programming."""
    n = len(x)
    ends = [j for j in range(1, n + 1) if j == n or x[j] != x[j - 1]]  # one size stays together
    best: dict[int, tuple[float, list[tuple[int, int]]]] = {0: (0.0, [])}
    answer: tuple[float, list[tuple[int, int]]] = (_off(x, t), [(0, n)])
    for _ in range(most):
        grown: dict[int, tuple[float, list[tuple[int, int]]]] = {}
        for a, (cost, before) in best.items():
            for b in (j for j in ends if len(set(x[a:j])) >= FEW):
                candidate = (cost + _off(x[a:b], t[a:b]), [*before, (a, b)])
                if b not in grown or candidate[0] < grown[b][0]:
                    grown[b] = candidate
        best = grown
        if n in best and best[n][0] < answer[0] - 1e-15:
            answer = best[n]
    return answer[1]
