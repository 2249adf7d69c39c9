"""An exercise in JupyterLab: the card, a wrong attempt drawn, the solution in a new cell, right, and the progress."""

from __future__ import annotations

import browse
import pytest
from playwright.sync_api import expect

from labkit import exercises

pytestmark = pytest.mark.browser

RING = exercises.find("ring_shift")
START = "from labkit import start\n\nlab = start(timeout=60)"
WRONG = "%%px\ndef ring_shift(x):\n    return x"
CHECK = 'lab.check("ring_shift")'


def test_an_exercise_is_read_tried_solved_and_remembered(opened, lab_server, shots, tmp_path):
    place = f"import os\n\nos.environ['LABKIT_PROGRESS'] = {str(tmp_path)!r}"
    cells = [
        place,
        START,
        'lab.exercise("ring_shift")',
        RING.stub,
        CHECK,
        WRONG,
        CHECK,
        'lab.exercise("ring_shift").solution()',
    ]
    nb: browse.Notebook = opened(lab_server.write("exercise.ipynb", cells))
    nb.run_cell(0)
    nb.run_cell(1)
    card = nb.run_cell(2)
    expect(card.get_by_text(f"Exercise: {RING.title}")).to_be_visible()
    expect(card.locator("img[alt^='An example of ring_shift']")).to_be_visible()
    nb.run_cell(3)
    expect(nb.run_cell(4).get_by_text("ring_shift: not attempted yet")).to_be_visible()
    nb.run_cell(5)
    verdict = nb.run_cell(6)
    expect(verdict.get_by_text("ring_shift: wrong")).to_be_visible()
    expect(verdict.locator("img[alt^='What ring_shift does with 2 ranks']")).to_be_visible()
    nb.page.screenshot(path=shots / "exercise-wrong.png")
    nb.run_cell(7)
    expect(nb.cells).to_have_count(len(cells) + 1)
    expect(nb.cells.nth(len(cells))).to_contain_text("def ring_shift(x):")
    nb.run_cell(len(cells))
    expect(nb.run_cell(6).get_by_text("ring_shift: right on")).to_be_visible()
    expect(nb.run_cell(2).get_by_text("● solved")).to_be_visible()
    nb.page.screenshot(path=shots / "exercise-solved.png")
    assert nb.errors() == []
