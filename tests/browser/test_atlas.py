"""The atlas in JupyterLab: a log is pasted and held against the tables, and its keys stay inside."""

from __future__ import annotations

import browse
import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

MADE = "from labkit import Atlas\n\na = Atlas()\na"
LOG = """# nThread 1 nGpus 8 minBytes 1048576 maxBytes 536870912 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid  1 on  host1 device  0 [0x07] NVIDIA A100-SXM4-80GB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    101.9   10.29   18.01      0    101.5   10.33   18.08      0
    67108864      16777216     float     sum      -1    684.6   98.03  171.55      0    684.0   98.11  171.70      0
   536870912     134217728     float     sum      -1   4218.4  127.27  222.72      0   4215.1  127.37  222.89      0
"""


def test_a_log_is_pasted_and_its_keys_stay_in_the_box(opened, lab_server, shoot):
    nb: browse.Notebook = opened(lab_server.write("atlas.ipynb", [MADE, "a.log.n, a.op", "1 + 1"]))
    widget = nb.run_cell(0)
    expect(widget.locator("img[alt^='all_reduce on 16 GPUs']")).to_be_visible()
    field = widget.locator("textarea")
    field.click()
    nb.page.keyboard.type("dd")
    nb.page.keyboard.press("Enter")
    nb.page.keyboard.press("Shift+Enter")
    expect(nb.cells).to_have_count(3)
    press = widget.get_by_role("button", name="Hold it against the tables")
    press.click()
    expect(widget.get_by_text("is a row of nccl-tests")).to_be_visible()
    expect(field).to_have_value("dd\n\n")
    field.fill("".join(line for line in LOG.splitlines(keepends=True) if "Rank" not in line))
    press.click()
    expect(widget.get_by_text("Resembles 8 × A100")).to_be_visible()
    expect(widget.locator("img[alt^='all_reduce on 8 GPUs']")).to_be_visible()
    shoot(nb, "atlas")
    expect(nb.run_cell(1)).to_contain_text("(8, 'all_reduce')")
    assert nb.errors() == []
