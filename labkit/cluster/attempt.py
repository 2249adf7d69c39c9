"""Run a learner's function on the first n ranks, and free them where it cannot end; make the groups that runs need."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from labkit.cluster.console import Console
from labkit.cluster.engines import COUNT, Engines
from labkit.cluster.healing import given_back
from labkit.cluster.run import Watch
from labkit.floor import time_limits
from labkit.floor.errors import LabError
from labkit.floor.words import sentence
from labkit.grading import judge
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.inputs import Case
from labkit.outcome.outcome import Outcome, RankOutcome
from labkit.outcome.phrases import healed
from labkit.outcome.text import root_cause

Reach = Callable[..., None]


def attempt(
    console: Console,
    exercise: Exercise,
    case: Case,
    patience: float,
    watch: Watch = lambda *_: None,
    mode: str = "",
    memory: bool = False,
    seed: int = 0,
    most: int = 64 * judge.ROOM,
) -> Attempt:
    """Call the function on the first n ranks; free those that cannot end. `memory` counts it, which takes its time.

    `seed` is every rank's for random numbers, `most` the bytes that a result may have to be told.
    """
    calls = [(_call(exercise, case, r, seed, most) | {"gradients": mode, "memory": memory},) for r in range(case.n)]
    return _attempt(console, "run", exercise, calls, patience, watch)


def attempts(
    console: Console,
    exercise: Exercise,
    cases: Sequence[Case],
    seeds: Sequence[int],
    most: int,
    seconds: float,
    watch: Watch,
) -> tuple[list[Attempt], Attempt]:
    """Call it with one input after another, in one go, as long as all is well and the seconds are not over.

    Return the calls that every rank has ended well, without records, and all of it as one run.
    """
    n = cases[0].n
    given = [*zip(cases, seeds, strict=True)]
    calls = [([_call(exercise, case, r, seed, most) for case, seed in given], seconds) for r in range(n)]
    ran = _attempt(console, "again", exercise, calls, seconds + time_limits.RUN, watch)
    told = [ran.answers[r]["answers"] if r in ran.answers else [] for r in range(n)]
    well = [answers for answers in zip(*told, strict=False) if not any("error" in one for one in answers)]
    return [Attempt(Outcome([RankOutcome(r, answer=one) for r, one in enumerate(answers)])) for answers in well], ran


def _call(exercise: Exercise, case: Case, rank: int, seed: int, most: int) -> dict[str, Any]:
    """Return what a rank is told of one call."""
    x = case.xs[rank]
    return {
        "args": x if isinstance(x, tuple) else (x,),
        "options": dict(case.options),
        "dtype": case.dtype,
        "in_place": exercise.in_place,
        "module": exercise.module,
        "gradients": "",
        "memory": False,
        "seed": seed,
        "most": most,
    }


def _attempt(
    console: Console, do: str, exercise: Exercise, calls: Sequence[tuple[Any, ...]], patience: float, watch: Watch
) -> Attempt:
    engines, n, count = console.engines, len(calls), next(COUNT)
    console.ran = list(range(n))
    args = {r: (exercise.name, n, count, *call) for r, call in enumerate(calls)}
    limit = min(patience, max(time_limits.RUN, engines.limit + time_limits.RUN_BEYOND_LIMIT))
    console.outcome = None
    report = console.outcome = engines.call(f"labkit.rank.function.{do}", args, limit, watch)
    report.elsewhere = {r: what for r, what in report.elsewhere.items() if r < n}
    return Attempt(report)


@contextlib.contextmanager
def prepared(engines: Engines) -> Iterator[Reach]:
    """Yield `reach`: `reach(n)` makes the group of n ranks, where there is none yet. Afterwards join the lab's again.

    `reach(n, anew=True)` is for after a heal, with which all groups have gone.
    """
    folder, made = str(engines.processes.run.path), set[int]()

    def reach(n: int, anew: bool = False) -> None:
        if anew:
            made.clear()
        if n not in made:
            if not _everywhere(engines, "begin", n, engines.group_timeout, folder, next(COUNT)):
                made.clear()  # they went with the lab's group
            made.add(n)

    try:
        yield reach
    finally:
        if not all(_everywhere(engines, "finish", next(COUNT)).values()):
            rejoin(engines)


def _everywhere(engines: Engines, do: str, *args: Any) -> dict[int, Any]:
    """Begin on all ranks, or finish, and return their answers; none where all had to be joined anew first.

    Raises `LabError` where a rank cannot even then: what would run without the group must not be blamed for that.
    """
    everyone = dict.fromkeys(range(engines.n), args)
    for answered in (True, False):
        path, limit = f"labkit.rank.function.{do}", time_limits.GROUP_MADE
        outcome = engines.call(path, everyone, limit, engines.together, "waits")
        if outcome.well:
            return outcome.answers if answered else {}
        why = engines.why_not(root_cause(outcome)[0])
        rejoin(engines)
    raise LabError(f"No group of all ranks can be made for this{why}. Call lab.stop() and start() for new ones.")


def rejoin(engines: Engines) -> None:
    """Join all ranks anew; one that died between two runs gets its functions back, and the learner is told."""
    if notes := given_back(engines, engines.rejoin()):
        print(sentence([*map(healed, notes)]))
