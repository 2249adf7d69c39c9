"""Simulate a whole training run on very many ranks: its steps, its checkpoints and what failures take."""

from __future__ import annotations

from dataclasses import dataclass

from workbook.tools.events import failures
from workbook.tools.events.failures import DAY, YEAR
from workbook.tools.events.step import PARTS, Run, Step

WHOLE = (*PARTS, "checkpoints", "lost work", "down")


@dataclass(frozen=True)
class Training(Run):
    """A training run: wall-clock seconds."""


def train(
    step: Step, mtbf: float = 5 * YEAR, checkpoint: float = 60.0, restart: float = 600.0, every: float | None = None,
    work: float = 10 * DAY, seed: int = 0,
) -> Training:  # fmt: skip
    """Repeat a step for `work` seconds while ranks die, each after `mtbf` seconds on average; see `failures`.

    The interval between checkpoints is `every` seconds of work, by default Young's. All steps take as long as this
    one: draw another one for another step.
    """
    between = failures.between_failures(step.n, mtbf)
    interval = failures.young(checkpoint, between) if every is None else every
    job = failures.run(work, interval, checkpoint, restart, failures.failures(step.n, mtbf, seed))
    parts = {name: seconds / step.seconds * job.useful for name, seconds in step.parts.items()}
    parts |= {"checkpoints": job.checkpoints, "lost work": job.lost, "down": job.down}
    return Training(step.way, job.seconds, parts)
