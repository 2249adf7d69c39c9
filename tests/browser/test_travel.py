"""Travelling through a cell in JupyterLab: arrow keys, both themes, after a hang too."""

from __future__ import annotations

import re

import browse
import pytest
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.browser

START = "from labkit import start\n\nlab = start(timeout=60)"
SUM = """%%px
x = torch.tensor([rank + 1.0, 10.0])
dist.all_reduce(x)
parts = [torch.zeros(2) for _ in range(4)]
work = dist.all_gather(parts, x * rank, async_op=True)
work.wait()"""
HANG = """%%px
if rank != 2:
    dist.all_reduce(x)"""


def cursor(traveller: Locator) -> float:
    """How far from the left it stands, in per cent of the picture."""
    return float(traveller.locator(".labkit-cursor i").evaluate("line => parseFloat(line.style.left)"))


def test_arrow_keys_move_the_cursor_and_the_tensors_change_when_the_operation_ends(opened, lab_server, shoot):
    cells = [START, SUM, "lab.last.travel()", HANG, "lab.last.travel()", "1 + 1"]
    nb: browse.Notebook = opened(lab_server.write("travel.ipynb", cells))
    nb.run_cell(0)
    nb.run_cell(1)
    traveller = nb.run_cell(2).get_by_role("group", name="Travel through the moments of the cell")
    caption = traveller.locator("caption")
    expect(caption).to_contain_text(re.compile(r"moment (\d+) of \1: rank \d finishes the cell"))
    expect(traveller.locator("tbody tr").first).to_contain_text("finished the cell")
    places = [cursor(traveller)]
    traveller.get_by_role("button", name="one moment back").click()
    while not re.search(r"moment \d+ of \d+: rank \d leaves all_reduce", caption.inner_text()):
        before = caption.inner_text()
        nb.page.keyboard.press("ArrowLeft")
        expect(caption).not_to_have_text(before)
        places.append(cursor(traveller))
    assert places == sorted(set(places), reverse=True)
    rank = int(re.search(r"rank (\d) leaves", caption.inner_text())[1])
    row = traveller.locator("tbody tr").nth(rank)
    expect(row).to_contain_text(re.compile(rf"x\s*1040 was \[{rank + 1}, 10\]"))
    nb.page.keyboard.press("d")
    nb.page.keyboard.press("d")
    expect(nb.cells).to_have_count(6)
    shoot(nb, "travel")
    nb.run_cell(3)
    traveller = nb.run_cell(4).get_by_role("group", name="Travel through the moments of the cell")
    for r in (0, 1, 3):
        words = re.compile(r"in all_reduce \(line 3\).*waiting for rank 2")
        expect(traveller.locator("tbody tr").nth(r)).to_contain_text(words)
    expect(traveller.locator("tbody tr").nth(2)).to_contain_text("finished the cell")
    shoot(nb, "travel, hang")
