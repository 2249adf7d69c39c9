"""The workbook in JupyterLab, as a learner meets it: menus, the Stop button, a restart, both themes."""

from __future__ import annotations

import time
from pathlib import Path

import browse
import pytest
from playwright.sync_api import expect

from tests.browser.test_questions import ASKED, IMPORTS

CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()

pytestmark = pytest.mark.browser

START = "from labkit import start\n\nlab = start(timeout=60)"
SUM = "%%px\nx = torch.tensor([rank + 1.0])\ndist.all_reduce(x)\nprint(x.item())"


def begin(nb: browse.Notebook) -> None:
    """Run the first cell, which starts the lab."""
    nb.run_cell(0)
    assert nb.errors() == []


def test_start_here_runs_from_the_menu_and_shows_the_ranks(opened):
    nb = opened("00-start-here.ipynb")
    nb.page.set_viewport_size({"width": 1400, "height": 12000})  # JupyterLab hides the cells beyond
    nb.run_all()
    assert nb.errors() == []
    rows = nb.cells.locator("table.labkit-lab tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.locator(":scope > :first-child")).to_have_text(["0", "1", "2", "3"])
    looks = nb.cells.locator("table.labkit-look")
    equal, apart = (looks.nth(i).locator("td.value").all_inner_texts() for i in (0, 1))
    assert (len(equal), len(set(equal)), len(set(apart))) == (4, 1, 4), "after one step the models differ"
    picture = nb.cells.locator("img[alt*='loss_together']").first
    expect(picture).to_be_visible()
    alt = picture.get_attribute("alt")
    assert "loss_apart, 4 different curves" in alt
    assert "loss_together, ranks 0–3: one curve" in alt
    assert picture.evaluate("image => image.complete && image.naturalWidth") > 300


def test_everything_on_the_page_is_readable_in_both_themes(opened, lab_server, shoot):
    cells = [
        START,
        "lab",
        "%%px\nx = torch.arange(3.0) + (rank == 2)",
        'lab.look("x")',
        f"{IMPORTS}\n\n{ASKED}",
        "p.reveal()",
        "p.lock('a')\np.reveal()",
        "%%px\nif rank != 2:\n    dist.all_reduce(x)",
        "%%px\n1 / (rank - 1)",
    ]
    nb = opened(lab_server.write("everything.ipynb", cells))
    nb.theme(browse.DARK)
    for index in range(len(cells)):
        nb.run_cell(index)
    assert ["StuckError" in error for error in nb.errors()] == [True, False]
    for theme in (browse.DARK, browse.LIGHT):
        nb.theme(theme)
        contrasts = nb.page.evaluate(f"() => {{{CONTRASTS} return inOutputs()}}")
        assert len(contrasts) > 40, "the outputs have text"
        faint = [(text, ratio) for text, ratio in contrasts if ratio < 4.5]
        assert not faint, f"{theme}: WCAG asks for 4.5 at least"
    shoot(nb, "everything")


def test_stop_ends_a_cell_that_would_run_for_ever(opened, lab_server):
    absent = "%%px\nif rank == 2:\n    while True:\n        pass\ndist.barrier()"
    endless = "%%px\nwhile True:\n    pass"
    nb = opened(lab_server.write("stop.ipynb", [START, absent, SUM, endless, SUM]))
    begin(nb)
    for index, live, said in (
        (1, "barrier", ["ranks 0, 1, 3 wait in barrier (line 5)", "rank 2 went on computing (line 3)"]),
        (3, "ranks 0–3 │ computing", []),  # nobody waits, so that there is nothing to mend
    ):
        running = nb.start_cell(index)
        expect(running.locator(".jp-OutputArea")).to_contain_text(live)
        nb.stop()
        nb.wait_idle(10)
        (error,) = nb.cells.nth(index).locator(browse.ERROR).all_inner_texts()
        for words in ["You stopped the cell", *said]:
            assert words in error
        assert len(error.splitlines()) <= 3, "no traceback of labkit's own"
        nb.run_cell(index + 1)
        expect(nb.cells.nth(index + 1)).to_contain_text("ranks 0–3 │ 10.0")


def test_a_restart_of_the_kernel_leaves_nothing_behind(opened, lab_server):
    nb = opened(lab_server.write("restart.ipynb", [START, "%%px\nwhile True:\n    pass"]))
    begin(nb)
    nb.start_cell(1)
    assert len(lab_server.processes("LABKIT_RUN")) > 4, "ranks run"
    nb.restart()
    deadline = time.monotonic() + 5
    while (left := lab_server.processes("LABKIT_RUN")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert list(lab_server.tmp.glob("labkit-*")) == []
    begin(nb)
