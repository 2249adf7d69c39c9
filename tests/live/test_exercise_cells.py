"""A lesson's exercise cells with the stubs replaced by the solutions, in a real kernel: every check says right."""

from __future__ import annotations

from pathlib import Path

from labkit.content import exercises
from tests.live.lesson_cells import code
from tests.live.notebook import Notebook


def test_a_lesson_whose_exercises_are_solved_says_so(tmp_path: Path):
    lesson = "00"
    answers = {e.stub: e.answer for e in exercises.every().values() if e.lesson == lesson}
    names = [e.name for e in exercises.every().values() if e.lesson == lesson]
    needed = ("lab = start(", "lab.progress(")  # the other cells, without an exercise, nbval runs
    cells = [c for c in code(lesson) if "exercise" in c.metadata.get("tags", ()) or any(n in c.source for n in needed)]
    right = {}
    with Notebook(LABKIT_PROGRESS=str(tmp_path), LABKIT_QUIET="1") as notebook:
        for cell in cells:
            told = notebook.run(answers.get(cell.source, cell.source))
            assert told.status == "ok" or "raises-exception" in cell.metadata.get("tags", ()), told.traceback
            for name in names:
                if cell.source == f'lab.check("{name}")':
                    right[name] = told.result.splitlines()[0]
                if cell.source == f'lab.exercise("{name}")':
                    assert "not attempted yet" in told.result
            if cell.source.startswith("lab.progress("):
                table = told.result
        assert list(right) == names
        for name, head in right.items():
            assert head.startswith(f"✓ {name}: right on "), head
        (mine,) = [line for line in table.splitlines() if line.startswith(f"{lesson} ")]
        assert f"{len(names)} of {len(names)} solved" in mine
