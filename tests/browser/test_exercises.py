"""An exercise in JupyterLab: the card, a wrong attempt drawn, the solution in a new cell, right, and the progress."""

from __future__ import annotations

import browse
import pytest
from playwright.sync_api import expect

from labkit.content import exercises

pytestmark = pytest.mark.browser

HELLO = exercises.find("hello_sum")
START = "from labkit import start\n\nlab = start(timeout=60)"
WRONG = "%%px\ndef hello_sum(x):\n    return x"
CHECK = 'lab.check("hello_sum")'


def test_an_exercise_is_read_tried_solved_and_remembered(opened, lab_server, shoot, tmp_path):
    place = f"import os\n\nos.environ['LABKIT_PROGRESS'] = {str(tmp_path)!r}"
    cells = [
        place,
        START,
        'lab.exercise("hello_sum")',
        HELLO.stub,
        CHECK,
        WRONG,
        CHECK,
        'lab.exercise("hello_sum").solution()',
    ]
    nb: browse.Notebook = opened(lab_server.write("exercise.ipynb", cells))
    nb.run_cell(0)
    nb.run_cell(1)
    card = nb.run_cell(2)
    expect(card.get_by_text(f"Exercise: {HELLO.title}")).to_be_visible()
    expect(card.locator("img[alt^='An example of hello_sum']")).to_be_visible()
    nb.run_cell(3)
    expect(nb.run_cell(4).get_by_text("hello_sum: not attempted yet")).to_be_visible()
    nb.run_cell(5)
    verdict = nb.run_cell(6)
    expect(verdict.get_by_text("hello_sum: wrong")).to_be_visible()
    expect(verdict.locator("img[alt^='What hello_sum does with 2 ranks']")).to_be_visible()
    shoot(nb, "exercise, wrong")
    nb.run_cell(7)
    expect(nb.cells).to_have_count(len(cells) + 1)
    expect(nb.cells.nth(len(cells))).to_contain_text("def hello_sum(x):")
    nb.run_cell(len(cells))
    expect(nb.run_cell(6).get_by_text("hello_sum: right on")).to_be_visible()
    expect(nb.run_cell(2).get_by_text("● solved")).to_be_visible()
    shoot(nb, "exercise, solved")
    assert nb.errors() == []
