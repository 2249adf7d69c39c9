"""The shard painter in JupyterLab, by mouse and keys, run on ranks; and on a page without a kernel, by itself."""

from __future__ import annotations

import browse
import pytest
from playwright.sync_api import Locator, Page, expect

from labkit.content import view
from tests.alone import shown
from workbook.tools.painter.face import Painter

pytestmark = pytest.mark.browser

START = "from labkit import Painter, start\n\nlab = start(4, timeout=600)"
LINE = 'painter = Painter(4, x="rows", w="whole")\npainter'
GRID = 'Painter((2, 2), x=("rows", "whole"), w=("whole", "columns"))'


def picture(widget: Locator | Page, says: str) -> Locator:
    return widget.locator(f"img[alt*='{says}']")


def test_a_product_is_painted_and_run(opened, lab_server, shoot):
    cells = [START, LINE, "painter.values", "painter.run(lab)", 'painter.go(x="whole")', GRID, "1 + 1"]
    nb: browse.Notebook = opened(lab_server.write("painter.ipynb", cells))
    nb.run_cell(0)
    widget = nb.run_cell(1).locator(".labkit-live")
    expect(picture(widget, "cut into rows. To become whole, Y needs an all-gather (48 B")).to_be_visible()
    assert picture(widget, "all-gather").evaluate("image => image.complete && image.naturalWidth") > 300
    groups = widget.get_by_role("radiogroup")
    expect(groups).to_have_count(2)
    widget.get_by_role("radiogroup", name="W").get_by_label("columns").click()
    expect(picture(widget, "First: an all-gather of")).to_be_visible()
    groups.nth(0).get_by_label("rows").focus()
    nb.page.keyboard.press("ArrowRight")
    expect(groups.nth(0).get_by_label("columns")).to_be_checked()
    expect(picture(widget, "X (4 × 4: columns)")).to_be_visible()
    nb.page.keyboard.press("Tab")
    expect(groups.nth(1).get_by_label("columns")).to_be_focused()
    nb.page.keyboard.press("ArrowLeft")
    expect(picture(widget, "a partial sum, still to be added up")).to_be_visible()
    for key in "dd":
        nb.page.keyboard.press(key)
    expect(nb.cells).to_have_count(7)
    expect(nb.run_cell(2)).to_contain_text("{'x': 'columns', 'w': 'rows'}")
    expect(picture(nb.run_cell(3), "counted: no collective")).to_be_visible()
    nb.run_cell(4)
    expect(groups.nth(0).get_by_label("whole")).to_be_checked()
    expect(picture(widget, "X (4 × 4: whole)")).to_be_visible()
    expect(picture(nb.run_cell(5), "rank 3 rows 2–3 and columns 2–3")).to_be_visible()
    expect(groups.nth(0).get_by_label("whole")).to_be_checked()  # each painter has its own buttons
    shoot(nb, "painter")
    nb.save()
    assert nb.errors() == []
    nb.close()
    lab_server.end_kernels()
    lab_server.begin_kernel("painter.ipynb")  # it knows of no painter
    opened("painter.ipynb").saved_widget(1, lambda cell: picture(cell, "X (4 × 4: whole)"))


def test_a_page_without_a_kernel_shows_the_painting_of_each_choice(chromium):
    page = chromium.new_page()
    page.set_viewport_size({"width": 400, "height": 900})
    painter = Painter(4, x="rows", w="whole")
    shown(page, Painter, view("painter")(painter.meta))
    for x in ("rows", "columns", "whole"):
        page.get_by_role("radiogroup", name="X").get_by_label(x).click()
        for w in ("whole", "rows", "columns"):
            page.get_by_role("radiogroup", name="W").get_by_label(w).click()
            painter.go(x=x, w=w)
            expect(picture(page, painter.painting.notes[-2])).to_have_attribute("alt", painter.painting.alt)
    assert page.evaluate("model.get('said').w") == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 400, "a wide picture scrolls in its own room"
    page.close()
