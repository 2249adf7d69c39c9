"""`pytest --nbval` starts one lab for all notebooks and stops it; a stand-in for labkit takes notes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

import labkit

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
STAND_IN = """
class Lab:
    _address = "run/lab.json"
    def stop(self):
        open("notes", "a").write("stop ")

def start(n):
    open("notes", "a").write(f"start({n}) ")
    return Lab()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the workbook's conftest.py, the stand-in and two notebooks that look for the lab."""
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = . {ROOT / '.ci'}\n")
    (tmp_path / "labkit.py").write_text(STAND_IN)
    (tmp_path / "notebooks").mkdir()
    for name in "ab":
        cell = new_code_cell("import os\nprint(os.environ.get('LABKIT_SHARED'), os.environ['LABKIT_QUIET'])")
        cell.outputs = [new_output("stream", name="stdout", text="run/lab.json 1\n")]
        cell.execution_count = 1
        nbformat.write(new_notebook(cells=[cell]), tmp_path / "notebooks" / f"{name}.ipynb")
    return tmp_path


@pytest.mark.parametrize(("beside", "labs"), [((), 1), (("-n2", "--dist=loadfile"), 2)])
def test_notebooks_share_a_lab_a_worker_that_is_stopped_in_the_end(project: Path, beside: tuple[str, ...], labs: int):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env"]
    ran = subprocess.run([*command, *beside, "notebooks"], cwd=project, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert sorted((project / "notes").read_text().split()) == ["start(4)"] * labs + ["stop"] * labs


def test_where_a_profile_says_where_the_ranks_are_each_notebook_starts_its_own(project: Path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env"]
    away = {**os.environ, "LABKIT_PROFILE": "far"}
    ran = subprocess.run([*command, "notebooks/a.ipynb"], cwd=project, env=away, capture_output=True, text=True)
    assert "None 1" in ran.stdout, ran.stdout + ran.stderr
    assert not (project / "notes").exists()


def test_no_lab_starts_for_a_test_that_is_no_notebooks(request, monkeypatch):
    monkeypatch.setattr(labkit, "start", lambda *_: pytest.fail("a lab was started"))
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    running = conftest.pytest_runtest_protocol(SimpleNamespace(path=Path("test_plain.py")), None)
    next(running)
    with pytest.raises(StopIteration):
        running.send(True)
