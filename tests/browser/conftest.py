"""One JupyterLab and one Chromium for all browser tests; each test has a page and kernels of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import browse
import psutil
import pytest
from playwright.sync_api import BrowserContext
from serve import Server, jupyterlab

NO_TRACE = 20.0  # seconds after which no process may be left: what labkit promises, and room for a busy machine
Open = Callable[[str], browse.Notebook]
Shoot = Callable[[browse.Notebook, str], None]


@pytest.fixture(scope="session")
def chromium() -> Iterator[BrowserContext]:
    try:
        browse.chromium_path()
    except browse.NoBrowser as none:
        pytest.fail(str(none), pytrace=False)
    with browse.chromium() as running:
        yield running


@pytest.fixture(scope="session")
def lab_server() -> Iterator[Server]:
    with jupyterlab() as server:
        yield server
    # What outlives JupyterLab for a moment is the reaper of the last notebook's lab, which has 5 s to do its work.
    _, left = psutil.wait_procs(server.processes(), timeout=NO_TRACE)
    assert not left, f"JupyterLab has ended and left {[said(process) for process in left]}"


def said(process: psutil.Process) -> str:
    """A process in words, also if it ends meanwhile."""
    try:
        return f"{process.pid} {' '.join(process.cmdline())}"
    except psutil.Error:
        return str(process)


@pytest.fixture
def opened(chromium: BrowserContext, lab_server: Server) -> Iterator[Open]:
    """Open a notebook by name: `opened("00-start-here.ipynb")`."""
    notebooks: list[browse.Notebook] = []
    before = lab_server.log.stat().st_size

    def open_one(name: str) -> browse.Notebook:
        notebooks.append(browse.Notebook(chromium, lab_server, name))
        return notebooks[-1]

    yield open_one
    for notebook in notebooks:
        notebook.close()
    lab_server.end_kernels()
    print(lab_server.log.read_bytes()[before:].decode(errors="replace"))  # pytest shows it of a red test


@pytest.fixture
def shoot() -> Shoot:
    """Keep pictures of a page in both themes in the folder $SCREENSHOTS, for people to look at: they test nothing."""
    folder = os.environ.get("SCREENSHOTS")

    def take(notebook: browse.Notebook, name: str) -> None:
        for theme in (browse.DARK, browse.LIGHT) if folder else ():
            notebook.theme(theme)
            notebook.page.screenshot(path=Path(folder) / f"{name} in {theme}.png")

    return take
