"""The prompt of `%%px --debug 1` in JupyterLab: a box under the cell, what is typed there, and Stop."""

from __future__ import annotations

import browse
import pytest
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.browser

START = "from labkit import start\n\nlab = start(timeout=60)"
X = "x = torch.tensor([rank + 1.0])"
SUM = f"%%px --debug 1\n{X}\nif rank == 1:\n    breakpoint()\ndist.all_reduce(x)\nprint(x.item())"
AFTER = "%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), x.item())"
BOX = "input.jp-Stdin-input"


def stopped(nb: browse.Notebook, index: int) -> Locator:
    """Run a cell until it asks for a line."""
    cell = nb.start_cell(index)
    expect(cell.locator(BOX)).to_be_visible()
    return cell


def typed(cell: Locator, line: str) -> None:
    """Type a line; JupyterLab keeps the box of the last one for a moment beside the new one."""
    expect(cell.locator(BOX)).to_have_count(1)
    cell.locator(BOX).fill(line)
    cell.locator(BOX).press("Enter")


def test_a_rank_is_asked_in_the_cell_and_goes_on(opened, lab_server, shoot):
    nb = opened(lab_server.write("debugger.ipynb", [START, SUM, AFTER]))
    nb.page.set_viewport_size({"width": 1200, "height": 900})
    nb.run_cell(0)
    cell = stopped(nb, 1)
    expect(cell).to_contain_text("ranks 0, 2, 3 wait in all_reduce (line 5)")
    expect(cell.locator(".jp-Stdin-prompt")).to_have_text("rank 1 (Pdb) ")
    typed(cell, "p x")
    expect(cell).to_contain_text("tensor([2.])")
    expect(cell.locator(BOX)).to_have_count(1)
    shoot(nb, "debugger")
    typed(cell, "c")
    nb.wait_idle()
    assert nb.errors() == []
    expect(cell.locator(BOX)).to_have_count(0)
    expect(cell).to_contain_text("ranks 0–3 │ 10.0")


def test_stop_at_the_prompt_ends_the_cell_and_the_next_ones_work(opened, lab_server):
    nb = opened(lab_server.write("debugger-stop.ipynb", [START, SUM, AFTER, SUM]))
    nb.run_cell(0)
    cell = stopped(nb, 1)
    nb.stop()
    nb.wait_idle()
    (error,) = cell.locator(browse.ERROR).all_inner_texts()
    assert "You stopped the cell: rank 1 stood at the debugger's prompt (line 4)" in error
    nb.run_cell(2)
    expect(nb.cells.nth(2)).to_contain_text("rank 1 │ 4 2.0")
    cell = stopped(nb, 3)
    typed(cell, "c")
    nb.wait_idle()
    expect(cell).to_contain_text("ranks 0–3 │ 10.0")
