"""A wrong output in a notebook turns the check red: nbval runs with the very flags `make test` gives it."""

from __future__ import annotations

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


def red_files(folder: Path) -> dict[str, bool]:
    """Check every notebook in a folder in one run: file name → whether nbval found a fault in it."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    report = folder / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        f"--junit-xml={report}",
        *flags(),
        ".",
    ]
    quiet = {**os.environ, "LABKIT_QUIET": "1", "LABKIT_PROGRESS": str(folder / "progress")}  # nothing solved yet
    ran = subprocess.run(command, cwd=folder, env=quiet, capture_output=True, text=True)
    assert report.exists(), ran.stdout + ran.stderr
    red: dict[str, bool] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.attrib["classname"].split(".")[0]
        failed = case.find("failure") is not None or case.find("error") is not None
        red[name] = red.get(name, False) or failed
    return red


def plain() -> nbformat.NotebookNode:
    """A notebook with one output of each kind that a lesson has, all of them right."""
    svg = '<img alt="one dot" src="data:image/svg+xml;base64,PHN2Zy8+">'
    html = f"from IPython.display import HTML\nHTML({svg!r})"
    html_data = {"text/html": svg, "text/plain": "<IPython.core.display.HTML object>"}
    table = "print('rank 0: pid=123   memory=61 MiB')"
    return new_notebook(
        cells=[
            new_code_cell("print([1, 2, 3])", outputs=[new_output("stream", name="stdout", text="[1, 2, 3]\n")]),
            new_code_cell("{'busbw': 1.5}", outputs=[new_output("execute_result", {"text/plain": "{'busbw': 1.5}"})]),
            new_code_cell(html, outputs=[new_output("execute_result", html_data)]),
            new_code_cell(
                "1 / 0",
                metadata={"tags": ["raises-exception"]},
                outputs=[new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])],
            ),
            new_code_cell(table, outputs=[new_output("stream", name="stdout", text="rank 0: pid=9 memory=7.5 GiB\n")]),
            new_code_cell("quiet = True"),
        ]
    )


def save(nb: nbformat.NotebookNode, path: Path) -> None:
    for number, cell in enumerate((c for c in nb.cells if c.cell_type == "code"), start=1):
        cell.execution_count = number
    nbformat.write(nb, path)


@pytest.mark.slow
def test_each_kind_of_wrong_output_turns_its_notebook_red_and_only_its_own(tmp_path: Path):
    def change(name: str, cell: int, **fields: object) -> None:
        nb = plain()
        nb.cells[cell].outputs[0].update(fields)
        save(nb, tmp_path / f"{name}.ipynb")

    save(plain(), tmp_path / "right.ipynb")
    change("stream", 0, text="[1, 2, 4]\n")
    change("value", 1, data={"text/plain": "{'busbw': 1.6}"})
    change("picture", 2, data={**plain().cells[2].outputs[0].data, "text/html": "<img alt='two dots'>"})
    change("error", 3, evalue="division by one")
    change("sentence", 4, text="rank 1: pid=9 memory=7.5 GiB\n")
    nb = plain()
    nb.cells[0].outputs = []
    save(nb, tmp_path / "lost.ipynb")
    nb = plain()
    nb.cells[5].outputs = [new_output("stream", name="stdout", text="something\n")]
    save(nb, tmp_path / "invented.ipynb")
    nb = plain()
    nb.cells[3].metadata = {}
    save(nb, tmp_path / "unexpected_error.ipynb")

    red = red_files(tmp_path)
    assert red.pop("right") is False
    assert len(red) == 8
    assert all(red.values()), red


@pytest.mark.live
@pytest.mark.pinned
def test_one_wrong_character_in_a_lesson_turns_it_red(tmp_path: Path):
    lesson = sorted((ROOT / "notebooks").glob("*.ipynb"))[0]
    nb = nbformat.read(lesson, as_version=4)
    streams = [
        output
        for cell in nb.cells
        if cell.cell_type == "code" and "nbval-ignore-output" not in cell.metadata.get("tags", ())
        for output in cell.outputs
        if output.output_type == "stream"
    ]
    assert streams, f"{lesson.name} prints nothing that is compared"
    streams[-1].text = streams[-1].text[:-2] + "~\n"
    nbformat.write(nb, tmp_path / "wrong.ipynb")
    (tmp_path / "right.ipynb").write_text(lesson.read_text(encoding="utf-8"), encoding="utf-8")
    assert red_files(tmp_path) == {"right": False, "wrong": True}
