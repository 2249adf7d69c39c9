"""Run a whole lesson's code cells on the ranks of a test, the workbook's functions in place of the stubs."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import nbformat

import labkit
from labkit import exercises

NOTEBOOKS = Path(__file__).resolve().parent.parent.parent / "notebooks"
NOT_HERE = ("lab = start(", "lab.stop(", "lab.exercise(", "lab.check(", "lab.progress(", "lab.use(")


def run_cells(lab: labkit.Lab, lesson: str) -> tuple[str, dict[str, Any]]:
    """All that the cells print, in their order, and the variables that the notebook has in the end.

    A cell whose first line is no `%%px` runs in the notebook's own process, as in the kernel; questions are asked, and
    nobody answers.
    """
    (path,) = NOTEBOOKS.glob(f"{lesson}-*.ipynb")
    mine = {e.stub: e for e in exercises.every().values() if e.lesson == lesson}
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert set(mine) < set(cells)
    used = [source for source in cells if source.startswith("lab.use(")]
    space: dict[str, Any] = {"lab": lab, "Predict": labkit.Predict}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for source in cells:
            if source in used or source in mine:  # an exercise at the end may be used before it is written
                name = mine[source].name if source in mine else source.split('"')[1]
                lab.run(exercises.find(name).answer.removeprefix("%%px\n"))
            elif source.startswith(("%%px\n", "%%flow ")):
                lab.run(source.partition("\n")[2])  # prints, as in a notebook
            elif not any(source.startswith(start) or f"\n{start}" in source for start in NOT_HERE):
                exec(source, space)
    return printed.getvalue(), space
