"""The workbook as a learner opens it: `make lab` in a fresh clone, with a home and temporary files of its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil
from cells import ROOT
from jupyter_client import BlockingKernelClient

MARK = "WORKBOOK_BROWSER"  # in the environment of a server and of whatever it starts: what must be gone at the end
STARTING = 60.0  # seconds that JupyterLab may take to come up
ENDING = 10.0  # seconds that it may take to end


@dataclass(frozen=True)
class Server:
    """A running JupyterLab; `notebooks` is the folder that it shows, `tmp` what its kernels take for /tmp."""

    url: str
    token: str
    notebooks: Path
    tmp: Path
    runtime: Path
    log: Path
    mark: str
    process: subprocess.Popen[bytes]

    def processes(self, variable: str = "") -> list[psutil.Process]:
        """What the server started and still runs, as far as the environment also has `variable`."""
        found = []
        for pid in psutil.pids():  # process_iter() keeps a process whose number another one has had since
            try:
                process = psutil.Process(pid)
                around = process.environ()
            except psutil.Error:
                continue
            if around.get(MARK) == self.mark and (not variable or variable in around):
                found.append(process)
        return found

    def write(self, name: str, cells: Sequence[str | nbformat.NotebookNode]) -> str:
        """Put a notebook of these code cells, or sources of such, beside the lessons; returns its name."""
        made = [nbformat.v4.new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
        nb = nbformat.v4.new_notebook(cells=made)
        nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        nbformat.write(nb, self.notebooks / name)
        return name

    def end_kernels(self) -> None:
        """Shut every notebook's kernel down, as closing the tab for good does."""
        for session in json.loads(self._ask("GET", "api/sessions")):
            self._ask("DELETE", f"api/sessions/{session['id']}")

    def begin_kernel(self, name: str) -> None:
        """Start a notebook's kernel before a page asks for it, and wait until it answers."""
        session = {"path": name, "name": name, "type": "notebook", "kernel": {"name": "python3"}}
        kernel = json.loads(self._ask("POST", "api/sessions", session))["kernel"]["id"]
        client = BlockingKernelClient(connection_file=str(self.runtime / f"kernel-{kernel}.json"))
        client.load_connection_file()
        client.start_channels(hb=False)  # on a busy machine a heartbeat that is a second late counts as death
        client.wait_for_ready(STARTING)
        client.stop_channels()

    def _ask(self, method: str, path: str, content: Any = None) -> bytes:
        headers = {"Authorization": f"token {self.token}"}
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()


@contextmanager
def jupyterlab() -> Iterator[Server]:
    """`make lab` in a fresh clone of this working tree; its port, token and home are its own, nothing is installed."""
    place = Path(tempfile.mkdtemp(prefix="browse-"))
    clone, home, tmp, runtime = (place / name for name in ("clone", "home", "tmp", "runtime"))
    for folder in (home, tmp):
        folder.mkdir()
    for path in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).rstrip("\0").split("\0"):
        if (ROOT / path).is_file():  # as it is now; what git does not know of is in no clone
            (clone / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, clone / path)
    mark, token = secrets.token_hex(8), secrets.token_hex(16)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("LABKIT_", "JUPYTER", "IPYTHON", "MAKE"))},
        MARK: mark,
        "HOME": str(home),
        "TMPDIR": str(tmp),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_TOKEN": token,
    }
    # What runs this is installed: no stamp makes pip look again.
    command = ["make", "lab", f"VENV={sys.prefix}", f"--assume-old={sys.prefix}/.lab"]
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            [*command, "LAB_ARGS=--no-browser --ServerApp.port=0"],
            cwd=clone, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        url = _wait_for_url(process, runtime, place / "log")
        yield Server(url, token, clone / "my-notebooks", tmp, runtime, place / "log", mark, process)
    finally:
        # make, its shell and JupyterLab; kernels are in groups of their own, JupyterLab ends them.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(place, ignore_errors=True)


def _wait_for_url(process: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    deadline = time.monotonic() + STARTING
    while time.monotonic() < deadline and process.poll() is None:
        for info in runtime.glob("jpserver-*.json"):
            try:
                url = json.loads(info.read_text())["url"]
                urllib.request.urlopen(url + "api", timeout=5).close()
                return url
            except (OSError, ValueError):
                continue
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not come up:\n{log.read_text()}")
