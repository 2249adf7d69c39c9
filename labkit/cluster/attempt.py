"""One run of a learner's function on the first n ranks, freed where it cannot end."""

from __future__ import annotations

import itertools

from labkit.cluster.console import Console
from labkit.cluster.run import Watch
from labkit.cluster.stop import STOP
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.inputs import Case

PATIENCE = 10.0  # seconds that one run may compute, at least
COUNT = itertools.count(1000, 1000)  # groups that a function makes are numbered from a fresh number on, on all ranks


def attempt(
    console: Console,
    exercise: Exercise,
    case: Case,
    mode: str,
    patience: float,
    watch: Watch,
    memory: bool = False,
) -> Attempt:
    """Call the function on the first n ranks; free those that cannot end. `memory` counts it, which takes its time."""
    engines = console.engines
    calls = [
        {
            "args": x if isinstance(x, tuple) else (x,),
            "options": dict(case.options),
            "dtype": case.dtype,
            "in_place": exercise.in_place,
            "harness": exercise.harness,
            "gradients": mode,
            "memory": memory,
        }
        for x in case.xs
    ]
    console.ran = list(range(case.n))
    args = dict.fromkeys(console.ran, (exercise.name, case.n, next(COUNT), calls))
    limit = min(patience, max(PATIENCE, engines.limit + 5.0))
    console.outcome = None
    report = console.outcome = engines.call("labkit.rank.function.run", args, limit, watch)
    STOP.told |= report.ended == "stopped"  # which becomes the check's verdict
    report.elsewhere = {r: what for r, what in report.elsewhere.items() if r < case.n}
    return Attempt(report)
