"""`python -m labkit release`: prepare a lesson for nbgrader, with its metadata in the cells of the exercises."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from labkit.content import exercises
from labkit.faces.my_notebooks import WORKBOOK, find, without_outputs
from labkit.floor import files
from labkit.floor.errors import LabError
from labkit.floor.words import count
from labkit.grading.submission import CALL

ABOUT = """\
Write a lesson's notebook for nbgrader, without outputs: the card of each exercise is locked, the cell below it is the
learner's, and the check is worth a point and raises where the function is not right.
"""
HOW = """\
It is what learners begin with, so nbgrader must not clear solutions from it:

  python -m labkit release 04 source/lesson-04
  nbgrader generate_assignment lesson-04 --create --ClearSolutions.enabled=False

nbgrader autograde runs the whole notebook. python -m labkit grade takes the same notebooks and runs the checks alone.
"""
SCHEMA = 3  # of nbgrader's metadata


def main(arguments: Sequence[str]) -> int:
    """Write the notebook that the command line names."""
    parser = argparse.ArgumentParser(
        "python -m labkit release", description=ABOUT, epilog=HOW, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lesson", help="04, 04-everyone or its file")
    parser.add_argument("folder", type=Path, help="where to write it")
    given = parser.parse_args(arguments)
    name = find(given.lesson, sorted(file.name for file in WORKBOOK.glob("*.ipynb")))
    notebook = json.loads(without_outputs((WORKBOOK / name).read_text(encoding="utf-8")))
    points = mark(notebook, exercises.every())
    if not points:
        raise LabError(f"{name} has no exercises. Choose a lesson that has some.")
    try:
        given.folder.mkdir(parents=True, exist_ok=True)
        files.write(given.folder / name, json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    except OSError as error:
        raise LabError(f"{error.filename} cannot be written ({error.strerror}). Name another folder.") from error
    print(f"{given.folder / name}: {count(points, 'exercise')}, a point each.")
    return 0


def mark(notebook: dict[str, Any], known: Collection[str]) -> int:
    """Put nbgrader's metadata into the cells of each exercise, let its check raise, and return how many there are."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    points = 0
    for card, stub, check in zip(cells, cells[1:], cells[2:], strict=False):
        shows, checks = (CALL.fullmatch("".join(cell["source"]).strip()) for cell in (card, check))
        if not (shows and checks and shows[2] == checks[2] in known and (shows[1], checks[1]) == ("exercise", "check")):
            continue
        name = shows[2]
        check["source"] = f'display(verdict := lab.check("{name}"))\nassert verdict.passed'
        card["metadata"]["nbgrader"] = _metadata(f"card-{name}", locked=True)
        stub["metadata"]["nbgrader"] = _metadata(name, solution=True)
        check["metadata"]["nbgrader"] = _metadata(f"check-{name}", locked=True, grade=True) | {"points": 1}
        points += 1
    return points


def _metadata(grade_id: str, locked: bool = False, solution: bool = False, grade: bool = False) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA,
        "grade_id": grade_id,
        "cell_type": "code",
        "grade": grade,
        "locked": locked,
        "solution": solution,
        "task": False,
    }
