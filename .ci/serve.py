"""A real JupyterLab on a copy of the notebooks: its port, token, settings and temporary files are its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from cells import ROOT

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
    mark: str
    process: subprocess.Popen[bytes]

    def processes(self, variable: str = "") -> list[psutil.Process]:
        """What the server started and still runs, as far as the environment also has `variable`."""
        found = []
        for process in psutil.process_iter():
            try:
                around = process.environ()
            except psutil.Error:
                continue
            if around.get(MARK) == self.mark and (not variable or variable in around):
                found.append(process)
        return found

    def write(self, name: str, cells: Sequence[str]) -> str:
        """Put a notebook of these code cells beside the lessons; returns its name."""
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        nbformat.write(nb, self.notebooks / name)
        return name

    def end_kernels(self) -> None:
        """Shut every notebook's kernel down, as closing the tab for good does."""
        for session in json.loads(self._ask("GET", "api/sessions")):
            self._ask("DELETE", f"api/sessions/{session['id']}")

    def _ask(self, method: str, path: str) -> bytes:
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()


@contextmanager
def jupyterlab(source: Path = ROOT / "notebooks") -> Iterator[Server]:
    """JupyterLab with the workbook's defaults on a copy of the notebooks; its port, token and folders are its own."""
    home = Path(tempfile.mkdtemp(prefix="browse-"))
    notebooks, tmp, runtime = home / "notebooks", home / "tmp", home / "runtime"
    shutil.copytree(source, notebooks, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    tmp.mkdir()
    mark, token = secrets.token_hex(8), secrets.token_hex(16)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("LABKIT_", "JUPYTER_"))},
        MARK: mark,
        "TMPDIR": str(tmp),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_CONFIG_PATH": str(ROOT / ".jupyter"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_TOKEN": token,
    }
    command = [
        *(sys.executable, "-m", "jupyter", "lab", "--no-browser"),
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", f"--ServerApp.root_dir={notebooks}"),
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]
    with open(home / "log", "wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log)
    try:
        url = _wait_for_url(process, runtime, home / "log")
        yield Server(url, token, notebooks, tmp, mark, process)
    finally:
        process.terminate()
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(home, ignore_errors=True)


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
