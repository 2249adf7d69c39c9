"""The shard painter in JupyterLab: painted by mouse and keys, run on ranks, in both themes, kept without a kernel."""

from __future__ import annotations

import browse
import pytest
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.browser

START = "from labkit import Painter, start\n\nlab = start(4, timeout=600)"
LINE = 'painter = Painter(4, x="rows", w="whole")\npainter'
GRID = 'Painter((2, 2), x=("rows", "whole"), w=("whole", "columns"))'


def picture(widget: Locator, says: str) -> Locator:
    return widget.locator(f"img[alt*='{says}']")


def test_a_product_is_painted_and_run(opened, lab_server, shoot):
    cells = [START, LINE, "painter.values", "painter.run(lab)", GRID, "1 + 1"]
    nb: browse.Notebook = opened(lab_server.write("painter.ipynb", cells))
    nb.run_cell(0)
    widget = nb.run_cell(1).locator(".labkit-painter")
    expect(picture(widget, "cut into rows. To become whole, Y needs an all-gather (48 B")).to_be_visible()
    assert picture(widget, "all-gather").evaluate("image => image.complete && image.naturalWidth") > 300
    groups = widget.locator(".widget-toggle-buttons")
    expect(groups).to_have_count(2)
    groups.nth(1).get_by_role("button", name="columns").click()
    expect(picture(widget, "First: an all-gather of")).to_be_visible()
    columns = groups.nth(0).get_by_role("button", name="columns")
    columns.focus()
    nb.page.keyboard.press("Space")
    expect(picture(widget, "X (4 × 4: columns)")).to_be_visible()
    nb.page.keyboard.press("Tab")
    expect(groups.nth(0).get_by_role("button", name="whole")).to_be_focused()
    nb.page.keyboard.press("Tab")
    expect(groups.nth(1).get_by_role("button", name="rows")).to_be_focused()
    nb.page.keyboard.press("Enter")
    expect(picture(widget, "a partial sum, still to be added up")).to_be_visible()
    for key in "dd":
        nb.page.keyboard.press(key)
    expect(nb.cells).to_have_count(6)
    expect(nb.run_cell(2)).to_contain_text("{'x': 'columns', 'w': 'rows'}")
    expect(picture(nb.run_cell(3), "counted: no collective")).to_be_visible()
    expect(picture(nb.run_cell(4), "rank 3 rows 2–3 and columns 2–3")).to_be_visible()
    shoot(nb, "painter")
    nb.save()
    nb.reload()
    nb.saved_widget(1, lambda cell: picture(cell, "a partial sum"))
    assert nb.errors() == []
    nb.close()
    lab_server.end_kernels()
    lab_server.begin_kernel("painter.ipynb")  # it knows of no painter
    opened("painter.ipynb").saved_widget(1, lambda cell: picture(cell, "a partial sum"))
