"""Show how a learner stands, for `lab.progress`: a line per lesson, or a line per exercise of one lesson."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from labkit.floor.words import listed
from labkit.grading.exercise import Exercise
from labkit.show import markdown
from labkit.show.card import STATES
from labkit.show.score import in_short
from labkit.show.table import cell, row, table

SHORT = {"not attempted": "○ not yet", "tried": "◐ tried", "solved": "● solved"}


@dataclass(frozen=True)
class LessonRow:
    """One lesson or a stop on a way, where its link leads, and what was done there."""

    says: str
    link: str
    exercises: int
    solved: int
    predictions: int
    answered: int
    right: int
    done: bool = False  # all of a stop
    here: bool = False  # the learner's place on a way

    @property
    def counts(self) -> tuple[str, str]:
        """What was solved and what was predicted: ("1 of 4 solved", "3 of 5 answered, 2 right")."""
        solved = f"{self.solved} of {self.exercises} solved" if self.exercises else "–"
        right = f", {self.right} right" if self.answered else ""
        return solved, f"{self.answered} of {self.predictions} answered{right}" if self.predictions else "–"

    @property
    def place(self) -> str:
        """The learner's place on a way: "✓ done", "← you are here", both or nothing."""
        return " ".join(["✓ done"] * self.done + ["← you are here"] * self.here)


class LessonsTable:
    """All lessons, or the stops of the chosen way, a line each; `next` says in a sentence what comes next."""

    def __init__(
        self,
        rows: Sequence[LessonRow],
        next_: str = "",
        way: str = "",
        ways: Sequence[str] = (),
        plans: Mapping[str, float] | None = None,
    ) -> None:
        self.rows, self.way, self.ways, self.plans = list(rows), way, list(ways), dict(plans or {})
        self.next = next_
        self.solved, self.exercises = sum(r.solved for r in rows), sum(r.exercises for r in rows)

    @property
    def caption(self) -> str:
        """The learner's progress in short: "2 of 31 exercises solved. Next: ring_shift, in lesson 02."."""
        where = f"Your way: {self.way}. " if self.way else ""
        return f"{where}{self.solved} of {self.exercises} exercises solved. {self.next}"

    @property
    def notes(self) -> list[str]:
        """What else can be shown, and the best plans."""
        names = listed([repr(way) for way in self.ways], "or")
        other = 'lab.progress(way="all") shows all lessons.' if self.way else f"lab.progress(way=…) takes {names}."
        return [f'lab.progress("02") lists the exercises of lesson 02. {other}', *_planned(self.plans)]

    def __repr__(self) -> str:
        wide = max((len(r.says) for r in self.rows), default=0)
        lines = ["  ".join([f"{r.says:<{wide}}", *r.counts, *filter(None, [r.place])]) for r in self.rows]
        return "\n".join([self.caption, *lines, *self.notes])

    def _repr_html_(self) -> str:
        rows = []
        for r in self.rows:
            name = f'<a href="{escape(r.link)}">{escape(r.says)}</a>'
            solved, predicted = r.counts
            place = [cell(r.place.replace(" ", "&nbsp;"), "here")] * bool(self.way)
            rows.append(row(name, [cell(solved, "solved"), cell(predicted, "predicted"), *place]))
        names = ["stop" if self.way else "lesson", "exercises", "predictions", *["place"] * bool(self.way)]
        return table("progress", _html(self.caption), names, rows) + _below(self.notes)


class ProgressTable:
    """The exercises of a lesson in their order; `solved` counts those that are, `next` says what comes next.

    `predictions` says of each of the lesson's whether its first answer was right; None where there is none yet.
    `best` has, by name, the least that a right solution of the learner's took, as `grading.score` keeps it; `plans`, by
    job, the least that a plan took, in times of the best one's time.
    """

    def __init__(
        self,
        exercises: Sequence[Exercise],
        states: Mapping[str, str],
        predictions: Sequence[bool | None] = (),
        best: Mapping[str, Any] | None = None,
        plans: Mapping[str, float] | None = None,
        next_: str = "",
    ) -> None:
        shown = {e.name for e in exercises}
        self.best = {name: in_short(figures) for name, figures in (best or {}).items() if name in shown}
        self.predictions, self.plans = list(predictions), dict(plans or {})
        self.exercises = list(exercises)
        self.states = {e.name: states.get(e.name, "not attempted") for e in exercises}
        self.solved = sum(state == "solved" for state in self.states.values())
        self.next = next_

    @property
    def caption(self) -> str:
        """The learner's progress in short: "2 of 6 exercises solved. Next: ring_shift, in lesson 02."."""
        return f"{self.solved} of {len(self.exercises)} exercises solved. {self.next}".rstrip()

    @property
    def notes(self) -> list[str]:
        """A line on predictions once any was answered, "Predictions: 3 right of 5 answered, 7 in all"; one on plans."""
        given, missing = self.predictions, self.predictions.count(None)
        told = f"Predictions: {given.count(True)} right of {len(given) - missing} answered, {len(given)} in all"
        return [*[told] * (missing < len(given)), *_planned(self.plans)]

    def __repr__(self) -> str:
        wide = max((len(e.name) for e in self.exercises), default=0)
        lines = [
            "  ".join(filter(None, [e.lesson, f"{e.name:<{wide}}", STATES[self.states[e.name]], self.best.get(e.name)]))
            for e in self.exercises
        ]
        return "\n".join([self.caption, *lines, *self.notes])

    def _repr_html_(self) -> str:
        rows = []
        for e in self.exercises:
            state = SHORT[self.states[e.name]] + (
                " ← next" if self.next.startswith((f"Next: {e.name},", f"Next on this page: {e.name}.")) else ""
            )
            level = f"{'●' * e.difficulty}{'○' * (3 - e.difficulty)}"
            name = f"<code>{e.name}</code><br>{escape(e.title)}"
            facts = {"difficulty": level, "minutes": f"{e.minutes} min", "state": state}
            cells = [cell(name, "name"), *(cell(said.replace(" ", "&nbsp;"), kind) for kind, said in facts.items())]
            best = [cell(self.best.get(e.name, ""), "best")] if self.best else []
            rows.append(row(e.lesson, [*cells, *best]))
        names = ["lesson", "exercise", "difficulty", "time", "state", *["your best"] * bool(self.best)]
        return table("progress", _html(self.caption), names, rows) + _below(self.notes)


def _html(caption: str) -> str:
    return markdown.html(caption).removeprefix("<p>").removesuffix("</p>\n")


def _planned(plans: Mapping[str, float]) -> list[str]:
    """Return a line, once any job was planned: "Plans: 66B in 1.08 times the best plan's time"."""
    each = [f"{job} in {ratio:.2f}" for job, ratio in plans.items()]
    return [f"Plans: {listed(each)} times the best plan's time"] if each else []


def _below(notes: Sequence[str]) -> str:
    return f"<p>{'<br>'.join(escape(line, quote=False) for line in notes)}</p>" if notes else ""
