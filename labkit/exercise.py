"""Exercises as a learner meets them: a card, a check, hints, the solution, one's own attempt, and the progress."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython

from labkit import exercises, progress
from labkit.cluster import check as engine
from labkit.cluster.console import Console, Progress
from labkit.errors import LabError
from labkit.grading import inputs
from labkit.grading.exercise import Exercise
from labkit.show.card import Card, Note
from labkit.show.progress import ProgressTable
from labkit.show.verdict import Verdict
from labkit.theory.primitives import meaning, meant

if TYPE_CHECKING:
    from labkit.cluster.cell import Running


def check(console: Console, name: str, **given: Any) -> Verdict:
    """Run the function of this name on the ranks and hold it against its exercise, or against `means=`."""
    exercise = wanted(name, **given)
    line, began = Progress(2.0), time.monotonic()

    def saw(cell: str) -> None:
        typed = attempt(cell)
        if not exercise.solution or typed.strip() != exercise.answer.strip():  # the solution is nobody's attempt
            progress.save(name, typed)

    def watch(right: int, elapsed: float, running: Running) -> None:
        line.show(max(elapsed, time.monotonic() - began), running)

    try:
        finding = engine.check(console, exercise, saw, watch)
    finally:
        line.clear()
    if given:
        return Verdict(exercise, finding)
    known = progress.read().get(name, {})
    if finding.state != "not attempted":
        state = "solved" if finding.state == "right" or known.get("state") == "solved" else "tried"
        known = progress.change(name, state=state, checks=known.get("checks", 0) + 1, last=finding.state)
    return Verdict(exercise, finding, _next(exercise, finding.state, known))


def wanted(name: str, means: Any = None, **given: Any) -> Exercise:
    """The exercise of this name, or one that is made of what the learner says that a function means."""
    if means is None:
        if given:
            raise LabError(f"{', '.join(given)} needs a meaning beside it: lab.check({name!r}, means=…).")
        return exercises.find(name)
    if not name.isidentifier():
        raise LabError(f"{name!r} is no name of a function. Write lab.check('my_all_reduce', means=…).")
    unknown = set(given) - set(Exercise.__dataclass_fields__)
    if unknown:
        usual = "inputs, forbids, budget, tolerance, gradients or in_place"
        raise LabError(f"{sorted(unknown)[0]!r} is no option of a check. Use {usual}.")
    primitive = meant(means)
    given = {"inputs": inputs.chunked if primitive and primitive.chunked else inputs.vectors, **given}
    return Exercise(name=name, lesson="", title="", statement="", means=meaning(means), solution="", **given)


def attempt(cell: str) -> str:
    """The cell that a function stands in, as it is typed: labkit lets a comment stand for its %%px line."""
    first, _, rest = cell.partition("\n")
    return f"{first.removeprefix('# ')}\n{rest}" if first.startswith("# %%") else f"%%px\n{cell}" if cell else ""


def card(name: str) -> Card:
    """The exercise of this name on a card."""
    exercise = exercises.find(name)
    known = progress.read().get(name, {})
    start = f'Write it in the cell below, run that, then `lab.check("{name}")`. Stuck? `lab.hint("{name}")`.'
    again = f'You have solved it. `lab.mine("{name}")` brings your last attempt back.'
    tried = f'`lab.mine("{name}")` brings your last attempt back, `lab.hint("{name}")` gives a hint.'
    state = known.get("state", "not attempted")
    return Card(exercise, state, {"solved": again, "tried": tried}.get(state, start))


def hint(name: str) -> Note:
    """The next hint of an exercise, with those before it."""
    exercise = exercises.find(name)
    if not exercise.hints:
        return Note("This exercise has no hints.")
    number = min(progress.read().get(name, {}).get("hints", 0) + 1, len(exercise.hints))
    progress.change(name, hints=number)
    lines = [f"**Hint {i} of {len(exercise.hints)}.** {text}" for i, text in enumerate(exercise.hints[:number], 1)]
    if number == len(exercise.hints):
        lines.append(f'That was the last hint. After an attempt, `lab.solution("{name}")` shows one way to do it.')
    return Note("\n\n".join(lines))


def solution(name: str) -> Note:
    """One way to solve an exercise, put into a new cell; only once it has been tried."""
    exercise = exercises.find(name)
    if not progress.read().get(name, {}).get("checks"):
        return Note(
            f'Try it first: write `{name}` and run `lab.check("{name}")`. `lab.hint("{name}")` helps you begin.'
        )
    progress.change(name, shown=True)
    _into_a_cell(exercise.answer)
    return Note(f"One way to write `{name}`. Compare it with yours (`lab.mine({name!r})`).", exercise.answer)


def mine(name: str) -> Note:
    """The learner's last attempt, put into a new cell."""
    cell = progress.last(name)
    if not cell:
        return Note(f'No attempt at `{name}` is kept. Every `lab.check("{name}")` keeps one.')
    _into_a_cell(cell)
    return Note(f"Your last attempt at `{name}`.", cell)


def overview(lesson: str | int | None = None) -> ProgressTable:
    """All exercises, or those of a lesson, and how each stands."""
    number = f"{lesson:02}" if isinstance(lesson, int) else lesson
    chosen = [e for e in exercises.every().values() if number in (None, e.lesson)]
    if not chosen:
        known = ", ".join(sorted({e.lesson for e in exercises.every().values()}))
        raise LabError(f"There are no exercises in lesson {lesson!r}. Choose one of {known}.")
    return ProgressTable(chosen, {name: facts.get("state", "") for name, facts in progress.read().items()})


def _next(exercise: Exercise, state: str, known: dict[str, Any]) -> str:
    """What to do now, in a sentence."""
    name = exercise.name
    if state == "right":
        solved = {n for n, facts in progress.read().items() if facts["state"] == "solved"}
        names = list(exercises.every())
        at = names.index(name)
        open_ = [n for n in names[at + 1 :] + names[:at] if n not in solved]
        if not open_:
            return "That was the last one: you have solved every exercise of the workbook."
        return f"Next: {open_[0]}, in lesson {exercises.find(open_[0]).lesson}."
    left = len(exercise.hints) - known.get("hints", 0)
    if state != "not attempted" and left <= 0:
        return f'lab.solution("{name}") shows one way to do it.'
    return f'lab.hint("{name}") gives a hint.'


def _into_a_cell(code: str) -> None:
    """Put code into the next cell, where a notebook listens."""
    shell = get_ipython()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        shell.set_next_input(code.rstrip())
