"""A whole training run on very many ranks: its steps, its checkpoints and what failures take. No torch, no cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbook.tools.events import failures
from workbook.tools.events.failures import DAY, YEAR, Job
from workbook.tools.events.step import PARTS, Step

WHOLE = (*PARTS, "checkpoints", "lost work", "down")


@dataclass(frozen=True)
class Training:
    """A run: `parts` are seconds of its wall-clock time by what they went into, and add up to `seconds`."""

    step: Step
    job: Job
    every: float
    parts: dict[str, float] = field(repr=False)

    @property
    def seconds(self) -> float:
        """From its begin to its end."""
        return self.job.seconds

    @property
    def computing(self) -> float:
        """The part of the whole in which the average rank computes what is kept."""
        return self.parts["computing"] / self.seconds

    def drawn(self, between: tuple[str, str] | None = None) -> Any:
        """Return what `labkit.draw` shows."""
        return self.drawn_beside({self.step.way: self})

    @staticmethod
    def drawn_beside(runs: Mapping[str, Any]) -> Any:
        """Return what `labkit.draw` shows of several."""
        from workbook.tools.events.show import Spent  # matplotlib

        return Spent(runs)


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
    return Training(step, job, interval, parts)
