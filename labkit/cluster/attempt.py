"""One run of a learner's function on the first n ranks, freed where it cannot end."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from labkit.cluster.cell import Running, explain, wait_out
from labkit.cluster.console import Console
from labkit.cluster.processes import call_by_name
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
    watch: Callable[[float, Running], None],
) -> Attempt:
    """Call the function on the first n ranks; free those that cannot end."""
    engines = console.engines
    n = case.n
    calls = [
        {
            "args": x if isinstance(x, tuple) else (x,),
            "options": dict(case.options),
            "dtype": case.dtype,
            "in_place": exercise.in_place,
            "harness": exercise.harness,
            "gradients": mode,
        }
        for x in case.xs
    ]
    console.ran = list(range(n))
    each = min(patience, max(PATIENCE, engines.limit + 5.0))

    def hurry(elapsed: float, running: Running) -> None:
        watch(elapsed, running)
        if elapsed > each:
            raise TimeoutError

    path = "labkit.rank.function.run"
    running = Running(
        engines, engines.view(range(n)).apply_async(call_by_name, path, exercise.name, n, next(COUNT), calls)
    )
    slow = False
    try:
        report = wait_out(running, hurry)
    except TimeoutError:
        slow = True
        fate = explain(running)
        running.free()
        report = running.report(**fate)
    answers = {r: reply.result() for r, reply in running.replies.items() if reply.done() and not running.error(r)}
    for rank in report.ranks:
        error = answers.get(rank.rank, {}).get("error")
        if error:
            rank.ename, rank.evalue = error[:2]
    report.elsewhere = {r: what for r, what in report.elsewhere.items() if r < n}
    return Attempt(answers, report, slow)
