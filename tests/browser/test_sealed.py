"""A sealed flow in JupyterLab: fill in tile by tile, press, see what is right, and no key that reaches the notebook."""

from __future__ import annotations

import browse
import nbformat
import pytest
from playwright.sync_api import expect

from labkit.show.flow import Flow
from labkit.show.sealed import SealedFlow
from tests.test_flow_value import SUMS

pytestmark = pytest.mark.browser

START = "from labkit import start\n\nlab = start(timeout=60)"
X = "%%px\nx = torch.arange(2.) + 10 * rank"
SHIFT = "%%flow x -> y --predict\ny = torch.empty(2)\nr = dist.isend(x, (rank + 1) % 4)\ndist.recv(y, (rank - 1) % 4)"
SHIFT += "\nr.wait();"


def test_a_page_that_nobody_trusts_folds_the_answer_away_and_tiles_are_filled_in_and_compared(
    opened, lab_server, shoot
):
    cell = nbformat.v4.new_code_cell("'never run here'", execution_count=1)
    html = SealedFlow(Flow(SUMS))._repr_html_()
    cell.outputs = [nbformat.v4.new_output("execute_result", {"text/html": html}, execution_count=1)]
    nb: browse.Notebook = opened(lab_server.write("sealed.ipynb", [cell, START, X, SHIFT, "1 + 1"]))
    blanks, answer = nb.cells.first.locator("img").all()
    expect(blanks).to_be_visible()
    expect(answer).to_be_hidden()
    nb.cells.first.get_by_text("What the ranks hold").click()
    expect(answer).to_be_visible()
    nb.run_cell(1)
    nb.run_cell(2)
    cell = nb.run_cell(3)
    button = cell.get_by_role("button", name="Compare with the ranks")
    expect(button).to_be_visible()
    assert "The ranks" not in cell.locator(".jp-OutputArea").inner_text()
    expect(cell.locator("img")).to_have_count(0)
    shoot(nb, "sealed")
    cell.get_by_role("textbox", name="rank 0, place 0").click()
    for typed, key in (("dd", "Tab"), ("31", "Enter"), ("0", "Tab"), ("1", "Tab"), ("10", "Tab"), ("12", "Tab")):
        nb.page.keyboard.type(typed)
        nb.page.keyboard.press(key)
    nb.page.keyboard.press("Tab")
    expect(cell.get_by_role("textbox", name="rank 3, place 1")).to_be_focused()
    nb.page.keyboard.press("Enter")
    expect(button).to_be_focused()
    button.press("Enter")
    expect(cell.get_by_role("alert")).to_contain_text("Rank 0, place 0: 'dd' is not a number.")
    expect(cell.get_by_role("textbox", name="rank 2, place 1")).to_have_value("12")
    cell.get_by_role("textbox", name="rank 0, place 0").fill("30")
    button.press("Enter")
    result = cell.get_by_role("status")
    expect(result).to_contain_text("5 of 6 tiles are right, 2 left empty.")
    expect(result).to_contain_text("Rank 2, place 1: you said 12, but it holds 11.")
    expect(cell.get_by_text("✓")).to_have_count(5)
    expect(cell.get_by_text("✗ 11")).to_be_visible()
    expect(cell.locator("img[alt*='After, y: rank 0 holds [30, 31]']")).to_be_visible()
    expect(nb.cells).to_have_count(5)
    shoot(nb, "held")
    assert nb.errors() == []
