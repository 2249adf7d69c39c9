"""The value of `lab.progress`: every exercise, its state, and which one comes next; how the predictions went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from labkit.floor.words import listed
from labkit.grading.exercise import Exercise
from labkit.show.card import STATES
from labkit.show.score import in_short
from labkit.show.table import cell, row, table

SHORT = {"not attempted": "○ not yet", "tried": "◐ tried", "solved": "● solved"}


class ProgressTable:
    """The exercises in the order of the lessons; `solved` counts those that are, `next` is the first that is not.

    `predictions` says of each prediction, by lesson, whether its first answer was right; None where there is none yet.
    `best` has, by name, the least that a right solution of the learner's took, as `grading.score` keeps it; `plans`, by
    job, the least that a plan took, in times of the best one's time.
    """

    def __init__(
        self,
        exercises: Sequence[Exercise],
        states: Mapping[str, str],
        predictions: Mapping[str, Sequence[bool | None]] | None = None,
        best: Mapping[str, Any] | None = None,
        plans: Mapping[str, float] | None = None,
    ) -> None:
        shown = {e.name for e in exercises}
        self.best = {name: in_short(figures) for name, figures in (best or {}).items() if name in shown}
        self.predictions = {lesson: list(rights) for lesson, rights in (predictions or {}).items()}
        self.plans = dict(plans or {})
        self.exercises = list(exercises)
        self.states = {e.name: states.get(e.name, "not attempted") for e in exercises}
        self.solved = sum(state == "solved" for state in self.states.values())
        self.next = next((e for e in exercises if self.states[e.name] != "solved"), None)

    @property
    def caption(self) -> str:
        """The learner's progress in short: "2 of 31 exercises solved. Next: ring_shift, in lesson 02."."""
        said = f"{self.solved} of {len(self.exercises)} exercises solved."
        return f"{said} Next: {self.next.name}, in lesson {self.next.lesson}." if self.next else said

    @property
    def predicted(self) -> list[str]:
        """A line for all, once anything was predicted, and one a lesson: "02  3 right of 5 answered, 7 in all"."""
        each = self.predictions
        every = [right for rights in each.values() for right in rights]
        answered = {lesson: rights for lesson, rights in each.items() if any(r is not None for r in rights)}
        lines = [f"{lesson}  {_counted(rights)}" for lesson, rights in answered.items() if len(each) > 1]
        return [f"Predictions: {_counted(every)}", *lines] if answered else []

    @property
    def planned(self) -> list[str]:
        """A line, once any job was planned: "Plans: 66B in 1.08 times the best plan's time"."""
        each = [f"{job} in {ratio:.2f}" for job, ratio in self.plans.items()]
        return [f"Plans: {listed(each)} times the best plan's time"] if each else []

    def __repr__(self) -> str:
        wide = max((len(e.name) for e in self.exercises), default=0)
        lines = [
            "  ".join(filter(None, [e.lesson, f"{e.name:<{wide}}", STATES[self.states[e.name]], self.best.get(e.name)]))
            for e in self.exercises
        ]
        return "\n".join([self.caption, *lines, *self.predicted, *self.planned])

    def _repr_html_(self) -> str:
        rows = []
        for e in self.exercises:
            state = SHORT[self.states[e.name]] + (" ← next" if e is self.next else "")
            level = f"{'●' * e.difficulty}{'○' * (3 - e.difficulty)}"
            name = f"<code>{e.name}</code><br>{escape(e.title)}"
            cells = [name, *(c.replace(" ", "&nbsp;") for c in (level, f"{e.minutes} min", state))]
            kinds = ("name", "difficulty", "minutes", "state")
            best = [cell(self.best.get(e.name, ""), "best")] if self.best else []
            rows.append(row(e.lesson, [*(cell(c, kind) for c, kind in zip(cells, kinds, strict=True)), *best]))
        names = ["lesson", "exercise", "difficulty", "time", "state", *["your best"] * bool(self.best)]
        below = [escape(line, quote=False) for line in (*self.predicted, *self.planned)]
        predicted = f"<p>{'<br>'.join(below)}</p>" if below else ""
        return table("progress", escape(self.caption), names, rows) + predicted


def _counted(rights: Sequence[bool | None]) -> str:
    return f"{rights.count(True)} right of {len(rights) - rights.count(None)} answered, {len(rights)} in all"
