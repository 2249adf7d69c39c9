"""A course.toml switches off hints, solutions and diagnoses, says so where one asks, and is never misread."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.content import exercises
from labkit.faces import course, progress, task
from labkit.faces.course import Course
from labkit.floor.errors import LabError
from labkit.grading.finding import Finding
from labkit.show.verdict import Verdict

SENDS = "ring_reduce_scatter"  # its solution sends: there is something to play


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner's folder."""
    monkeypatch.setattr(progress, "HERE", tmp_path)
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "my-work"))
    monkeypatch.delenv(course.WHERE, raising=False)
    return tmp_path


def test_without_a_file_everything_is_allowed(here: Path):
    assert course.read() == Course(solutions=True, hints=True, diagnosis=True)


def test_what_is_not_named_stays_on(here: Path):
    (here / "course.toml").write_text("hints = false\n")
    assert course.read() == Course(hints=False)


def test_the_environment_names_a_file_elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch):
    (here / "course.toml").write_text("hints = false\n")
    (here / "exam.toml").write_text("diagnosis = false\n")
    monkeypatch.setenv("LABKIT_COURSE", str(here / "exam.toml"))
    assert course.read() == Course(diagnosis=False)


@pytest.mark.parametrize("text", ["solution = false", "hints = 0", "hints", "[course]\nhints = false"])
def test_a_file_with_a_slip_allows_nothing_by_mistake(here: Path, text: str):
    (here / "course.toml").write_text(text)
    with pytest.raises(LabError, match="who runs this course"):
        task.Task(None, SENDS).hint()


def test_a_file_that_the_environment_names_must_be_there(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LABKIT_COURSE", str(here / "none.toml"))
    with pytest.raises(LabError, match=r"There is no .*none\.toml"):
        course.read()


def said(it: task.Task) -> str:
    """All that an exercise says before and after attempts."""
    after = [
        task._next(exercises.find(SENDS), state, {"hints": hints}) for state in ("wrong", "raises") for hints in (0, 9)
    ]
    return "\n".join([repr(it), repr(it.hint()), repr(it.hint()), repr(it.hint()), *after])


def test_what_is_switched_off_is_named_nowhere_and_says_so_when_it_is_asked_for(here: Path):
    it = task.Task(None, SENDS)
    assert all(f".{what}()" in said(it) for what in ("hint", "solution", "steps"))
    (here / "course.toml").write_text("solutions = false")
    assert ".hint()" in said(it)
    assert ".solution()" not in said(it)
    assert ".steps()" not in said(it)
    progress.change(SENDS, checks=1)
    assert repr(it.solution()) == "This course has switched the workbook's solutions off."
    assert "switched the workbook's solutions" in repr(it.steps())
    (here / "course.toml").write_text("hints = false")
    assert repr(it.hint()) == "This course has switched hints off."
    assert ".hint()" not in said(it)
    assert ".solution()" in said(it)


def test_the_afterword_goes_with_the_hints():
    exercise = exercises.find(SENDS)
    right = Finding("right", right=12)
    assert exercise.after
    assert exercise.after in repr(Verdict(exercise, right))
    assert exercise.after not in repr(Verdict(exercise, right, afterword=False))
