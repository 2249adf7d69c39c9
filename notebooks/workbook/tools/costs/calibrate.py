"""Move the estimate towards a few rows measured on one's own machine. Neither torch nor a cluster.

The estimate keeps its shape. What the rows move are four factors: of all latencies, of the bandwidth, of the pipelines'
filling and of the steps with the Simple protocol. Each is held to 1 by how much machines of one kind differ in the
published tables, so that one bad row among good ones does little. What then remains at a row is added at sizes near it,
the less the further away: the mean of a Gaussian process. No message takes longer than a larger one: a row that
does, such as the spike of a first call, counts as that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools.costs.estimate import FITTED, Constants, Own, estimate
from workbook.tools.costs.machine import Cluster
from workbook.tools.costs.robust import Numbers, least_squares, tamed

SPREAD = (0.6, 0.12, 0.2, 0.2)  # how much latency, bandwidth, filling and Simple's steps may well differ, as a share
NOISE = 0.03  # how far off a measured row usually is
REACH = 1.0  # length scale of what remains, in ln(bytes): at e times a row's size, three quarters of it still hold
UNSURE = 0.15  # the variance of a row's own noise, where that of what it shares with sizes nearby is 1
KNOTS = 4  # of the curve, for each doubling


@dataclass(frozen=True)
class Calibrated:
    """The estimate for one's own machine; `off` is what remains at the rows that it was given, 0.1 being 10 % slow."""

    op: str
    n: int
    cluster: Cluster = field(repr=False)
    own: Own
    off: tuple[float, ...]
    curve: tuple[tuple[float, float], ...] = field(repr=False)  # bytes, from the least row to the largest; log seconds
    constants: Constants = field(default=FITTED, repr=False)

    def seconds(self, nbytes: Any) -> Any:
        """Return seconds for S bytes, or for an array of them: on the curve, beyond its ends as the estimate grows."""
        size, (knots, told) = np.asarray(nbytes, float), np.array(self.curve).T
        model = partial(estimate, self.op, n=self.n, cluster=self.cluster, constants=self.constants, own=self.own)
        beyond = model(size) / model(np.clip(size, knots[0], knots[-1]))
        found = np.exp(np.interp(np.log(size), np.log(knots), told)) * beyond
        return found if np.ndim(found) else float(found)

    @property
    def latency(self) -> float:
        """Seconds that the smallest message takes."""
        return float(self.seconds(1.0))

    @property
    def bandwidth(self) -> float:
        """The algbw, in GB/s, that larger and larger messages come to."""
        return float(1e11 / (self.seconds(1.1e21) - self.seconds(1e21)))

    def __repr__(self) -> str:
        worst = max(map(abs, self.off))
        return (
            f"{self.op} on {self.n:,} GPUs, {self.cluster.name}: {self.latency * 1e6:.3g} µs at least, algbw up to "
            f"{self.bandwidth:.3g} GB/s.\nAs measured here, latencies are {self.own.latency:.2f} times what the model "
            f"says without these rows, and the bandwidth is {self.own.bandwidth:.2f} times that.\n"
            f"At the {len(self.off)} rows it is off by {worst:.0%} at most.".replace("%", " %")
        )


def calibrate(
    op: str, n: int, cluster: Cluster, rows: Sequence[tuple[float, float]], constants: Constants = FITTED
) -> Calibrated:
    """Move the estimate towards a few rows of (bytes, µs) that were measured on one's own machine.

    >>> from workbook.tools.costs.machine import H100
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
    measured = np.log(us * 1e-6)

    def model(x: Numbers, at: Numbers) -> Numbers:
        return np.asarray(np.log(estimate(op, at, n, cluster, constants, _own(x))))

    def residuals(x: Numbers) -> Numbers:
        return np.concatenate([tamed(model(x, sizes) - measured, NOISE), x / np.array(SPREAD)])

    x = least_squares(residuals, np.zeros(len(SPREAD)))
    knots = np.union1d(sizes, sizes[0] * 2 ** np.arange(0, np.log2(sizes[-1] / sizes[0]), 1 / KNOTS))
    weights = np.linalg.solve(_kernel(sizes, sizes) + UNSURE * np.eye(len(sizes)), measured - model(x, sizes))
    told = np.maximum.accumulate(model(x, knots) + _kernel(knots, sizes) @ weights)
    mine = Calibrated(op, n, cluster, _own(x), (), tuple(zip(knots.tolist(), told.tolist(), strict=True)), constants)
    return replace(mine, off=tuple(float(mine.seconds(size) * 1e6 / t - 1) for size, t in pairs))


def _own(x: Numbers) -> Own:
    return Own(*map(float, np.exp(x)))


def _kernel(some: Numbers, others: Numbers) -> Numbers:
    """Correlate what remains at some sizes with what remains at others: Matérn's kernel, of order 3/2."""
    away = np.abs(np.log(some[:, None] / others)) / REACH
    return np.asarray((1 + away) * np.exp(-away))
