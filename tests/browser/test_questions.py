"""Questions in JupyterLab: answered by mouse and keys, locked in, held against the answer; all on one page."""

from __future__ import annotations

import os
from collections.abc import Iterator

import browse
import pytest
from playwright.sync_api import BrowserContext, expect
from serve import Server

pytestmark = pytest.mark.browser

IMPORTS = "from labkit import Choose, Predict\nfrom labkit.grading.prediction import Option, Prediction"
ASKED = """p = Predict(Prediction('Which?', 'two', 'Two.', (Option('one', 'No.'), Option('two'))))
p"""
LONG = """long = 'an option that goes on for long, ' * 6
options = Option(long), Option('b' + long, 'No.'), Option('c', 'No.')
Predict(Prediction('Which? ' * 30, long, 'So.', options))"""
NUMBER = """n = Predict(Prediction('How much?', 24, 'Six of 4 MiB.', unit='MiB'))
n"""
TABLE = 'eight = Choose("eight_situations")\neight'
BUSY = """table = Choose("eight_situations")
lock = table.heard


def until_open(said):  # the first choice keeps the kernel busy until somebody opens the gate
    table.heard = lock
    open("gate").close()
    lock(said)


table.heard = until_open
table"""
CELLS = [IMPORTS, ASKED, "p.choice", "p.reveal()", LONG, NUMBER, "n.reveal()"]
CELLS += [TABLE, "eight.choices[:3]", "eight.reveal()", BUSY, "table.choices[:3]"]


@pytest.fixture(scope="module")
def questions(chromium: BrowserContext, lab_server: Server) -> Iterator[browse.Notebook]:
    """A notebook of questions, on a page on which JupyterLab hides none; each test runs the cells of its own."""
    nb = browse.Notebook(chromium, lab_server, lab_server.write("questions.ipynb", CELLS), (1000, 6000))
    nb.run_cell(0)
    yield nb
    nb.close()
    lab_server.end_kernels()


def test_a_prediction_is_locked_in_and_its_keys_stay_inside(questions):
    nb = questions
    widget = nb.run_cell(1)
    button = widget.get_by_role("button", name="Lock it in")
    expect(button).to_be_disabled()
    two = widget.get_by_role("radio").nth(1)
    two.click()
    nb.page.keyboard.press("d")
    nb.page.keyboard.press("d")
    expect(nb.cells).to_have_count(len(CELLS))
    expect(button).to_be_enabled()
    button.click()
    expect(widget.get_by_text("Locked in: b. two")).to_be_visible()
    for radio in widget.get_by_role("radio").all():
        expect(radio).to_be_disabled()
    expect(two).to_be_checked()
    expect(nb.run_cell(2)).to_contain_text("'two'")
    expect(nb.run_cell(3)).to_contain_text("✓ You predicted b. two. That is right.")


def test_an_option_too_long_for_its_line_goes_on_below_beside_its_button_and_covers_no_other(questions, shoot):
    nb = questions
    widget = nb.run_cell(4)
    labels = widget.get_by_role("radiogroup").locator("label")
    expect(labels).to_have_count(3)
    shoot(nb, "long options")
    texts = labels.evaluate_all(
        """labels => labels.map(label => {
            const range = document.createRange();
            range.selectNode(label.querySelector('span'));
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


def test_a_number_is_locked_in_with_the_keyboard_and_its_answer_is_folded_away_before(questions):
    nb = questions
    widget = nb.run_cell(5)
    revealed = nb.run_cell(6)
    expect(revealed).to_contain_text("No prediction was locked in")
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
    revealed = nb.run_cell(6)
    expect(revealed).to_contain_text(
        "✓ You chose 20 MiB when the answer was already there to read. That is close enough"
    )
    expect(revealed.get_by_text("Six of 4 MiB.")).to_be_visible()


def test_a_table_of_questions_is_answered_from_the_keyboard_and_leaves_the_notebooks_cells_alone(questions):
    nb = questions
    table = nb.run_cell(7)
    lists = table.locator("select")
    expect(lists).to_have_count(8)
    lists.nth(0).focus()
    nb.page.keyboard.press("ArrowDown")
    nb.page.keyboard.press("Tab")
    expect(lists.nth(1)).to_be_focused()
    for _ in range(4):
        nb.page.keyboard.press("ArrowDown")
    button = table.get_by_role("button", name="Lock in what is chosen")
    button.focus()
    nb.page.keyboard.type("dd")  # in JupyterLab's command mode this deletes a cell
    expect(nb.cells).to_have_count(len(CELLS))
    nb.page.keyboard.press("Enter")
    expect(table).to_contain_text("Locked in: 2 of 8")
    expect(nb.run_cell(8)).to_contain_text("['all_reduce the loss, with MAX', 'broadcast_object_list', None]")
    expect(nb.run_cell(9)).to_contain_text("1 of 2 right. 6 questions still open")
    assert nb.errors() == []


def test_what_is_chosen_while_the_kernel_is_busy_stays_chosen_and_is_locked_in_next(questions, lab_server):
    gate = lab_server.notebooks / "gate"
    os.mkfifo(gate)
    nb = questions
    table = nb.run_cell(10)
    lists = table.locator("select")
    lists.nth(0).select_option(index=1)
    button = table.get_by_role("button", name="Lock in what is chosen")
    button.click()
    expect(table).to_contain_text("Waiting for the kernel")
    lists.nth(1).select_option(index=2)
    button.click()  # in vain
    opener = os.open(gate, os.O_RDWR)  # waits for nobody
    expect(table).to_contain_text("Locked in: 1 of 8")
    os.close(opener)
    button.click()
    expect(table).to_contain_text("Locked in: 2 of 8")
    expect(lists.nth(1)).to_be_disabled()
    expect(nb.run_cell(11)).to_contain_text("['all_reduce the loss, with MAX', 'all_gather_object', None]")
    assert nb.errors() == []
