"""A few rows measured on one's own machine → the estimate for that machine. Neither torch nor a cluster.

The estimate keeps its shape. What the rows move are four factors: of all latencies, of the bandwidth, of the pipelines'
filling and of the steps with the Simple protocol. Each is held to 1 by how much machines of one kind differ in the
published tables, so that one bad row among good ones does little. What then remains at the rows is interpolated between
them. No message takes longer than a larger one: a row that does, such as the spike of a first call, counts as that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.theory.costs.estimate import FITTED, Constants, Own, estimate, times
from labkit.theory.costs.machine import Cluster
from labkit.theory.costs.robust import Numbers, least_squares, tamed

SPREAD = (0.6, 0.12, 0.2, 0.2)  # how much latency, bandwidth, filling and Simple's steps may well differ, as a share
NOISE = 0.03  # how far off a measured row usually is
BELIEVED = 0.8  # of what remains at a row, the share that is not noise


@dataclass(frozen=True)
class Calibrated:
    """The estimate for one's own machine; `off` is what remains at the rows that it was given, 0.1 being 10 % slow."""

    op: str
    n: int
    cluster: Cluster = field(repr=False)
    own: Own
    off: tuple[float, ...]
    constants: Constants = field(default=FITTED, repr=False)
    remains: tuple[tuple[float, float], ...] = field(default=(), repr=False)  # bytes, and the logarithm to add there

    def seconds(self, nbytes: Any) -> Any:
        """Seconds for S bytes, or for an array of them."""
        size = np.asarray(nbytes, float)
        found = _log_seconds(self, size)
        if self.remains:
            found = found + self._remaining(size, found)
        found = np.exp(found)
        return found if np.ndim(found) else float(found)

    def _remaining(self, size: Numbers, found: Numbers) -> Numbers:
        """What to add to log seconds: as at the nearest rows, and between two of them more of the one or the other.

        Where it rises, it does so with the size's logarithm; where it falls, with what the estimate itself grows by, so
        that a larger message is never faster.
        """
        sizes, add = np.array(self.remains).T
        known = _log_seconds(self, sizes)
        if len(sizes) == 1:
            return np.broadcast_to(add[0], np.shape(size))
        i = np.clip(np.searchsorted(sizes, size, side="right") - 1, 0, len(sizes) - 2)
        way = np.log(size / sizes[i]) / np.log(sizes[i + 1] / sizes[i])
        grown = (found - known[i]) / np.maximum(known[i + 1] - known[i], 1e-12)
        more = add[i + 1] - add[i]
        return np.asarray(add[i] + more * np.clip(np.where(more > 0, way, grown), 0, 1))

    @property
    def latency(self) -> float:
        """Seconds that the smallest message takes."""
        return float(self.seconds(1.0))

    @property
    def bandwidth(self) -> float:
        """What algbw, in GB/s, comes to for a message without end."""
        return float(1e11 / (self.seconds(1.1e21) - self.seconds(1e21)))

    def __repr__(self) -> str:
        worst = max(map(abs, self.off))
        return (
            f"{self.op} on {self.n:,} GPUs, {self.cluster.name}: {self.latency * 1e6:.3g} µs at least, algbw up to "
            f"{self.bandwidth:.3g} GB/s.\nAs measured here, latencies are {_times(self.own.latency)} what the model "
            f"says without these rows, and the bandwidth is {_times(self.own.bandwidth)} that.\n"
            f"At the {len(self.off)} rows it is off by {worst:.0%} at most.".replace("%", " %")
        )


def calibrate(
    op: str, n: int, cluster: Cluster, rows: Sequence[tuple[float, float]], constants: Constants = FITTED
) -> Calibrated:
    """The estimate, moved towards a few rows of (bytes, µs) that were measured on one's own machine.

    >>> from labkit.theory.costs.machine import H100
    >>> mine = calibrate("all_reduce", 16, H100, [(1024, 60), (2**23, 212), (2**30, 4531)])
    >>> f"{mine.seconds(2**28) * 1e3:.2f} ms"  # that machine's table has 1.28
    '1.39 ms'

    Three rows will do: a small, a middle and a large one; six are better. S is nccl-tests'. Raises `LabError` for no
    rows, and for sizes or times that are not above zero.
    """
    pairs = sorted((float(size), float(us)) for size, us in rows)
    if not pairs or not all(size > 0 and us > 0 and np.isfinite(size * us) for size, us in pairs):
        raise LabError("Rows are pairs of bytes and µs, above zero. Give three or more, such as [(1024, 30), ...].")
    sizes, us = np.array([(size, min(t for s, t in pairs if s >= size)) for size in sorted({s for s, _ in pairs})]).T
    estimate(op, sizes, n, cluster)  # refuses what it does not know

    def at(x: Numbers) -> Calibrated:
        return Calibrated(op, n, cluster, Own(*map(float, np.exp(x))), (), constants)

    def errors(x: Numbers) -> Numbers:
        return np.asarray(_log_seconds(at(x), sizes) - np.log(us * 1e-6))

    def residuals(x: Numbers) -> Numbers:
        return np.concatenate([tamed(errors(x), NOISE), x / np.array(SPREAD)])

    x = least_squares(residuals, np.zeros(len(SPREAD)))
    remains = tuple(zip(map(float, sizes), map(float, -BELIEVED * errors(x)), strict=True))
    mine = replace(at(x), remains=remains)
    return replace(mine, off=tuple(float(mine.seconds(size) * 1e6 / t - 1) for size, t in pairs))


def _log_seconds(c: Calibrated, size: Numbers) -> Numbers:
    found = times(c.op, size, c.n, c.cluster, c.constants, c.own).values()
    return np.asarray(np.log(np.min(list(found), axis=0)))


def _times(factor: float) -> str:
    return f"{factor:.2f} times"
