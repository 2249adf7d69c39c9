"""One run of a learner's function on the first n ranks, freed where it cannot end; and what stands around runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from labkit.cluster.console import Console
from labkit.cluster.engines import COUNT, Engines
from labkit.cluster.healing import given_back
from labkit.cluster.run import Watch
from labkit.cluster.stop import STOP
from labkit.errors import LabError
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.inputs import Case
from labkit.outcome.text import root_cause
from labkit.words import sentence

PATIENCE = 10.0  # seconds that one run may compute, at least


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
    count = next(COUNT)
    args = {r: (exercise.name, case.n, count, call) for r, call in enumerate(calls)}
    limit = min(patience, max(PATIENCE, engines.limit + 5.0))
    console.outcome = None
    report = console.outcome = engines.call("labkit.rank.function.run", args, limit, watch)
    STOP.told |= report.ended == "stopped"  # which becomes the check's verdict
    report.elsewhere = {r: what for r, what in report.elsewhere.items() if r < case.n}
    return Attempt(report)


@contextlib.contextmanager
def prepared(engines: Engines) -> Iterator[Callable[[int], None]]:
    """Around runs: `reach(n)` makes the group of n ranks, where there is none yet; afterwards the lab's is joined."""
    folder, made = str(engines.processes.run.path), set[int]()

    def reach(n: int) -> None:
        if n not in made:
            if not _everywhere(engines, "begin", n, max(60.0, 10 * engines.limit), folder, next(COUNT)):
                made.clear()  # they went with the lab's group
            made.add(n)

    try:
        yield reach
    finally:
        if not all(_everywhere(engines, "finish", next(COUNT)).values()):
            rejoin(engines)


def _everywhere(engines: Engines, do: str, *args: Any) -> dict[int, Any]:
    """Begin on all ranks, or finish; their answers. Where one cannot all are joined anew first, and there are none.

    LabError where one cannot even then: what would run without the group must not be blamed for that.
    """
    everyone = dict.fromkeys(range(engines.n), args)
    for answered in (True, False):
        outcome = engines.call(f"labkit.rank.function.{do}", everyone, 10, engines.together, stoppable=False)
        if outcome.well:
            return outcome.answers if answered else {}
        why = engines.why_not(root_cause(outcome)[0])
        rejoin(engines)
    raise LabError(f"No group of all ranks can be made for this{why}. Call lab.stop() and start() for new ones.")


def rejoin(engines: Engines) -> None:
    """Join all ranks anew; one that died between two runs gets its functions back, and the learner is told."""
    if notes := given_back(engines, engines.heal()):
        print(sentence(notes))
