"""The what-if widget in JupyterLab: a slider moved by keys redraws the picture, and its keys stay inside."""

from __future__ import annotations

import browse
import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

START = "from labkit import start\n\nlab = start(timeout=600)"
ENDLESS = "%%px\nprint('begun', flush=True)\nwhile True:\n    pass"
SUM = "%%px\nx = torch.ones(1)\ndist.all_reduce(x)\nx"
MADE = "from labkit import WhatIf\n\nw = WhatIf('all_reduce', n=8, nbytes=2**20, alpha=1e-5, beta=1e-10)\nw"


def test_a_slider_redraws_the_picture_keeps_its_keys_and_disturbs_no_cell_that_runs(opened, lab_server, shoot):
    """JupyterLab tells the kernel of a move beside the cell that runs or behind it: that is its own affair."""
    nb: browse.Notebook = opened(lab_server.write("whatif.ipynb", [START, MADE, ENDLESS, SUM, "w.n, w.winner"]))
    nb.run_cell(0)
    widget = nb.run_cell(1)
    picture = widget.locator("img[alt^='all_reduce of 1 MiB on 8 ranks']")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.complete && image.naturalWidth") > 300
    moved = widget.locator("img[alt^='all_reduce of 1 MiB on 12 ranks']")
    working = nb.start_cell(2)
    expect(working.locator(".jp-OutputArea")).to_contain_text("begun")
    widget.locator(".noUi-handle").first.focus()
    nb.page.keyboard.press("ArrowRight")
    expect(working.locator(".jp-InputPrompt")).to_contain_text("[*]")
    nb.stop()
    nb.wait_idle()
    expect(moved).to_be_visible()
    (error,) = nb.errors()
    assert "You stopped the cell" in error
    expect(nb.run_cell(3)).to_contain_text("4.")
    widget.locator(".noUi-handle").first.focus()
    nb.page.keyboard.press("d")
    nb.page.keyboard.press("d")
    expect(nb.cells).to_have_count(5)
    widget.locator("select").nth(1).select_option("H100 servers, 8 × 400 Gb/s")
    expect(widget.locator("img[alt*='NCCL, estimated']")).to_be_visible()
    expect(widget.get_by_text("latency α")).to_be_hidden()
    expect(widget.get_by_text("oversubscribed", exact=True)).to_be_visible()
    shoot(nb, "what-if")
    expect(nb.run_cell(4)).to_contain_text("(12, ")
    assert nb.errors() == [error]
