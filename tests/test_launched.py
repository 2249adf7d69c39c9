"""A command that starts processes on other hosts, as its notebook sees it: what it says, and what it outlives."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from labkit.cluster.hosts import Launched
from labkit.cluster.rundir import RunDir
from labkit.cluster.spread import Launch
from labkit.floor.errors import LabError
from tests.live.processes import eventually

SAYS_AFTERWARDS = """
import os, sys
from pathlib import Path
print("queued and waiting", flush=True)
sys.stdin.read()  # its end is the notebook's
for line in range(3):
    os.write(2, b"mpiexec: na: the notebook has ended\\n")
Path(sys.argv[1]).touch()
"""
NOTEBOOK = """
import sys
from pathlib import Path
from labkit.cluster.hosts import Launched
from labkit.cluster.rundir import RunDir
from labkit.cluster.spread import Launch
_, code, cleared, folder = sys.argv
Launched(Launch([sys.executable, "-S", "-c", code, cleared], [0], "order\\n"), RunDir(Path(folder), "tag"))
print("started", flush=True)
sys.stdin.read()
"""


def test_a_command_that_has_more_to_say_than_its_notebook_hears_still_clears_its_files_away(tmp_path):
    cleared, argv = tmp_path / "cleared", [sys.executable, "-c", NOTEBOOK, SAYS_AFTERWARDS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*argv, str(cleared), str(tmp_path)], **pipes) as notebook:
        assert notebook.stdout.readline() == b"started\n"
        notebook.kill()
    assert eventually(cleared.exists)


def test_lines_are_kept_once_they_are_whole_and_all_of_them_at_the_end(tmp_path):
    code = "import sys\nprint('one\\n\\ntwo\\nth', end='', flush=True)\nsys.stdin.readline()\nsys.stdin.readline()"
    launched = Launched(Launch([sys.executable, "-S", "-c", code], [0], "order\n"), RunDir(tmp_path, "tag"))
    assert eventually(lambda: launched.said)
    assert launched.said == ["one", "two"]
    launched.popen.stdin.close()
    assert eventually(launched.ended)
    assert launched.said == ["one", "two", "th"]
    launched.end(0)
    for file in tmp_path.iterdir():
        file.unlink()
    assert launched.said == [], "the lab has ended, and its files with it"


def test_a_command_that_is_missing_leaves_nothing_open(tmp_path):
    before = os.listdir("/proc/self/fd")
    with pytest.raises(LabError, match="mpiexec cannot be run here"):
        Launched(Launch(["/nowhere/mpiexec"], [0]), RunDir(tmp_path, "tag"))
    assert os.listdir("/proc/self/fd") == before
