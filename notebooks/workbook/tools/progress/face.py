"""Gather how the learner stands, for `lab.progress`, from what is kept and from what the lessons hold."""

from __future__ import annotations

from typing import Any

from labkit.content import exercises, predictions
from labkit.faces import progress as kept
from labkit.floor.errors import LabError
from labkit.floor.words import listed
from workbook.tools.progress.table import LessonRow, LessonsTable, ProgressTable
from workbook.tools.progress.ways import Stop, lessons, ways

Known = dict[str, dict[str, Any]]  # what is kept of exercises, or of predictions, by name
PLANS = "15c"  # the lesson of the Planner, which keeps the best plans


def progress(lab: Any, lesson: str | int | None = None, *, way: str | None = None) -> LessonsTable | ProgressTable:
    """Show how you stand: a line per lesson, or the exercises of one lesson.

    >>> lab.progress()                     # a line per lesson
    >>> lab.progress("06")                 # the exercises of lesson 06
    >>> lab.progress(way="half a day")     # choose a way through the workbook: it shows your place on it from now on

    `way="all"` shows all lessons again. Raises `LabError` for a lesson without exercises, and for an unknown way.
    """
    if way is not None:
        _choose(way)
    name, facts, answers = kept.way(), kept.read(), kept.predicted()  # each reads files: once
    stops = ways().get(name, [])
    here = _here(stops, facts, answers)
    if lesson is not None:
        number = f"{lesson:02}" if isinstance(lesson, int) else lesson
        return _exercises(number, name, stops, here, facts, answers)
    rows = [_row(stop, at == here, facts, answers) for at, stop in enumerate(stops or lessons())]
    return LessonsTable(rows, kept.next_open(list(exercises.every())), name, list(ways()), kept.planned())


def _choose(way: str) -> None:
    known = ways()
    chosen = str(way).strip().lower()
    if chosen not in (*known, "all"):
        names = listed([repr(name) for name in known], "or")
        raise LabError(f"There is no way {way!r} through the workbook. Choose {names}; 'all' shows every lesson.")
    kept.choose_way(chosen if chosen in known else "")


def _here(stops: list[Stop], facts: Known, answers: Known) -> int:
    """Return the place of the last stop in whose lesson anything was done; 0 before anything was."""
    done = {e.lesson for name, e in exercises.every().items() if name in facts}
    done |= {p.lesson for name, p in predictions.every().items() if name in answers}
    return max((at for at, stop in enumerate(stops) if stop.lesson in done), default=0)


def _row(stop: Stop, here: bool, facts: Known, answers: Known) -> LessonRow:
    mine = [e.name for e in exercises.every().values() if e.lesson == stop.lesson]
    asked = [p.name for p in predictions.every().values() if p.lesson == stop.lesson]
    states = [facts.get(name, {}).get("state") for name in mine]
    answered = [answers[name].get("right") for name in asked if name in answers]
    return LessonRow(
        stop.says, stop.link, len(mine), states.count("solved"), len(asked), len(answered), answered.count(True), here
    )


def _exercises(lesson: str, way: str, stops: list[Stop], here: int, facts: Known, answers: Known) -> ProgressTable:
    chosen = [e for e in exercises.every().values() if e.lesson == lesson]
    if not chosen:
        known = ", ".join(sorted({e.lesson for e in exercises.every().values()}))
        raise LabError(f"There are no exercises in lesson {lesson!r}. Choose one of {known}.")
    asked = [p.name for p in predictions.every().values() if p.lesson == lesson]
    at = max((at for at, stop in enumerate(stops) if stop.lesson == lesson), default=here)
    onward = stops[at + 1] if at + 1 < len(stops) else None
    return ProgressTable(
        chosen,
        {name: known.get("state", "") for name, known in facts.items()},
        [answers[name].get("right") if name in answers else None for name in asked],
        {name: known["best"] for name, known in facts.items() if "best" in known},
        kept.planned() if lesson == PLANS else {},
        kept.next_open([e.name for e in chosen]),
        (way, onward) if way else None,
    )
