"""`make again` names each test that did not pass every time; here with stand-ins that pass, fail and waver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
STAND_INS = """
from pathlib import Path
import psutil

def test_right(): pass
def test_wrong(): assert 0
def test_wavers():
    Path("runs").open("a").write("x")
    assert len(Path("runs").read_text()) != 2
def test_busy():
    beside = len(psutil.Process().parent().children()) - 1
    Path("busy").open("a").write(f"{beside} ")
"""


@pytest.mark.slow
def test_each_test_that_did_not_pass_every_time_is_named_and_every_second_run_is_busy(tmp_path: Path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_stand_ins.py").write_text(STAND_INS)
    command = [sys.executable, str(ROOT / ".ci" / "again.py"), "--runs=2", "-p", "no:cacheprovider", "."]
    quick = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=quick, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "test_stand_ins::test_wrong: failure, failure\n" in ran.stdout
    assert "test_stand_ins::test_wavers: passed, failure\n" in ran.stdout
    assert ran.stdout.endswith("2 tests passed in each of 2 runs, 2 did not.\n")
    assert (tmp_path / "busy").read_text() == f"0 {psutil.cpu_count()} "
