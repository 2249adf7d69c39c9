"""Every exercise is complete: text, hints, inputs whose meaning is known, clean sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from labkit import exercises
from labkit.errors import LabError
from labkit.grading import inputs, judge
from labkit.grading.exercise import Exercise
from labkit.task import wanted
from labkit.theory import collectives

ROOT = Path(__file__).resolve().parent.parent
ON_EVERY_RANK = ("torch", "dist", "rank", "world_size", "device", "comms", "tiny")

every = pytest.mark.parametrize("exercise", exercises.every().values(), ids=lambda exercise: exercise.name)


def test_there_are_25_exercises_and_some_in_every_lesson():
    found = exercises.every().values()
    assert len(found) >= 25
    assert {e.lesson for e in found} >= {f"0{k}" for k in range(8)}


@every
def test_it_says_what_to_do_how_long_and_how_hard(exercise: Exercise):
    assert exercise.title
    assert not exercise.title.endswith(".")
    assert len(exercise.statement) > 100
    assert "eturn" in exercise.statement
    assert exercise.after
    assert 3 <= exercise.minutes <= 45
    assert exercise.difficulty in (1, 2, 3)
    assert len(exercise.hints) >= 2


@every
def test_its_texts_use_only_what_the_card_shows(exercise: Exercise):
    """`code` and **bold**; single stars and links would be shown as they stand."""
    for text in (exercise.statement, exercise.after, *exercise.hints):
        plain = re.sub(r"`[^`]*`", "", text)
        assert plain.count("**") % 2 == 0
        assert "*" not in plain.replace("**", "")
        assert "`" not in plain
        assert not re.search(r"\]\(|  |^ | $", text)


@every
def test_its_inputs_have_a_meaning_for_every_number_of_ranks(exercise: Exercise):
    for n in exercise.ranks:
        cases = list(exercise.inputs(n))
        assert len(cases) >= 3
        assert [case.about for case in cases[1:] if not case.about] == []
        for case in cases:
            assert case.n == n
            judge.check_length(list(exercise.means(list(case.xs), **case.options)), n)


def test_the_solutions_are_clean_code(tmp_path: Path):
    for exercise in exercises.every().values():
        file = tmp_path / f"{exercise.name}.py"
        file.write_text(f"{exercise.given}{exercise.code.strip()}\n", encoding="utf-8")
    builtins = ", ".join(f'"{name}"' for name in ON_EVERY_RANK)
    ours = ("--no-cache", "--config", str(ROOT / "pyproject.toml"))
    for command in (
        ("check", "--config", f"builtins = [{builtins}]", "--ignore", "D1,B905"),
        ("format", "--diff"),
    ):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *command[:1], *ours, *command[1:], str(tmp_path)],
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


@every
def test_the_stub_is_a_specimen_or_leaves_out_what_is_to_be_written(exercise: Exercise):
    assert exercise.stub.startswith("%%px\n")
    functions = [n for n in ast.parse(exercise.stub[5:]).body if isinstance(n, ast.FunctionDef)]
    (function,) = [n for n in functions if n.name == exercise.name]
    assert ast.get_docstring(function)
    blanks = [n for n in ast.walk(function) if isinstance(n, ast.Expr) and ast.unparse(n) == "..."]
    if exercise.specimen:
        assert not blanks, "it runs, and goes wrong"
    elif "# yours" in exercise.solution:
        assert len(blanks) == exercise.solution.count("# yours")
        assert ast.unparse(function.body[1:]) != "...", "what stands around it is kept"
    else:
        assert len(function.body) == 2
        assert len(functions) == len(blanks) == 1
    assert "# yours" not in exercise.stub + exercise.answer
    assert "# end" not in exercise.stub + exercise.answer


def cells_of(lesson: str) -> list[nbformat.NotebookNode]:
    """The cells of a lesson, with which its notebook's name begins: 02-send-and-receive, capstone."""
    (path,) = (path for path in (ROOT / "notebooks").glob("*.ipynb") if path.stem.split("-")[0] == lesson)
    return nbformat.read(path, as_version=4).cells


@every
def test_it_stands_in_its_lesson_as_card_stub_and_check(exercise: Exercise):
    cells = cells_of(exercise.lesson)
    sources = [cell.source for cell in cells]
    at = sources.index(f'lab.exercise("{exercise.name}")')
    assert sources[at + 1] == exercise.stub
    assert sources[at + 2] == f'lab.check("{exercise.name}")'
    assert all("exercise" in cell.metadata.get("tags", ()) for cell in cells[at : at + 3])


@pytest.mark.parametrize("lesson", sorted({e.lesson for e in exercises.every().values()}))
def test_every_exercise_cell_in_a_lesson_is_one_of_ours(lesson: str):
    ours = [e for e in exercises.every().values() if e.lesson == lesson]
    cells = [cell for cell in cells_of(lesson) if "exercise" in cell.metadata.get("tags", ())]
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    assert [source for source in sources if not source.startswith("lab.use(")] == [
        *(
            source
            for exercise in ours
            for source in (f'lab.exercise("{exercise.name}")', exercise.stub, f'lab.check("{exercise.name}")')
        ),
        "lab.progress()" if lesson == "00" else f'lab.progress("{lesson}")',
    ]
    (heading,) = [cell for cell in cells if "\n## Exercises\n" in f"\n{cell.source}\n"]
    below = [cell.source for cell in cells[cells.index(heading) :]]  # those above it are written in their place
    minutes = sum(e.minutes for e in ours if f'lab.check("{e.name}")' in below)
    assert f"about {minutes} minutes" in heading.source


def test_the_lessons_page_counts_them():
    page = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    assert f"{len(exercises.every())} functions in all" in page


@pytest.mark.parametrize("means", ["reduce_scatter", "reduce_scatter_tensor", collectives.reduce_scatter])
def test_a_check_takes_what_is_meant_as_a_name_or_as_a_function(means):
    exercise = wanted("mine", means=means)
    assert exercise.means is collectives.reduce_scatter
    assert exercise.inputs is inputs.chunked
    with pytest.raises(LabError, match="Use one of broadcast"):
        wanted("mine", means="all_sum")
