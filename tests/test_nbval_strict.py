"""A wrong output in a notebook turns the check red: nbval runs with the very flags `make test` gives it."""

from __future__ import annotations

import copy
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parent.parent


def flags() -> list[str]:
    """The Makefile's nbval flags, its paths made absolute."""
    (line,) = re.findall(r"^NBVAL = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return shlex.split(line.replace("=.ci/", f"={ROOT}/.ci/"))


def red_cells(folder: Path) -> dict[str, list[str]]:
    """Check every notebook in a folder in one run: file name → the cells in which nbval found a fault."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    report = folder / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "nbval_notes",
        f"--junit-xml={report}",
        *flags(),
        ".",
    ]
    quiet = {**os.environ, "LABKIT_QUIET": "1", "LABKIT_PROGRESS": str(folder / "progress")}  # nothing solved yet
    quiet["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / ".ci")])  # as pyproject.toml has it
    ran = subprocess.run(command, cwd=folder, env=quiet, capture_output=True, text=True)
    assert report.exists(), ran.stdout + ran.stderr
    red: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        cells = red.setdefault(case.attrib["classname"].split(".")[0], [])
        if case.find("failure") is not None or case.find("error") is not None:
            cells.append(case.attrib["name"])
    return red


SVG = '<img alt="one dot" src="data:image/svg+xml;base64,PHN2Zy8+">'
RIGHT = [  # a cell with each kind of output that a lesson has
    new_code_cell("print([1, 2, 3])", outputs=[new_output("stream", name="stdout", text="[1, 2, 3]\n")]),
    new_code_cell("{'busbw': 1.5}", outputs=[new_output("execute_result", {"text/plain": "{'busbw': 1.5}"})]),
    new_code_cell(
        f"from IPython.display import HTML\nHTML({SVG!r})",
        outputs=[new_output("execute_result", {"text/html": SVG, "text/plain": "<IPython.core.display.HTML object>"})],
    ),
    new_code_cell(
        "1 / 0",
        metadata={"tags": ["raises-exception"]},
        outputs=[new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])],
    ),
    new_code_cell(
        "print('rank 0: pid=123   memory=61 MiB')",
        outputs=[new_output("stream", name="stdout", text="rank 0: pid=9 memory=7.5 GiB\n")],
    ),
    new_code_cell("quiet = True"),
    new_code_cell(
        "from labkit import CellError\nraise CellError('rank 1 died', notes=['the others keep their variables'])",
        metadata={"tags": ["raises-exception"]},
        outputs=[
            new_output(
                "error",
                ename="CellError",
                evalue="rank 1 died",
                traceback=["CellError: rank 1 died\n  · the others keep their variables"],
            )
        ],
    ),
]


@pytest.mark.slow
def test_each_kind_of_wrong_output_turns_its_cell_red_and_no_other(tmp_path: Path):
    def wrong(cell: int, **fields: object) -> nbformat.NotebookNode:
        changed = copy.deepcopy(RIGHT[cell])
        changed.outputs[0].update(fields)
        return changed

    lost, invented, unexpected = (copy.deepcopy(RIGHT[i]) for i in (0, 5, 3))
    lost.outputs = []
    invented.outputs = [new_output("stream", name="stdout", text="something\n")]
    unexpected.metadata = {}
    wrongs = [
        wrong(0, text="[1, 2, 4]\n"),
        wrong(1, data={"text/plain": "{'busbw': 1.6}"}),
        wrong(2, data={**RIGHT[2].outputs[0].data, "text/html": "<img alt='two dots'>"}),
        wrong(3, evalue="division by one"),
        wrong(4, text="rank 1: pid=9 memory=7.5 GiB\n"),
        lost,
        invented,
        unexpected,
        wrong(6, traceback=["CellError: rank 1 died\n  · all keep their variables"]),
        wrong(6, traceback=["CellError: rank 1 died"]),
    ]
    cells = [cell for pair in itertools.zip_longest(wrongs, RIGHT) for cell in pair if cell is not None]
    for number, cell in enumerate(cells, start=1):
        cell.update(execution_count=number, id=f"cell-{number}")
    nbformat.write(new_notebook(cells=cells), tmp_path / "both.ipynb")
    assert red_cells(tmp_path) == {"both": [f"Cell {cells.index(cell)}" for cell in wrongs]}


@pytest.mark.live
@pytest.mark.pinned
def test_one_wrong_character_in_a_lesson_turns_its_cell_red_and_no_other(tmp_path: Path):
    nb = nbformat.read(ROOT / "notebooks" / "00-start-here.ipynb", as_version=4)
    wrong = [
        cell
        for cell in nb.cells
        if cell.cell_type == "code" and "nbval-ignore-output" not in cell.metadata.get("tags", ())
        if any(output.output_type == "stream" for output in cell.outputs)
    ][-1]
    nb.cells = [*nb.cells[: nb.cells.index(wrong) + 1], nb.cells[-1]]  # which stops the lab
    output = wrong.outputs[-1]
    output.text = output.text[:-2] + "~\n"
    nbformat.write(nb, tmp_path / "lesson.ipynb")
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    assert red_cells(tmp_path) == {"lesson": [f"Cell {code.index(wrong)}"]}
