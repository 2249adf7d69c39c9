"""Copies of lessons for hosted notebooks: the cell that installs stands first, and the rest is the lesson."""

from __future__ import annotations

import re
from pathlib import Path

import hosted_copies
import nbformat

from labkit import content

ROOT = Path(__file__).resolve().parent.parent


def test_a_copy_is_the_lesson_without_outputs_behind_the_cell_that_installs(tmp_path):
    hosted_copies.main(str(tmp_path), "https://example.org/workbook.git")
    copies = sorted(tmp_path.iterdir())
    assert [copy.name[:2] for copy in copies] == list(hosted_copies.LESSONS)
    for copy in copies:
        nb = nbformat.read(copy, as_version=4)
        nbformat.validate(nb)
        lesson = nbformat.read(ROOT / "notebooks" / copy.name, as_version=4)
        assert 'git clone -q --depth 1 "https://example.org/workbook.git"' in nb.cells[0].source
        there = "](https://example.org/workbook/blob/HEAD/notebooks/"
        assert [cell.source.replace(there, "](") for cell in nb.cells[1:]] == [cell.source for cell in lesson.cells]
        assert not [cell.source for cell in nb.cells if re.search(r"\]\((?!https://|#)\S+\.ipynb", cell.source)]
        assert not any(cell.get("outputs") for cell in nb.cells)


def test_the_lessons_are_those_that_make_runs_on_hosted_packages():
    makefile = (ROOT / "Makefile").read_text()
    (pattern,) = re.findall(r"\$\(or \$\(NOTEBOOK\),(notebooks/\S+) (?=notebooks/09)", makefile)
    names = [path.name[:2] for path in sorted(ROOT.glob(pattern))]
    (solved,) = re.findall(r"^SOLVED = (.*)$", makefile, re.MULTILINE)
    assert (*names, "09") == tuple(re.findall(r"lesson(\d+)-", solved)) == hosted_copies.LESSONS


def test_the_page_about_hosts_shows_this_cell():
    page = (ROOT / "book/hosted.md").read_text()
    assert f"```python\n{hosted_copies.FIRST_CELL}\n```\n" in page


def test_hosts_open_what_lies_on_github_and_only_lessons_that_have_a_copy():
    links = hosted_copies.opened("https://github.com/ann/workbook", "00-start-here.ipynb")
    assert {name: link.rpartition("github")[2] for name, link in links.items()} == {
        "Colab": "/ann/workbook/blob/hosted/00-start-here.ipynb",
        "Kaggle": ".com/ann/workbook/blob/hosted/00-start-here.ipynb",
    }
    assert hosted_copies.opened("https://github.com/ann/workbook", "06-build-all-reduce.ipynb") == {}
    assert hosted_copies.opened("https://example.org/ann/workbook", "00-start-here.ipynb") == {}


def test_the_clone_is_not_called_as_the_lessons_package_is():
    """Python would find the folder in the package's place on the ranks, which start in the notebook's folder."""
    (name,) = re.findall(r"git clone .* (\S+)\n", hosted_copies.FIRST_CELL)
    assert name != content.PACKAGE
