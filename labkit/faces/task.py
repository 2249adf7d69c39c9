"""Let a learner check an exercise, get hints, the solution, or an earlier attempt back; and show the progress."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython
from IPython.core.inputtransformer2 import TransformerManager

from labkit import content
from labkit.cluster import check as engine
from labkit.cluster.console import Console, Progress
from labkit.content import exercises
from labkit.faces import course, progress
from labkit.floor import words
from labkit.floor.errors import LabError
from labkit.grading import defined_names, inputs
from labkit.grading.exercise import Exercise
from labkit.grading.finding import Finding
from labkit.show.card import Card, Note
from labkit.show.verdict import Verdict
from labkit.theory import definitions
from labkit.theory.primitives import meaning, meant
from labkit.theory.record import read

if TYPE_CHECKING:
    from labkit.cluster.run import Running
    from labkit.show.message_diff import Beside


class Task:
    """An exercise and the actions on it; it displays itself as a card.

    >>> lab.exercise("ring_shift")
    >>> lab.exercise("ring_shift").hint()
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._exercise = exercises.find(name)
        self._name = name

    def check(self) -> Verdict:
        """Run your function on 2, 3 and 4 ranks and hold it against what it should do, as `lab.check(name)` does."""
        return check(self._console, self._name)

    def steps(self) -> Beside | Note:
        """Play your function's messages beside the workbook's, step by step, with what differs marked.

        >>> lab.exercise("ring_reduce_scatter").steps()

        Both run once on the ranks, on the input of the card. Write and run your function first, as far as you have it.
        """
        if not course.read().solutions:
            return Note(course.OFF.format("the workbook's solutions, and with them .steps(),"))
        return _played(self._console, self._exercise)

    def hint(self) -> Note:
        """Show the next hint, with those before it."""
        hints, allowed = self._exercise.hints, course.read()
        if not allowed.hints:
            return Note(course.OFF.format("hints"))
        if not hints:
            return Note("This exercise has no hints.")
        number = min(self._known.get("hints", 0) + 1, len(hints))
        progress.change(self._name, hints=number)
        lines = [f"**Hint {i} of {len(hints)}.** {text}" for i, text in enumerate(hints[:number], 1)]
        if number == len(hints):
            then = f" After an attempt, {how('solution', self._name)} shows one way to do it." * allowed.solutions
            lines.append(f"That was the last hint.{then}")
        return Note("\n\n".join(lines))

    def solution(self) -> Note:
        """Put one way to solve it into a new cell. Check an attempt of your own first."""
        name, allowed = self._name, course.read()
        if not allowed.solutions:
            return Note(course.OFF.format("the workbook's solutions"))
        if not self._known.get("checks"):
            helps = f" {how('hint', name)} helps you begin." * allowed.hints
            return Note(f"Try it first: write `{name}` and run {how('check', name)}.{helps}")
        progress.change(name, shown=True)
        _into_a_cell(self._exercise.answer)
        return Note(f"One way to write `{name}`. Compare it with yours ({how('mine', name)}).", self._exercise.answer)

    def mine(self) -> Note:
        """Put your solution, or your last attempt, into a new cell: every check keeps one on this machine."""
        cell, solved = progress.mine(self._name)
        if not cell:
            return Note(f"No attempt at `{self._name}` is kept. Every {how('check', self._name)} keeps one.")
        _into_a_cell(cell)
        return Note(f"Your {'solution of' if solved else 'last attempt at'} `{self._name}`.", cell)

    @property
    def _known(self) -> dict[str, Any]:
        return progress.read().get(self._name, {})

    @property
    def _card(self) -> Card:
        name, state = self._name, self._known.get("state", "not attempted")
        verb = "Repair" if self._exercise.specimen else "Write"
        hints = course.read().hints
        gives, stuck = (f", {how('hint', name)} gives a hint", f" Stuck? {how('hint', name)}.") if hints else ("", "")
        what_next = {
            "solved": f"You have solved it. {how('mine', name)} brings your solution back.",
            "tried": f"{how('mine', name)} brings your last attempt back{gives}.",
        }.get(state, f"{verb} it in the cell below, run that, then {how('check', name)}.{stuck}")
        return Card(self._exercise, state, what_next)

    def __repr__(self) -> str:
        return repr(self._card)

    def _repr_html_(self) -> str:
        return self._card._repr_html_()


def how(action: str, name: str) -> str:
    """Return the code of an action on an exercise, as the learner types it."""
    return f'`lab.check("{name}")`' if action == "check" else f'`lab.exercise("{name}").{action}()`'


def check(console: Console, name: str, means: Any = None, seed: int | None = None, **options: Any) -> Verdict:
    """Run the function of this name on the ranks and hold it against its exercise, or against what it `means`."""
    exercise, allowed = wanted(name, means, **options), course.read()
    line, began = Progress(2.0), time.monotonic()
    number = 0  # of the attempt; the stub is none, nor is the specimen as it was given
    untouched = copied = False

    def saw(cell: str) -> None:
        nonlocal number, untouched, copied
        code, facts = cell.strip(), progress.read().get(name, {})
        copied = bool(facts.get("shown")) and code == exercise.answer.strip()  # as the solution was shown
        untouched = bool(exercise.specimen) and code == exercise.stub.strip()
        given = exercise.solution and code == exercise.stub.strip()
        if cell and not given and not (copied and facts.get("solved")):  # it takes no own solution's place
            number = progress.save(name, cell)

    def watch(right: int, elapsed: float, running: Running) -> None:
        line.show(max(elapsed, time.monotonic() - began), running)

    try:
        finding = engine.check(console, exercise, saw, watch, _cells(), exercises.every(), seed)
    finally:
        line.clear()
    if means is not None:
        return Verdict(exercise, finding)
    known = progress.read().get(name, {})
    if finding.state not in ("not attempted", "elsewhere") and not untouched:
        state = "solved" if finding.state == "right" or known.get("state") == "solved" else "tried"
        solved: dict[str, Any] = {}
        if finding.state == "right" and number:
            solved = {"solved": number, "inputs": finding.right}
            if finding.score and not copied and (best := finding.score.best(known.get("best"))):
                solved["best"] = best
        known = progress.change(name, state=state, checks=known.get("checks", 0) + 1, last=finding.state, **solved)
    if not allowed.diagnosis:
        finding = finding.in_an_exam()
    return Verdict(exercise, finding, _next(exercise, finding.state, known), known.get("best"), allowed.hints)


def _played(console: Console, exercise: Exercise) -> Beside | Note:
    """Play both functions' messages on the card's input, or note why there is nothing to play."""
    from labkit.cluster.reference_run import beside
    from labkit.show.message_diff import Beside

    name, case = exercise.name, Card(exercise).case
    if console.engines.n < case.n:
        return Note(f"This needs {case.n} ranks, as the card has them. Start them: `lab = start({case.n})`.")
    runs = beside(console, exercise, case)
    if isinstance(runs, Finding):
        return Note(f"{' '.join(runs.says)} Then {how('steps', name)} plays its messages.")
    mine, right = (read([answer or {} for answer in a.records]) for a in (runs.mine, runs.right))
    if not right.messages:
        return Note(
            f"The workbook's {name} sends no messages of its own: there is nothing to play. {how('check', name)} says "
            "how yours does."
        )
    if not mine.messages:
        calls = words.listed(sorted({op.called for ops in mine.ops for op in ops}))
        what = f"it calls {calls}" if calls else "nothing in it communicates"
        return Note(
            f"Your {name} sends no messages of its own: {what}. Write it with send and receive, run its cell, and call "
            f"{how('steps', name)} again."
        )
    if runs.finding:
        said = f"**{' '.join(runs.finding.says)}**" + " What was sent until then is shown." * runs.mine.report.cut_short
        hint = f" {how('hint', name)} gives a hint." * course.read().hints
        then = f"Mend your cell, run it, and call {how('steps', name)} again.{hint}"
    else:
        said = "**Your result is right on this input.**"
        then = f"{how('check', name)} runs it on all inputs."
    return Beside(name, mine, right, said, then, fine=not runs.finding)


def use(console: Console, names: Sequence[str]) -> Note:
    """Give the ranks each function: the learner's, where one was found right and still works, else the workbook's."""
    if not names:
        raise LabError('Say which functions the ranks should have: lab.use("ring_shift").')
    return Note("\n\n".join(_use(console, exercises.find(name)) for name in names))


def _use(console: Console, exercise: Exercise) -> str:
    """Give the ranks one function, and say which one in a sentence."""
    name = exercise.name
    cell, solved = progress.mine(name)
    why = ""
    if solved:
        facts = progress.read()[name]
        on = f" on {words.count(facts['inputs'], 'input')}" if facts.get("inputs") else ""
        if not (why := _given(console, name, _definitions(cell, name), defined_names.YOURS)):
            return f"The ranks use your {name}."
        why = f" The one that was right{on} does not work now: {why}."
    broken = _given(console, name, f"{exercise.before}{exercise.code.strip()}\n", defined_names.WORKBOOKS)
    assert not broken, f"{name}: {broken}"
    return f"The ranks use the workbook's {name}, until {how('check', name)} finds yours right.{why}"


def _given(console: Console, name: str, source: str, whose: str) -> str:
    """Let all ranks define a function, and return why it cannot be used there, empty where it can."""
    cell = defined_names.use(source, whose)
    why = next(filter(None, console.call("labkit.rank.definitions.define", cell, name)), "")
    if not why:
        console.engines.remember(cell)
    return why


def _definitions(cell: str, name: str) -> str:
    """Return what an attempt's cell defines, without what it does beside that: its calls, its prints."""
    first, _, rest = cell.partition("\n")
    return definitions.only(TransformerManager().transform_cell(rest if first.startswith("%%") else cell), name)


def wanted(name: str, means: Any = None, **options: Any) -> Exercise:
    """Return the exercise of this name, or one that is made of what the learner says that a function means."""
    if callable(name):
        mine = getattr(name, "__name__", "my_function")
        raise LabError(
            f"lab.check runs a function that the ranks have, and {mine} is the notebook's. Write it in a %%px cell and "
            f'pass its name: lab.check("{mine}"), or lab.check("{mine}", means=…) where it is not an exercise.'
        )
    if means is None:
        if options:
            raise LabError(f"{', '.join(options)} needs a meaning beside it: lab.check({name!r}, means=…).")
        return exercises.find(name)
    if not name.isidentifier():
        raise LabError(f"{name!r} is not a name of a function. Write lab.check('my_all_reduce', means=…).")
    unknown = set(options) - set(Exercise.__dataclass_fields__)
    if unknown:
        usual = "inputs, forbids, budget, tolerance, gradients or in_place"
        raise LabError(f"{sorted(unknown)[0]!r} is not an option of a check. Use {usual}.")
    primitive = meant(means)
    options = {"inputs": inputs.chunked if primitive and primitive.chunked else inputs.vectors, **options}
    return Exercise(name=name, means=meaning(means), **options)


def _next(exercise: Exercise, state: str, known: dict[str, Any]) -> str:
    """Say what to do now, in a sentence."""
    name = exercise.name
    if state == "right":
        overview = content.method("progress")  # it knows the lessons' order, and the way that the learner takes
        return overview(None).next if overview else ""
    allowed, play = course.read(), ""
    if not (allowed.hints or allowed.solutions):
        return ""
    costs = state in ("wrong", "deadlock", "costly", "not as asked")
    if costs and allowed.solutions and re.search(r"\bi?send\b", exercise.code):
        play = f" {how('steps', name)} plays your messages beside the workbook's." if not exercise.specimen else ""
    left = len(exercise.hints) - known.get("hints", 0)
    if allowed.solutions and state not in ("not attempted", "elsewhere") and (left <= 0 or not allowed.hints):
        return f"{how('solution', name)} shows one way to do it.{play}"
    return f"{how('hint', name)} gives a hint.{play}" if allowed.hints else play.lstrip()


def _cells() -> list[str]:
    """Return the cells that the notebook has run, as they were typed."""
    shell = get_ipython()
    history = None if shell is None else shell.history_manager
    return [] if history is None else list(history.input_hist_raw)


def _into_a_cell(code: str) -> None:
    """Put code into the next cell, where a notebook listens."""
    shell = get_ipython()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        shell.set_next_input(code.rstrip())
