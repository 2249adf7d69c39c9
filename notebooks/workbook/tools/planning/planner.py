"""Let a learner plan a job that is too big for one GPU: sliders, a verdict with reasons, and the best so far."""

from __future__ import annotations

from typing import Any

from labkit.faces import progress
from labkit.faces.knob import Knob
from workbook.tools.planning import JOBS, ORDERS, Plan, found
from workbook.tools.planning.show import Planned
from workbook.tools.sharding import STAGES

CUTS = [2**k for k in range(8)]
LABELS = {"zero": "ZeRO", "micro": "micro-batches", "sequence": "sequence parallel"}


class Planner(Knob):
    """Plan a job by hand: each move is judged, and the best plan that you have found is kept.

    >>> planner = Planner()
    >>> planner.go(job="7B", zero="ZeRO-1", micro=4)
    >>> planner.planned.ratio < 1.01
    True

    `data` is what is left of the GPUs once `tensor` and `pipe` are chosen. `planned` is the verdict on what the sliders
    say. Moves are written down where `lab.progress()` is kept: for each job the least that a plan of yours took, in
    times of the best one's time. `start` says where the sliders begin: `Planner(job="66B", tensor=8)`.
    """

    def __init__(self, **start: Any) -> None:
        self._begun = False
        self.planned: Planned
        choices: dict[str, list[Any]] = {
            "job": list(JOBS),
            "tensor": CUTS,
            "pipe": CUTS,
            "micro": [2**k for k in range(11)],
            "zero": list(STAGES),
            "sequence": ["off", "on"],
            "order": list(ORDERS),
        }
        super().__init__(self._judge, start=start, labels=LABELS, units=None, **choices)
        self._begun = True

    def _judge(self, job: str, tensor: int, pipe: int, micro: int, zero: str, sequence: str, order: str) -> Planned:
        data = max(1, found(job).gpus // (tensor * pipe))
        plan = Plan(data, tensor, pipe, micro, STAGES.index(zero), sequence == "on", order)
        self.planned = Planned(job, plan)
        if self._begun and self.planned.ratio is not None:
            progress.plan(job, self.planned.ratio)
        self.planned.record = progress.planned().get(job)
        return self.planned
