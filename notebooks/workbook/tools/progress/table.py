"""Show how a learner stands, for `lab.progress`: a line per lesson, or a line per exercise of one lesson."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from labkit.content import exercises as shelf
from labkit.floor.words import listed
from labkit.grading.exercise import Exercise
from labkit.show.card import STATES
from labkit.show.score import in_short
from labkit.show.table import cell, row, table
from workbook.tools.progress.ways import Stop

SHORT = {"not attempted": "○ not yet", "tried": "◐ tried", "solved": "● solved"}


@dataclass(frozen=True)
class LessonRow:
    """One lesson or a section of it, where its link leads, and what was done in the lesson."""

    says: str
    link: str
    exercises: int
    solved: int
    predictions: int
    answered: int
    right: int
    here: bool = False  # the learner's place on a way

    @property
    def counts(self) -> tuple[str, str]:
        """What was solved and what was predicted: ("1 of 4 solved", "3 of 5 answered, 2 right")."""
        solved = f"{self.solved} of {self.exercises} solved" if self.exercises else "–"
        right = f", {self.right} right" if self.answered else ""
        return solved, f"{self.answered} of {self.predictions} answered{right}" if self.predictions else "–"


class LessonsTable:
    """All lessons, or the stops of the chosen way, a line each; `next` is the exercise that comes next, if any."""

    def __init__(
        self,
        rows: Sequence[LessonRow],
        next_exercise: str | None = None,
        way: str = "",
        ways: Sequence[str] = (),
        plans: Mapping[str, float] | None = None,
    ) -> None:
        self.rows, self.way, self.ways, self.plans = list(rows), way, list(ways), dict(plans or {})
        self.next = next_exercise
        once = {r.link.partition("#")[0]: r for r in rows}.values()  # several stops may be one lesson's
        self.solved, self.exercises = sum(r.solved for r in once), sum(r.exercises for r in once)

    @property
    def caption(self) -> str:
        """The learner's progress in short: "2 of 31 exercises solved. Next: ring_shift, in lesson 02."."""
        where = f"Your way: {self.way}. " if self.way else ""
        return f"{where}{self.solved} of {self.exercises} exercises solved.{_next(self.next)}"

    @property
    def notes(self) -> list[str]:
        """What else can be shown, and the best plans."""
        names = listed([repr(way) for way in self.ways], "or")
        other = 'lab.progress(way="all") shows all lessons.' if self.way else f"lab.progress(way=…) takes {names}."
        return [f'lab.progress("02") lists the exercises of lesson 02. {other}', *_planned(self.plans)]

    def __repr__(self) -> str:
        wide = max((len(r.says) for r in self.rows), default=0)
        lines = [
            "  ".join([f"{r.says:<{wide}}", *r.counts, *["← you are here"] * bool(self.way and r.here)])
            for r in self.rows
        ]
        return "\n".join([self.caption, *lines, *self.notes])

    def _repr_html_(self) -> str:
        rows = []
        for r in self.rows:
            name = f'<a href="{escape(r.link)}">{escape(r.says)}</a>'
            solved, predicted = r.counts
            place = [cell("←&nbsp;you&nbsp;are&nbsp;here" if r.here else "", "here")] if self.way else []
            rows.append(row(name, [cell(solved, "solved"), cell(predicted, "predicted"), *place]))
        names = ["stop" if self.way else "lesson", "exercises", "predictions", *["place"] * bool(self.way)]
        return table("progress", escape(self.caption), names, rows) + _below(self.notes)


class ProgressTable:
    """The exercises of a lesson in their order; `solved` counts those that are, `next` names the one that comes next.

    `predictions` says of each of the lesson's whether its first answer was right; None where there is none yet.
    `best` has, by name, the least that a right solution of the learner's took, as `grading.score` keeps it; `plans`, by
    job, the least that a plan took, in times of the best one's time; `way` is the name of the way that the learner has
    chosen, and its next stop.
    """

    def __init__(
        self,
        exercises: Sequence[Exercise],
        states: Mapping[str, str],
        predictions: Sequence[bool | None] = (),
        best: Mapping[str, Any] | None = None,
        plans: Mapping[str, float] | None = None,
        next_exercise: str | None = None,
        way: tuple[str, Stop | None] | None = None,
    ) -> None:
        shown = {e.name for e in exercises}
        self.best = {name: in_short(figures) for name, figures in (best or {}).items() if name in shown}
        self.predictions, self.plans, self.way = list(predictions), dict(plans or {}), way
        self.exercises = list(exercises)
        self.states = {e.name: states.get(e.name, "not attempted") for e in exercises}
        self.solved = sum(state == "solved" for state in self.states.values())
        self.next = next_exercise

    @property
    def caption(self) -> str:
        """The learner's progress in short: "2 of 6 exercises solved. Next: ring_shift, in lesson 02."."""
        return f"{self.solved} of {len(self.exercises)} exercises solved.{_next(self.next)}"

    @property
    def notes(self) -> list[str]:
        """A line on predictions once any was answered, "Predictions: 3 right of 5 answered, 7 in all"; one on plans."""
        given, missing = self.predictions, self.predictions.count(None)
        told = f"Predictions: {given.count(True)} right of {len(given) - missing} answered, {len(given)} in all"
        return [*[told] * (missing < len(given)), *_planned(self.plans)]

    @property
    def onward(self) -> str:
        """The next stop of the learner's way; empty where none is chosen."""
        if self.way is None:
            return ""
        name, stop = self.way
        return f"Your way, {name}: {f'next is {stop.says}' if stop else 'this was its last stop'}."

    def __repr__(self) -> str:
        wide = max((len(e.name) for e in self.exercises), default=0)
        lines = [
            "  ".join(filter(None, [e.lesson, f"{e.name:<{wide}}", STATES[self.states[e.name]], self.best.get(e.name)]))
            for e in self.exercises
        ]
        return "\n".join([self.caption, *lines, *self.notes, *filter(None, [self.onward])])

    def _repr_html_(self) -> str:
        rows = []
        for e in self.exercises:
            state = SHORT[self.states[e.name]] + (" ← next" if e.name == self.next else "")
            level = f"{'●' * e.difficulty}{'○' * (3 - e.difficulty)}"
            name = f"<code>{e.name}</code><br>{escape(e.title)}"
            facts = {"difficulty": level, "minutes": f"{e.minutes} min", "state": state}
            cells = [cell(name, "name"), *(cell(said.replace(" ", "&nbsp;"), kind) for kind, said in facts.items())]
            best = [cell(self.best.get(e.name, ""), "best")] if self.best else []
            rows.append(row(e.lesson, [*cells, *best]))
        names = ["lesson", "exercise", "difficulty", "time", "state", *["your best"] * bool(self.best)]
        onward = escape(self.onward, quote=False)
        if self.way and (stop := self.way[1]):
            onward = onward.replace(escape(stop.says, quote=False), f'<a href="{stop.link}">{escape(stop.says)}</a>')
        return table("progress", escape(self.caption), names, rows) + _below(self.notes, onward)


def _next(name: str | None) -> str:
    return f" Next: {name}, in lesson {shelf.find(name).lesson}." if name else ""


def _planned(plans: Mapping[str, float]) -> list[str]:
    """Return a line, once any job was planned: "Plans: 66B in 1.08 times the best plan's time"."""
    each = [f"{job} in {ratio:.2f}" for job, ratio in plans.items()]
    return [f"Plans: {listed(each)} times the best plan's time"] if each else []


def _below(notes: Sequence[str], *html: str) -> str:
    lines = [*(escape(line, quote=False) for line in notes), *filter(None, html)]
    return f"<p>{'<br>'.join(lines)}</p>" if lines else ""
