"""Gather how the learner stands, for `lab.progress`, from what is kept and from what the lessons hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from labkit.content import exercises, predictions
from labkit.faces import progress as kept
from labkit.faces.restore import SESSION
from labkit.floor.errors import LabError
from labkit.floor.words import listed
from workbook.tools.progress.table import LessonRow, LessonsTable, ProgressTable
from workbook.tools.progress.ways import Stop, asked, lessons, ways

Known = dict[str, dict[str, Any]]  # what is kept of exercises, or of predictions, by name
PLANS = "15c"  # the lesson of the Planner, which keeps the best plans
SOLVED = "You have solved every exercise of the workbook."
FINISHED = "You have done all that your way asks. At its end, [choose another](index.ipynb#Ways-through-the-workbook)."


def progress(lab: Any, lesson: str | int | None = None, *, way: str | None = None) -> LessonsTable | ProgressTable:
    """Show how you stand and what is next: a line per lesson, or the exercises of one lesson.

    >>> lab.progress()                     # a line per lesson
    >>> lab.progress("06")                 # the exercises of lesson 06
    >>> lab.progress(way="half a day")     # choose a way through the workbook: from now on, a line per stop of it

    A stop counts the exercises and predictions up to its end, without optional sections and *Exercises*. It is done
    when all of them are: exercises solved, predictions locked in.
    `way="all"` shows all lessons again. Raises `LabError` for a lesson without exercises, and for an unknown way.
    """
    if way is not None:
        _choose(way)
    name, facts, answers = kept.way(), kept.read(), kept.predicted()  # each reads files: once
    number = f"{lesson:02}" if isinstance(lesson, int) else lesson
    notebook = Stop("", Path(os.environ.get(SESSION, "")).stem).lesson  # the open one, where Jupyter tells it
    stops = ways().get(name, [])
    here, done = _place(stops, [number, notebook], facts, answers)
    if stops:
        next_ = _next([asked(stops[here])], facts, notebook) or _next_stop(stops, here, done)
    elif number is not None:
        next_ = _next([_of(number)], facts)
    else:
        next_ = _next(_tiers(notebook, facts), facts, notebook) or SOLVED
    if number is not None:
        return _exercises(number, next_, facts, answers)
    if stops:
        rows = [_row(s, asked(s), facts, answers, done[at], at == here) for at, s in enumerate(stops)]
    else:
        rows = [_row(s, _of(s.lesson), facts, answers) for s in lessons()]
    return LessonsTable(rows, next_, name, list(ways()), kept.planned())


def _choose(way: str) -> None:
    known = ways()
    chosen = str(way).strip().lower()
    if chosen not in (*known, "all"):
        names = listed([repr(name) for name in known], "or")
        raise LabError(f"There is no way {way!r} through the workbook. Choose {names}; 'all' shows every lesson.")
    kept.choose_way(chosen if chosen in known else "")


def _place(stops: list[Stop], at_hand: Iterable[str | None], facts: Known, answers: Known) -> tuple[int, list[bool]]:
    """Return the learner's place among the stops, a lesson at hand or the last one begun, and which stops are done.

    A stop that asks nothing is done once a later one has been reached; the last one, once the learner is there.
    """
    begun = [at for at, stop in enumerate(stops) if any(name in facts or name in answers for name in asked(stop))]
    open_ = [at for lesson in at_hand for at, stop in enumerate(stops) if stop.lesson == lesson]
    here = [*open_, max(begun, default=0)][0]
    last = max([here, *begun])
    done = {name for name, known in facts.items() if known.get("state") == "solved"} | answers.keys()
    return here, [
        done.issuperset(asked(stop)) if asked(stop) else at < last or at == here == len(stops) - 1
        for at, stop in enumerate(stops)
    ]


def _next(tiers: Iterable[Sequence[str]], facts: Known, notebook: str = "") -> str:
    """Name an open exercise of the first list that has one: the first behind its last that changed, going round.

    What belongs to another lesson than the one that is open in this notebook comes after that.
    """
    for names in tiers:
        mine = [name for name in names if name in exercises.every()]
        begun = [name for name in facts if name in mine]  # in the order of their last changes
        after = mine.index(begun[-1]) + 1 if begun else 0
        for name in [*mine[after:], *mine[:after]]:
            if facts.get(name, {}).get("state") != "solved":
                lesson = exercises.find(name).lesson
                if lesson == notebook:
                    return f"Next on this page: {name}."
                goes_on = any(stop.lesson == notebook for stop in lessons())
                return f"{'After this lesson' if goes_on else 'Next'}: {name}, in lesson {lesson}."
    return ""


def _tiers(notebook: str, facts: Known) -> list[list[str]]:
    """Return what to do first: what lies on the way through the lesson at hand, main lessons, all lessons; the rest."""
    changed = [exercises.find(name).lesson for name in facts if name in exercises.every()]
    way = {stop.lesson: asked(stop) for stop in lessons()}
    here = notebook if notebook in way else changed[-1] if changed else ""
    main = [name for lesson, names in way.items() if lesson.isdigit() or lesson.isalpha() for name in names]
    return [way.get(here, []), main, [name for names in way.values() for name in names], list(exercises.every())]


def _next_stop(stops: list[Stop], here: int, done: list[bool]) -> str:
    for at in [*range(here + 1, len(stops)), *range(here + 1)]:
        if not done[at]:
            return f"After this stop: [{stops[at].says}]({stops[at].link})."
    return FINISHED


def _of(lesson: str) -> list[str]:
    """Return all exercises and predictions of a lesson."""
    own = [name for name, e in exercises.every().items() if e.lesson == lesson]
    return own + [name for name, p in predictions.every().items() if p.lesson == lesson]


def _row(
    stop: Stop, names: Sequence[str], facts: Known, answers: Known, done: bool = False, here: bool = False
) -> LessonRow:
    states = [facts.get(name, {}).get("state") for name in names if name in exercises.every()]
    asks = [name for name in names if name in predictions.every()]
    right = [answers[name].get("right") for name in asks if name in answers]
    counts = len(states), states.count("solved"), len(asks), len(right), right.count(True)
    return LessonRow(stop.says, stop.link, *counts, done, here)


def _exercises(lesson: str, next_: str, facts: Known, answers: Known) -> ProgressTable:
    chosen = [e for e in exercises.every().values() if e.lesson == lesson]
    if not chosen:
        known = ", ".join(sorted({e.lesson for e in exercises.every().values()}))
        raise LabError(f"There are no exercises in lesson {lesson!r}. Choose one of {known}.")
    asks = [p.name for p in predictions.every().values() if p.lesson == lesson]
    return ProgressTable(
        chosen,
        {name: known.get("state", "") for name, known in facts.items()},
        [answers[name].get("right") if name in answers else None for name in asks],
        {name: known["best"] for name, known in facts.items() if "best" in known},
        kept.planned() if lesson == PLANS else {},
        next_,
    )
