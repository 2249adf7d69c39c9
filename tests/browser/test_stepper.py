"""The stepper in JupyterLab: buttons, arrow keys, and no key that reaches the notebook."""

from __future__ import annotations

import re

import browse
import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

START = "from labkit import start\n\nlab = start(timeout=60)"
SHIFT = """%%px
x, y = torch.arange(2.) + 10 * rank, torch.empty(2)
for step in range(2):
    request = dist.isend(x, (rank + 1) % 4)
    dist.recv(y, (rank - 1) % 4)
    request.wait()"""


LATE = """%%px
def ring_reduce_scatter(x):
    chunks = x.clone().tensor_split(world_size)
    for step in range(1, world_size):
        out, into = chunks[rank - step], chunks[rank - step - 1]
        room = torch.empty_like(into)
        works = [dist.isend(out, dst=(rank + 1) % world_size), dist.irecv(room, src=(rank - 1) % world_size)]
        for work in works:
            work.wait()
        into.copy_(room)
    return chunks[rank]"""


def test_it_steps_by_button_and_arrow_keeps_its_keys_and_plays_the_workbooks_messages_beside(opened, lab_server, shoot):
    beside = 'lab.exercise("ring_reduce_scatter").steps()'
    cells = [START, SHIFT, "lab.last.steps()", LATE, beside, "1 + 1"]
    nb: browse.Notebook = opened(lab_server.write("steps.ipynb", cells))
    nb.run_cell(0)
    nb.run_cell(1)
    stepper = nb.run_cell(2).get_by_role("group", name="Step through the messages")
    picture = stepper.locator("img[alt^='step']")
    expect(picture).to_have_attribute("alt", "step 1: 0→1 [0, 1] · 1→2 [10, 11] · 2→3 [20, 21] · 3→0 [30, 31]")
    stepper.get_by_role("button", name="one step on").click()
    expect(stepper.get_by_text("step 2 of 2", exact=True)).to_be_visible()
    nb.page.keyboard.press("ArrowRight")
    expect(stepper.get_by_text("after step 2", exact=True)).to_be_visible()
    nb.page.keyboard.press("ArrowLeft")
    expect(stepper.get_by_text("step 2 of 2", exact=True)).to_be_visible()
    nb.page.keyboard.press("d")
    nb.page.keyboard.press("d")
    expect(nb.cells).to_have_count(len(cells))
    nb.run_cell(3)
    stepper = nb.run_cell(4).get_by_role("group", name="Step through the messages")
    pictures = stepper.locator("img[alt^='step']")
    expect(pictures).to_have_count(2)
    stepper.get_by_role("button", name="one step on").click()
    expect(pictures.first).to_have_attribute("alt", re.compile(r"^step 2: 0→1 \[32\] \(≠ data\)"))
    expect(pictures.last).to_have_attribute("alt", re.compile(r"^step 2: 0→1 \[34\] ·"))
    nb.page.keyboard.press("ArrowRight")
    expect(stepper.get_by_text("step 3 of 3", exact=True).first).to_be_visible()
    shoot(nb, "steps")
    assert nb.errors() == []
