"""A lesson that is prepared for nbgrader has its metadata in every exercise's cells, and is graded here as well."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from labkit.__main__ import main
from labkit.commands import release
from labkit.content import exercises
from labkit.faces.my_notebooks import WORKBOOK, without_outputs
from labkit.grading import submission

KNOWN = exercises.every()
# nbgrader's schema 3 asks for these of a cell, and for points where it is a grade.
KEYS = {"schema_version", "grade_id", "cell_type", "grade", "locked", "solution", "task"}


def marked(cells: list[dict]) -> list[dict]:
    return [cell["metadata"]["nbgrader"] for cell in cells if "nbgrader" in cell["metadata"]]


@pytest.mark.parametrize("file", sorted(WORKBOOK.glob("*.ipynb")), ids=lambda file: file.stem)
def test_every_exercise_has_a_locked_card_a_solution_and_a_check_worth_a_point(file: Path):
    notebook = json.loads(without_outputs(file.read_text(encoding="utf-8")))
    asked = [e.name for e in submission.read(file).exercises(KNOWN)]
    assert release.mark(notebook, KNOWN) == len(asked)
    told = marked(notebook["cells"])
    assert all(set(its) - {"points"} == KEYS and its["schema_version"] == 3 for its in told)
    assert all(("points" in its) == its["grade"] for its in told)
    assert max(Counter(its["grade_id"] for its in told).values(), default=1) == 1
    assert {its["grade_id"] for its in told if its["solution"] and not its["locked"]} == set(asked)
    assert {its["grade_id"] for its in told if its["grade"] and its["points"] == 1} == {f"check-{n}" for n in asked}


def test_it_is_written_without_outputs_and_graded_as_the_lesson_is(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main(["release", "04", str(tmp_path / "source" / "lesson-04")]) == 0
    assert capsys.readouterr().out.endswith("10 exercises, a point each.\n")
    path = tmp_path / "source" / "lesson-04" / "04-everyone.ipynb"
    assert not any(cell.get("outputs") for cell in json.loads(path.read_text())["cells"])
    read = submission.read(path)
    assert len(read.exercises(KNOWN)) == 10
    assert read.defining("repair_mean").is_of(KNOWN["repair_mean"].stub)


def test_a_check_shows_its_verdict_and_raises_where_it_is_worth_no_point(tmp_path: Path):
    cells = [
        {"cell_type": "code", "metadata": {}, "source": source}
        for source in ('lab.exercise("repair_mean")', "%%px\ndef repair_mean(x): ...", 'lab.check("repair_mean")')
    ]
    assert release.mark({"cells": cells}, KNOWN) == 1
    assert cells[2]["source"] == 'display(verdict := lab.check("repair_mean"))\nassert verdict.passed'


@pytest.mark.parametrize("lesson", ["99", "index"])
def test_what_has_no_exercises_is_refused(tmp_path: Path, lesson: str, capsys: pytest.CaptureFixture):
    assert main(["release", lesson, str(tmp_path / "new")]) == 1
    assert "Choose" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
