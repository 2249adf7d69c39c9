"""`python -m labkit grade`: run the checks of the exercises in learners' copies, outside their notebooks."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.commands import reports
from labkit.commands.grader import Grader
from labkit.content import exercises
from labkit.floor import files, time_limits, words
from labkit.floor.errors import LabError
from labkit.grading.graded import UNGRADED, leaders, names

SKIPPED = {".ipynb_checkpoints", "my-work"}  # folders that hold no copies

ABOUT = """\
Run the checks of the exercises in learners' notebooks, as lab.check does, and report who has solved what.

It runs the learners' code with your rights. Use it in a container without network, with limits on memory and processes.
A learner who means to can also deceive the grader from there: look at a solution before much depends on it.
"""
HOW = """\
what is graded:
  Of a copy of a lesson, all of its exercises; of a notebook with exercises of several lessons, those that its cells
  name. With --exercises these and no others.
  A function is taken from the last cell that defines it at its top level, with %%px or without. Beside it, the ranks
  get the imports, functions, classes and constants of the notebook's other %%px cells. Nothing else of it runs, but for
  the function's own cell where that makes variables. What the notebook shows as outputs counts for nothing.
  Each copy gets four ranks of its own, in an empty folder. Nobody's progress is read or written.

points:
  1 for an exercise whose result is right, also where it costs more than its card allows. 0 for all others: wrong, a
  deadlock, right but with a call that the card forbids or not as it asks, not attempted.

time:
  A function that has not ended after --timeout is too slow, and the next one is graded. What has not begun when
  --timeout-all is over is not graded.

exit status:
  0 where everything was graded, right or wrong; 1 where something was not, or a notebook cannot be read.

examples:
  python -m labkit grade 04-everyone.ipynb
  python -m labkit grade handed-in/ --junit grades.xml --leaderboard
  python -m labkit grade submission/ --exercises sharded_step,repair_mean --gradescope results/results.json
"""


def main(arguments: Sequence[str]) -> int:
    """Grade what the command line names, print what was found, write the reports."""
    parser = argparse.ArgumentParser(
        "python -m labkit grade", description=ABOUT, epilog=HOW, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK", help="a notebook, or a folder of them")
    parser.add_argument("--exercises", metavar="NAME,…", help="grade these")
    seconds: dict[str, Any] = {"type": float, "metavar": "SECONDS"}
    limit = time_limits.CHECK
    parser.add_argument("--timeout", **seconds, default=limit, help="for each exercise (default: %(default)g)")
    parser.add_argument("--timeout-all", **seconds, default=float("inf"), help="for all of them (default: none)")
    parser.add_argument("--exam", action="store_true", help="tell right or wrong, and not what is wrong")
    parser.add_argument("--leaderboard", action="store_true", help="tell who has the fewest bytes, steps, least memory")
    for name, (what, _) in reports.FORMATS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {what}")
    given = parser.parse_args(arguments)
    try:
        return _grade(given)
    except OSError as error:
        raise LabError(f"{error.filename} cannot be written ({error.strerror}). Name another file.") from error


def _grade(given: argparse.Namespace) -> int:
    chosen = [exercises.find(name.strip()) for name in given.exercises.split(",")] if given.exercises else None
    paths = _notebooks(given.notebooks)
    written = {name: path for name in reports.FORMATS if (path := getattr(given, name))}
    for name in written:
        reports.FORMATS[name][1]([], [], os.environ)  # says now what it lacks, and not when all is graded
    grader = Grader(given.timeout, time.monotonic() + given.timeout_all, given.exam)
    copies = []
    for name, path in zip(names(paths), paths, strict=True):
        copies.append(grader.copy(name, path, chosen))
        print(reports.detail(copies[-1]), flush=True)
    best = leaders(copies) if given.leaderboard else []
    if len(copies) > 1:
        print(reports.summary(copies))
    if given.leaderboard:
        print(reports.leaderboard(best))
    for name, path in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, reports.FORMATS[name][1](copies, best, os.environ))
    return int(any(copy.note or any(e.state == UNGRADED for e in copy.exercises) for copy in copies))


def _notebooks(given: Sequence[Path]) -> list[Path]:
    """Return the notebooks that are meant, those of a folder in the order of their names."""
    found: list[Path] = []
    for path in given:
        below = sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]
        found += [p.resolve() for p in below if not SKIPPED & set(p.relative_to(path).parts)]
    if not found:
        where = words.listed([str(path) for path in given])
        raise LabError(f"There is no notebook in {where}. Name a notebook, or a folder that holds some.")
    return list(dict.fromkeys(found))
