"""A few rows measured on one's own machine → the estimate for that machine. Neither torch nor a cluster.

The estimate keeps its shape. What the rows may move are factors: of all latencies and of the bandwidth, and from six
rows on of the pipelines' filling and of the steps with the Simple protocol, too. Each is held to 1 by how much machines
of one kind differ in the published tables, so that one bad row among good ones does little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.theory.costs.estimate import FITTED, Constants, Own, estimate, times
from labkit.theory.costs.machine import Cluster
from labkit.theory.costs.robust import Numbers, least_squares, tamed

SPREAD = (0.6, 0.12, 0.7, 0.5)  # how much latency, bandwidth, filling and Simple's steps may well differ, as a share
NOISE = 0.04  # how far off a measured row usually is
MANY = 6  # rows from which on all four factors are free


@dataclass(frozen=True)
class Calibrated:
    """The estimate for one's own machine; `off` is what remains at the rows that it was given, 0.1 being 10 % slow."""

    op: str
    n: int
    cluster: Cluster = field(repr=False)
    own: Own
    off: tuple[float, ...]
    constants: Constants = field(default=FITTED, repr=False)

    def seconds(self, nbytes: Any) -> Any:
        """Seconds for S bytes, or for an array of them."""
        size = np.asarray(nbytes, float)
        found = np.min(list(times(self.op, size, self.n, self.cluster, self.constants, self.own).values()), axis=0)
        return found if np.ndim(found) else float(found)

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
    '1.38 ms'

    Three rows will do: a small, a middle and a large one; six are better. S is nccl-tests'. Raises `LabError` for no
    rows, and for sizes or times that are not above zero.
    """
    pairs = sorted((float(size), float(us)) for size, us in rows)
    if not pairs or not all(size > 0 and us > 0 and np.isfinite(size * us) for size, us in pairs):
        raise LabError("Rows are pairs of bytes and µs, above zero. Give three or more, such as [(1024, 30), ...].")
    sizes, us = np.array(pairs).T
    estimate(op, sizes, n, cluster)  # refuses what it does not know
    free = len(SPREAD) if len(pairs) >= MANY else 2

    def errors(x: Numbers) -> Numbers:
        own = Own(*map(float, np.exp(x)))
        found = np.min(list(times(op, sizes, n, cluster, constants, own).values()), axis=0)
        return np.asarray(np.log(found * 1e6 / us))

    def residuals(x: Numbers) -> Numbers:
        return np.concatenate([tamed(errors(x), NOISE), x / np.array(SPREAD[:free])])

    x = least_squares(residuals, np.zeros(free))
    off = tuple(map(float, np.expm1(errors(x))))
    return Calibrated(op, n, cluster, Own(*map(float, np.exp(x))), off, constants)


def _times(factor: float) -> str:
    return f"{factor:.2f} times"
