"""Run a learner's function and the workbook's on one input, so that their messages can be held side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace

from labkit.cluster.attempt import attempt, prepared
from labkit.cluster.check import unready
from labkit.cluster.console import Console
from labkit.cluster.healing import heal
from labkit.cluster.stop_button import STOP
from labkit.floor import time_limits
from labkit.grading import defined_names
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.finding import Finding, judged
from labkit.grading.inputs import Case

ASIDE = "workbooks_"  # before the name of the workbook's function while it is on the ranks


@dataclass(frozen=True)
class Runs:
    """Both runs on one input, and what is wrong with the learner's result there, None where it is right."""

    mine: Attempt
    right: Attempt
    finding: Finding | None


@STOP
def beside(console: Console, exercise: Exercise, case: Case) -> Runs | Finding:
    """Run both, and return both runs; a finding alone where there is no function of the learner's to run.

    The learner's runs last, so that `lab.last` is about it. Whatever it does, the ranks are well afterwards.
    """
    engines = console.engines
    console.recover()
    seen = dict(enumerate(console.call("labkit.rank.function.describe", exercise.name)))
    if finding := unready(exercise.name, seen, engines.state.replaced):
        return finding
    if defined_names.used(seen[0]["cell"]) == defined_names.WORKBOOKS:
        says = f"The {exercise.name} on the ranks is the workbook's. Run the cell with your own again."
        return Finding("elsewhere", [says])
    name = ASIDE + exercise.name
    source = f"{exercise.before}{exercise.code}".replace(f"def {exercise.name}(", f"def {name}(")
    with prepared(engines) as reach:
        reach(case.n)
        broken = next(filter(None, console.call("labkit.rank.definitions.define", source, name)), "")
        assert not broken, f"{exercise.name}: {broken}"
        right = attempt(console, replace(exercise, name=name), case, time_limits.RUN)
        mine = attempt(console, exercise, case, time_limits.RUN)
        finding = judged(exercise, case, mine, list(exercise.means(list(case.xs), **case.options)), "")
        if mine.report.cut_short:
            heal(engines, console.ran)
        console.call("labkit.rank.definitions.drop", name)
    return Runs(mine, right, finding)
