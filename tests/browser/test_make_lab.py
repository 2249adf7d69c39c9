"""`make lab` in a fresh clone: what a learner meets first, and what is left after the page was loaded again."""

from __future__ import annotations

import json

import nbformat
import psutil
import pytest
from playwright.sync_api import BrowserContext, expect
from serve import Server

from tests.browser.test_questions import ASKED, IMPORTS

pytestmark = pytest.mark.browser


def test_it_opens_the_page_of_ways_rendered_and_asks_nothing(chromium: BrowserContext, lab_server: Server):
    page = chromium.new_page()
    page.goto(f"{lab_server.url}?token={lab_server.token}")
    expect(page.locator(".lm-TabBar-tab.jp-mod-current", has_text="index.ipynb")).to_be_visible()
    expect(page.get_by_role("heading", name="Ways through the workbook")).to_be_visible()
    expect(page.locator("#jp-main-statusbar")).to_contain_text(") | Idle")
    # JupyterLab counts whatever it has to say here; the question about news would be the first.
    expect(page.locator(".jp-Notification-Status")).to_be_visible()
    expect(page.locator(".jp-Notification-Status")).to_have_text("0")
    expect(page.locator(".jp-Dialog, .Toastify__toast")).to_have_count(0)
    expect(page.locator(".jp-Notebook .jp-Cell").nth(3)).to_be_attached()
    expect(page.locator(".jp-OutputArea-output")).to_have_count(0)  # the lessons are copies without outputs
    page.close()


def test_a_button_puts_a_notebook_back_and_keeps_what_was_typed(opened, lab_server: Server, shoot):
    name, mine = "cheat-sheet.ipynb", lab_server.notebooks / "cheat-sheet.mine-1.ipynb"
    original = (lab_server.notebooks / name).read_bytes()
    nb = opened(name)
    nb.cells.nth(0).click()
    nb.page.keyboard.press("b")  # a new cell below the first
    expect(nb.cells.nth(1)).to_be_focused()  # JupyterLab 4.4 takes a moment
    nb.page.keyboard.press("Enter")
    nb.page.keyboard.insert_text("from labkit import put_back\n\nput_back()")
    cell = nb.run_cell(1)
    cell.get_by_role("button", name=f"Put {name} back…").click()
    put_it_back = cell.get_by_role("button", name="Put it back")
    put_it_back.click()
    expect(cell.get_by_text("Save this notebook first")).to_be_visible()
    shoot(nb, "put back, asked")
    nb.save()
    put_it_back.click()
    expect(cell.get_by_text(f"Yours is kept as {mine.name}")).to_be_visible()
    expect(put_it_back).to_be_hidden()
    shoot(nb, "put back, done")
    assert (lab_server.notebooks / name).read_bytes() == original
    assert nbformat.read(mine, as_version=4).cells[1].source.endswith("put_back()")
    nb.menu("File", "Reload Notebook from Disk")
    reload = nb.page.locator(".jp-Dialog .jp-mod-accept")  # it asks only where something is unsaved
    expect(reload.or_(nb.cells.nth(1).filter(has_not_text="put_back()")).first).to_be_visible()
    if reload.count():
        reload.click()
    expect(nb.cells.get_by_text("put_back()")).to_have_count(0)
    nb.save()
    assert nb.page.locator(".jp-Dialog").count() == 0


def test_a_widget_is_alive_after_the_page_was_loaded_again_and_shows_its_state_with_another_kernel(
    opened, lab_server: Server
):
    nb = opened(lab_server.write("saved.ipynb", [f"{IMPORTS}\n\n{ASKED}", "p.choice"]))
    nb.run_cell(0)
    nb.save()
    nb.reload()
    widget = nb.cells.nth(0)
    widget.get_by_role("radio").nth(1).click()
    widget.get_by_role("button", name="Lock it in").click()
    expect(widget.get_by_text("Locked in: b. two")).to_be_visible()
    expect(nb.run_cell(1)).to_contain_text("'two'")
    nb.save()
    saved = nbformat.read(lab_server.notebooks / "saved.ipynb", as_version=4)
    shown = saved.cells[0].outputs[0].data["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert shown in saved.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    lab_server.end_kernels()
    lab_server.begin_kernel("saved.ipynb")  # of one that still starts ipywidgets may ask too early, and give up
    nb.reload()
    cell = nb.saved_widget(0, lambda cell: cell.get_by_text("Locked in: b. two"))
    expect(cell.get_by_role("radio").nth(1)).to_be_checked()


def test_no_other_program_can_take_a_kernels_ports_before_the_kernel_does(lab_server: Server):
    lab_server.begin_kernel(lab_server.write("sockets.ipynb", ["1 + 1"]))
    chosen = {
        number
        for file in lab_server.runtime.glob("kernel-*.json")
        for name, number in json.loads(file.read_text()).items()
        if name.endswith("_port")
    }
    pids = {process.pid for process in lab_server.processes()}
    taken = {c.laddr.port for c in psutil.net_connections("tcp") if c.laddr and c.pid in pids}
    lab_server.end_kernels()
    assert len(chosen) >= 5
    assert not chosen & taken
