"""The workbook in JupyterLab, as a learner meets it: menus, the Stop button, a restart, the widgets, both themes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from textwrap import dedent

import browse
import pytest
from playwright.sync_api import expect

CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()

pytestmark = pytest.mark.browser

START = "from labkit import start\n\nlab = start(timeout=60)"
SUM = "%%px\nx = torch.tensor([rank + 1.0])\ndist.all_reduce(x)\nprint(x.item())"

IMPORTS = "from labkit import Predict\nfrom labkit.predictions import Option, Prediction\n\n"
ASKED = f"""{IMPORTS}p = Predict(Prediction('q', '99', 'Which?', 'two', 'Two.', (Option('one', 'No.'), Option('two'))))
p"""
LONG = f"""{IMPORTS}long = 'an option that goes on for long, ' * 6
options = Option(long), Option('b' + long, 'No.'), Option('c', 'No.')
p = Predict(Prediction('q', '99', 'Which? ' * 30, long, 'So.', options))
p"""
NUMBER = f"""{IMPORTS}p = Predict(Prediction('q', '99', 'How much?', 24, 'Six of 4 MiB.', unit='MiB'))
p"""


def begin(nb: browse.Notebook) -> None:
    """Run the first cell, which starts the lab."""
    nb.run_cell(0)
    assert nb.errors() == []


def test_start_here_runs_from_the_menu_and_shows_the_ranks(opened):
    nb = opened("00-start-here.ipynb")
    nb.page.set_viewport_size({"width": 1400, "height": 6000})  # JupyterLab hides the cells beyond
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


def test_everything_on_the_page_is_readable_in_both_themes(opened, lab_server, shots):
    cells = [
        START,
        "lab",
        "%%px\nx = torch.arange(3.0) + (rank == 2)",
        'lab.look("x")',
        "lab.strip()",
        ASKED,
        "p.reveal()",
        "p.lock('a')\np.reveal()",
        "%%px\nif rank != 2:\n    dist.all_reduce(x)",
        "%%px\n1 / (rank - 1)",
    ]
    nb = opened(lab_server.write("everything.ipynb", cells))
    nb.theme(browse.DARK)
    for index in range(len(cells)):
        nb.run_cell(index)
    expect(nb.cells.nth(4)).to_contain_text("rank 3 idle")
    assert ["StuckError" in error for error in nb.errors()] == [True, False]
    for theme in (browse.DARK, browse.LIGHT):
        nb.theme(theme)
        nb.page.screenshot(path=shots / f"everything in {theme}.png")
        contrasts = nb.page.evaluate(CONTRASTS)
        assert len(contrasts) > 40, "the outputs have text"
        faint = [(text, ratio) for text, ratio in contrasts if ratio < 4.5]
        assert not faint, f"{theme}: WCAG asks for 4.5 at least"


def test_stop_ends_a_cell_that_would_run_for_ever_and_the_next_one_works(opened, lab_server):
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


def test_the_live_strip_follows_the_ranks(opened, lab_server):
    busy = "%%px\nimport time\nif rank == 0:\n    time.sleep(2)\ndist.barrier()"
    nb = opened(lab_server.write("strip.ipynb", [START, "lab.strip()", busy]))
    begin(nb)
    strip = nb.run_cell(1).get_by_role("img", name="rank 0:")
    idle = [f"rank {r} idle" for r in range(4)]
    chips = strip.locator("> span")
    expect(chips).to_have_text(idle)
    nb.start_cell(2)
    expect(chips.nth(0)).to_contain_text("rank 0 computing")
    expect(chips.nth(3)).to_contain_text("rank 3 in barrier")
    nb.wait_idle()
    expect(chips).to_have_text(idle)


def test_a_prediction_is_locked_in_and_its_keys_stay_inside(opened, lab_server):
    nb = opened(lab_server.write("predict.ipynb", [ASKED, "p.choice", "p.reveal()"]))
    widget = nb.run_cell(0)
    button = widget.get_by_role("button", name="Lock it in")
    expect(button).to_be_disabled()
    two = widget.get_by_role("radio").nth(1)
    two.click()
    nb.page.keyboard.press("d")
    nb.page.keyboard.press("d")
    expect(nb.cells).to_have_count(3)
    expect(button).to_be_enabled()
    button.click()
    expect(widget.get_by_text("Locked in: b. two")).to_be_visible()
    for radio in widget.get_by_role("radio").all():
        expect(radio).to_be_disabled()
    expect(two).to_be_checked()
    expect(nb.run_cell(1)).to_contain_text("'two'")
    expect(nb.run_cell(2)).to_contain_text("✓ You predicted b. two. That is right.")


def test_an_option_too_long_for_its_line_goes_on_below_beside_its_button_and_covers_no_other(opened, lab_server, shots):
    nb = opened(lab_server.write("long.ipynb", [LONG]))
    nb.page.set_viewport_size({"width": 1000, "height": 1600})
    widget = nb.run_cell(0)
    labels = widget.locator(".widget-radio-box label")
    expect(labels).to_have_count(3)
    nb.page.screenshot(path=shots / "long options.png")
    texts = labels.evaluate_all(
        """labels => labels.map(label => {
            const range = document.createRange();
            range.selectNode(label.firstChild);
            const text = range.getBoundingClientRect(), button = label.querySelector('input').getBoundingClientRect();
            return [text.top, text.bottom, text.left, button.top, button.bottom, button.right];
        })"""
    )
    ends = 0.0
    for top, bottom, left, button_top, button_bottom, button_right in texts:
        assert top >= ends, "it begins below the one before"
        assert top - 6 < button_top < button_bottom < top + 30, "its button is at its first line"
        assert left >= button_right
        ends = bottom
    assert texts[0][1] - texts[0][0] > 30, "the first has two lines at least"
    assert nb.errors() == []


def test_a_number_is_locked_in_with_the_keyboard_and_its_answer_is_folded_away_before(opened, lab_server):
    nb = opened(lab_server.write("number.ipynb", [NUMBER, "p.reveal()"]))
    widget = nb.run_cell(0)
    revealed = nb.run_cell(1)
    expect(revealed).to_contain_text("You have not locked in a prediction")
    expect(revealed.get_by_text("Six of 4 MiB.")).to_be_hidden()
    field = widget.get_by_role("textbox", name="Your answer")
    button = widget.get_by_role("button", name="Lock it in")
    field.press_sequentially("many")
    field.press("Enter")
    expect(button).to_be_focused()
    button.press("Enter")
    expect(widget).to_contain_text("'many' is not a number")
    field.fill("20 MiB")
    field.press("Enter")
    button.press("Enter")
    expect(widget.get_by_text("Locked in: 20 MiB")).to_be_visible()
    expect(field).to_be_disabled()
    revealed = nb.run_cell(1)
    expect(revealed).to_contain_text("✓ You predicted 20 MiB. That is close enough: the answer is 24 MiB.")
    expect(revealed.get_by_text("Six of 4 MiB.")).to_be_visible()


def test_a_table_of_questions_is_answered_from_the_keyboard_and_leaves_the_notebooks_cells_alone(opened, lab_server):
    table = 'from labkit import Choose\n\ntwelve = Choose("twelve_situations")\ntwelve'
    nb = opened(lab_server.write("twelve.ipynb", [table, "twelve.choices[:3]", "twelve.reveal()"]))
    nb.run_cell(0)
    lists = nb.cells.nth(0).locator("select")
    expect(lists).to_have_count(12)
    lists.nth(0).focus()
    nb.page.keyboard.press("ArrowDown")
    nb.page.keyboard.press("Tab")
    expect(lists.nth(1)).to_be_focused()
    for _ in range(4):
        nb.page.keyboard.press("ArrowDown")
    button = nb.cells.nth(0).get_by_role("button", name="Lock in what is chosen")
    button.focus()
    nb.page.keyboard.type("dd")  # in JupyterLab's command mode this deletes a cell
    expect(nb.cells).to_have_count(3)
    nb.page.keyboard.press("Enter")
    expect(nb.cells.nth(0)).to_contain_text("Locked in: 2 of 12")
    nb.run_cell(1)
    expect(nb.cells.nth(1)).to_contain_text("['all_reduce the loss, with MAX', 'broadcast_object_list', None]")
    nb.run_cell(2)
    expect(nb.cells.nth(2)).to_contain_text("1 of 2 right. 10 questions still open")
    assert nb.errors() == []


def test_a_choice_that_the_page_holds_back_while_the_kernel_is_busy_is_there_when_the_button_is_pressed(
    opened, lab_server
):
    """ipywidgets sends a second choice only when the kernel has answered the first, and a click at once."""
    gate = lab_server.notebooks / "gate"
    os.mkfifo(gate)
    table = """
        from labkit import Choose

        def until_open(change):  # the first choice keeps the kernel busy until somebody opens the gate
            field.unobserve(until_open, "value")
            open("gate").close()

        table = Choose("twelve_situations")
        field = table._fields[1]
        field.observe(until_open, "value")
        table
    """
    nb = opened(lab_server.write("held-back.ipynb", [dedent(table), "table.choices[:3]"]))
    nb.run_cell(0)
    nb.cells.nth(0).locator("select").nth(1).focus()
    for _ in range(4):
        nb.page.keyboard.press("ArrowDown")
    nb.cells.nth(0).get_by_role("button", name="Lock in what is chosen").click()
    opener = os.open(gate, os.O_RDWR)  # waits for nobody
    expect(nb.cells.nth(0)).to_contain_text("Locked in: 1 of 12")
    os.close(opener)
    expect(nb.run_cell(1)).to_contain_text("[None, 'broadcast_object_list', None]")
    assert nb.errors() == []
