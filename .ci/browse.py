"""A notebook open in JupyterLab in a real Chromium, used as a learner does: menus, toolbar, keys."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cells import HERE
from playwright.sync_api import BrowserContext, Locator, Page, expect, sync_playwright
from serve import Server

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"
PATIENCE = 60  # seconds after which a test gives up on a page; no test measures time, and a busy machine may need them
ERROR = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"


class NoBrowser(Exception):
    """No Chromium on this machine; the message says how to get one."""


def chromium_path() -> str:
    """The Chromium that .ci/chromium chooses ($CHROMIUM first)."""
    found = subprocess.run([HERE / "chromium"], capture_output=True, text=True)
    if found.returncode:
        raise NoBrowser(found.stderr)
    return found.stdout.strip()


@contextmanager
def chromium() -> Iterator[BrowserContext]:
    """A headless Chromium with a fresh profile, in which it keeps JupyterLab's code from page to page."""
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        browser = playwright.chromium.launch_persistent_context(profile, executable_path=chromium_path(), args=FLAGS)
        browser.set_default_timeout(PATIENCE * 1000)
        try:
            yield browser
        finally:
            browser.close()


class Notebook:
    """A notebook open in JupyterLab: its cells, its menus, its toolbar. Cells count from 0, text cells too."""

    def __init__(
        self, browser: BrowserContext, server: Server, name: str, size: tuple[int, int] = (1400, 2400)
    ) -> None:
        width, height = size
        self.page: Page = browser.new_page()
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.on("console", lambda message: print(f"{name}: {message.text}"))  # pytest shows it of a red test
        # A workspace of its own: no tab of an earlier page opens again.
        where = f"lab/workspaces/{secrets.token_hex(4)}/tree/{name}"
        self.cells: Locator = self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell")
        self.page.goto(f"{server.url}{where}?token={server.token}")
        self._wait_open()

    def _wait_open(self) -> None:
        expect(self.cells.first).to_be_visible()
        # Before its kernel is there, JupyterLab answers "Run" with the question which one to take.
        expect(self.page.locator("#jp-main-statusbar")).to_contain_text(") | Idle")

    def save(self) -> None:
        """File → Save Notebook, and wait until nothing is unsaved."""
        self.menu("File", "Save Notebook")
        expect(self.page.locator(".lm-TabBar-tab.jp-mod-dirty")).to_have_count(0)

    def reload(self) -> None:
        """Load the page again, as F5 does."""
        self.page.reload()
        self._wait_open()

    def menu(self, *path: str) -> None:
        """Choose an entry of the menu bar: `menu("Run", "Run All Cells")`."""
        first, *rest = path
        self.page.locator("#jp-menu-panel .lm-MenuBar-item", has_text=first).first.click()
        for entry in rest:
            self.page.locator(".lm-Menu-item", has=self.page.get_by_text(entry, exact=True)).last.click()

    def run_all(self, timeout: float = PATIENCE) -> None:
        """Run → Run All Cells, and wait until nothing runs."""
        self.menu("Run", "Run All Cells")
        self.wait_idle(timeout)

    def start_cell(self, index: int) -> Locator:
        """Click into a cell and press Ctrl+Enter; returns the cell while it runs."""
        cell = self.cells.nth(index)
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        return cell

    def run_cell(self, index: int) -> Locator:
        """Run one cell and wait until it has ended."""
        cell = self.start_cell(index)
        self.wait_idle()
        return cell

    def wait_idle(self, timeout: float = PATIENCE) -> None:
        """Wait until the kernel is idle and no cell waits for it."""
        # The star stays until the cell's last output has come; the kernel's own light may be ahead of it.
        waiting = self.page.locator(".jp-InputPrompt", has_text="[*]")
        expect(waiting).to_have_count(0, timeout=timeout * 1000)
        light = self.page.locator(".jp-Notebook-ExecutionIndicator").first
        expect(light).to_have_attribute("data-status", "idle", timeout=timeout * 1000)

    def stop(self) -> None:
        """Press the toolbar's Stop button."""
        self.page.locator('[data-command="notebook:interrupt-kernel"], [title^="Interrupt the kernel"]').first.click()

    def restart(self) -> None:
        """Kernel → Restart Kernel…, confirmed; returns when the new kernel is ready."""
        self.menu("Kernel", "Restart Kernel…")
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        expect(self.page.locator("#jp-main-statusbar")).to_contain_text(") | Idle")

    def saved_widget(self, index: int, says: Callable[[Locator], Locator]) -> Locator:
        """A cell with a widget that comes from the notebook's file, once it shows what `says` finds in it.

        ipywidgets looks for a saved model for two seconds. One that comes a moment later, as on a busy machine, it
        calls "not found" for good, though it is there by then: what is shown from now on, as a copy of the cell is,
        finds it.
        """
        cell = self.cells.nth(index)
        expect(says(cell).or_(cell.get_by_text("model not found")).first).to_be_visible()
        if not says(cell).is_visible():
            cell.locator(".jp-InputArea-prompt").click()
            self.menu("Edit", "Copy Cell")
            self.menu("Edit", "Paste Cell Below")
            cell = self.cells.nth(index + 1)
            expect(says(cell)).to_be_visible()
        return cell

    def errors(self) -> list[str]:
        """The text of every error that a cell ended with."""
        return self.cells.locator(ERROR).all_inner_texts()

    def theme(self, name: str) -> None:
        """Settings → Theme → `name`."""
        self.menu("Settings", "Theme", name)
        expect(self.page.locator("body")).to_have_attribute("data-jp-theme-name", name)
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)  # the old theme fades away behind it

    def close(self) -> None:
        """Close the page, whatever is unsaved in it."""
        self.page.close(run_before_unload=False)
