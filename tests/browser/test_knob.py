"""A knob in JupyterLab: a slider moved by keys or a drag runs code on the ranks and shows another picture."""

from __future__ import annotations

import browse
import pytest
from playwright.sync_api import Locator, expect

from tests.live.versions import SUBSHELLS

pytestmark = pytest.mark.browser

START = "from labkit import Knob, start\n\nlab = start(2, timeout=600)"
TRAIN = """def train(rate, way):
    lab.run(f"losses = [3 * (1 - {rate}) ** i + {way!r}.count('apart') * rank for i in range(30)]")
    return lab.curves("losses")


knob = Knob(train, rate=[0.05, 0.1, 0.2, 0.9], way=["together", "apart"], labels={"rate": "learning rate"})
knob"""
FAILS = "k = Knob(lambda n: 1 / n, n=[2, 1, 0, 4])\nk"
ENDLESS = "%%px\nprint('begun', flush=True)\nwhile True:\n    pass"
SUM = "%%px\nx = torch.ones(1)\ndist.all_reduce(x)\nx"


def picture(widget: Locator, says: str) -> Locator:
    return widget.locator(f"img[alt*='{says}']")


def test_a_slider_runs_code_on_the_ranks_and_shows_another_picture(opened, lab_server, shoot):
    nb: browse.Notebook = opened(lab_server.write("knob.ipynb", [START, TRAIN, "knob.values", "1 + 1"]))
    nb.run_cell(0)
    widget = nb.run_cell(1).locator(".labkit-knob")
    expect(picture(widget, "3.00 → 0.68")).to_be_visible()
    assert picture(widget, "3.00 → 0.68").evaluate("image => image.complete && image.naturalWidth") > 300
    handle = widget.locator(".noUi-handle")
    handle.focus()
    nb.page.keyboard.press("ArrowRight")
    expect(picture(widget, "3.00 → 0.14")).to_be_visible()
    expect(widget.get_by_text("0.1", exact=True)).to_be_visible()
    at = handle.bounding_box()
    track = widget.locator(".noUi-base").bounding_box()
    nb.page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    nb.page.mouse.down()
    nb.page.mouse.move(track["x"] + track["width"] + 5, at["y"] + at["height"] / 2, steps=8)
    expect(picture(widget, "3.00 → 0.14")).to_be_visible()
    nb.page.mouse.up()
    expect(picture(widget, "3.00 → 0.00")).to_be_visible()
    widget.locator("select").select_option("apart")
    expect(picture(widget, "2 different curves")).to_be_visible()
    for key in "dd":
        nb.page.keyboard.press(key)
    expect(nb.cells).to_have_count(4)
    expect(nb.run_cell(2)).to_contain_text("'rate': 0.9, 'way': 'apart'")
    shoot(nb, "knob")
    nb.save()
    nb.reload()
    nb.saved_widget(1, lambda cell: picture(cell, "2 different curves"))
    assert nb.errors() == []
    nb.close()
    lab_server.end_kernels()
    lab_server.begin_kernel("knob.ipynb")  # it knows of no knob
    opened("knob.ipynb").saved_widget(1, lambda cell: picture(cell, "2 different curves"))


def test_a_move_that_goes_wrong_says_so_and_one_while_a_cell_runs_waits_for_it(opened, lab_server, shoot):
    nb: browse.Notebook = opened(lab_server.write("busy.ipynb", [START, TRAIN, ENDLESS, SUM, FAILS]))
    nb.run_cell(0)
    widget = nb.run_cell(1).locator(".labkit-knob")
    expect(picture(widget, "3.00 → 0.68")).to_be_visible()
    working = nb.start_cell(2)
    expect(working.locator(".jp-OutputArea")).to_contain_text("begun")
    widget.locator(".noUi-handle").focus()
    for _ in range(2):
        nb.page.keyboard.press("ArrowRight")
    if SUBSHELLS:  # else the kernel hears of no move before the cell has ended
        expect(widget.get_by_text("learning rate: 0.2, way: together: waits for the cell")).to_be_visible()
    expect(working.locator(".jp-InputPrompt")).to_contain_text("[*]")
    expect(picture(widget, "3.00 → 0.68")).to_be_visible()
    nb.stop()
    nb.wait_idle()
    expect(picture(widget, "3.00 → 0.00")).to_be_visible()
    expect(widget.get_by_text("waits for the cell")).to_have_count(0)
    (error,) = nb.errors()
    assert "You stopped the cell" in error
    expect(nb.run_cell(3)).to_contain_text("2.")

    failing = nb.run_cell(4).locator(".labkit-knob")
    expect(failing.get_by_text("0.5", exact=True)).to_be_visible()
    handle = failing.locator(".noUi-handle")
    handle.focus()
    nb.page.keyboard.press("ArrowRight")
    nb.page.keyboard.press("ArrowRight")
    expect(failing.get_by_role("alert")).to_have_text("ZeroDivisionError: division by zero")
    shoot(nb, "knob with a mistake")
    handle.focus()
    nb.page.keyboard.press("ArrowRight")
    expect(failing.get_by_text("0.25", exact=True)).to_be_visible()
    expect(failing.get_by_role("alert")).to_have_count(0)
    assert nb.errors() == [error]
