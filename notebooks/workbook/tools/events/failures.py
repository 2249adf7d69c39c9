"""Simulate a job whose ranks die: time between failures, checkpoints, lost work; events, and formulas beside them.

`train` is a whole training run of such a job, many of `step`'s training steps.

The model. Each rank fails after an exponential time of mean `mtbf`, independently of the others, and its replacement
is as good. One failure stops all. Noticing it and starting again takes `restart` seconds, in which ranks fail as
well, and then recovery begins anew. What was computed since the last checkpoint is lost. Every checkpoint stops the
job for `checkpoint` seconds, and counts once it is complete.

What is collapsed, exactly: the failures of n ranks, each replaced at once, are one Poisson process of rate n / mtbf,
so their moments are drawn as such; which rank it was makes no difference to the rest. Imports neither torch nor a
cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import exp, expm1, inf, sqrt

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools.events.step import PARTS, Run, Step

WHOLE = (*PARTS, "checkpoints", "lost work", "down")
HOUR, DAY, YEAR = 3600.0, 86_400.0, 365.25 * 86_400.0


@dataclass(frozen=True)
class Job:
    """Seconds of a job's life: `useful` work, `checkpoints`, work that was `lost`, and `down` time after failures."""

    useful: float
    checkpoints: float
    lost: float
    down: float
    failures: int

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.useful + self.checkpoints + self.lost + self.down

    @property
    def goodput(self) -> float:
        """The useful part."""
        return self.useful / self.seconds


def between_failures(n: int, mtbf: float) -> float:
    """Return the mean time between failures of a job of n ranks, each of which fails after `mtbf` seconds on average.

    >>> round(between_failures(100_000, 5 * YEAR) / 60, 1)  # minutes
    26.3
    """
    return mtbf / n


def failures(n: int, mtbf: float, seed: int = 0) -> Iterator[float]:
    """Yield the moments at which a job of n ranks loses one, in order, without end."""
    rng, at = np.random.default_rng(seed), 0.0
    while True:
        for gap in rng.exponential(mtbf / n, 1000):
            at += float(gap)
            yield at


def run(work: float, every: float, checkpoint: float, restart: float, dies: Iterable[float]) -> Job:
    """Do `work` seconds of work with a checkpoint after `every` seconds of it; `dies` are the moments of failures.

    >>> run(100, every=40, checkpoint=1, restart=5, dies=[30, 65, 100])
    Job(useful=100.0, checkpoints=2.0, lost=90.0, down=15.0, failures=3)

    No checkpoint follows the last work. The time of a checkpoint that a failure cuts short counts as lost.
    """
    if min(work, every) <= 0 or min(checkpoint, restart) < 0:
        raise LabError("Work and the interval are above zero, checkpoints and restarts take 0 seconds or more.")
    now, done, lost, down, saved, count = 0.0, 0.0, 0.0, 0.0, 0, 0
    coming = iter(dies)
    dies_at = next(coming, inf)
    pieces = max(1, int(np.ceil(work / every * (1 - 1e-12))))
    whole = every + checkpoint
    while True:
        left = pieces - 1 - saved  # pieces with a checkpoint behind them; then the last one
        end = now + left * whole + (work - (pieces - 1) * every)
        if dies_at >= end:
            useful = float(work)
            return Job(useful, (pieces - 1) * float(checkpoint), lost, down, count)
        got = min(left, int((dies_at - now) // whole))
        saved += got
        done = now + got * whole
        lost += dies_at - done
        now = dies_at
        up = now + restart
        count += 1
        dies_at = next(coming, inf)
        while dies_at < up:  # recovery begins anew
            count += 1
            up, dies_at = dies_at + restart, next(coming, inf)
        down += up - now
        now = up


def young(checkpoint: float, between: float) -> float:
    """Return the interval between checkpoints that wastes least, to first order: √(2·C·M) (Young 1974; Daly 2006).

    >>> round(young(60, 1580))  # seconds
    435
    """
    return sqrt(2 * checkpoint * between)


def goodput(every: float, checkpoint: float, restart: float, between: float) -> float:
    """Return the expected useful part of a long job's time: exact for this model.

    An interval and its checkpoint take x = every + checkpoint without a failure. Until x seconds have passed without
    one, (e^(x/M) - 1)·M·e^(R/M) seconds go by on average, each failure costing a recovery of R seconds that has to pass
    without a failure itself (Daly 2006 has the same cost function).
    """
    return every / (expm1((every + checkpoint) / between) * between * exp(restart / between))


def best(checkpoint: float, between: float) -> float:
    """Find the interval with the best `goodput`, by golden section; the restart does not move it."""
    low, high = 1e-6 * between, max(4 * young(checkpoint, between), 4 * between)
    golden = (sqrt(5) - 1) / 2
    while high - low > 1e-7 * high:
        a, b = high - golden * (high - low), low + golden * (high - low)
        if goodput(a, checkpoint, 0, between) > goodput(b, checkpoint, 0, between):
            high = b
        else:
            low = a
    return (low + high) / 2


@dataclass(frozen=True)
class Training(Run):
    """A training run: wall-clock seconds."""


def train(
    step: Step, mtbf: float = 5 * YEAR, checkpoint: float = 60.0, restart: float = 600.0, every: float | None = None,
    work: float = 10 * DAY, seed: int = 0,
) -> Training:  # fmt: skip
    """Repeat a step for `work` seconds while ranks die, each after `mtbf` seconds on average; see `run`.

    The interval between checkpoints is `every` seconds of work, by default Young's. All steps take as long as this
    one: draw another one for another step.
    """
    between = between_failures(step.n, mtbf)
    interval = young(checkpoint, between) if every is None else every
    job = run(work, interval, checkpoint, restart, failures(step.n, mtbf, seed))
    parts = {name: seconds / step.seconds * job.useful for name, seconds in step.parts.items()}
    parts |= {"checkpoints": job.checkpoints, "lost work": job.lost, "down": job.down}
    return Training(step.way, job.seconds, parts)
