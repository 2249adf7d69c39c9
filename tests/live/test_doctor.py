"""The doctor on this machine: its two ranks really start, add up and end, and nothing of them is left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from labkit.commands import machine
from tests.live.processes import carrying, eventually

ROOT = Path(__file__).resolve().parents[2]


def doctor(place: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Its exit status, and its findings by what they are about."""
    given = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'notebooks'}", "TMPDIR": str(place), **environment}
    command = [sys.executable, "-m", "labkit", "doctor", "--json", *arguments]
    ran = subprocess.run(command, env=given, cwd=place, capture_output=True, text=True)
    assert ran.stdout, ran.stderr
    return ran.returncode, {f["about"]: f for f in json.loads(ran.stdout)["findings"]}


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        yield Path(folder)


def test_two_ranks_start_add_up_and_end_and_nothing_is_left(place: Path):
    status, findings = doctor(place, LABKIT_PROFILE="far", DOCTOR_TEST=str(place))
    assert findings["2 ranks"]["level"] == "ok", findings
    assert findings["2 ranks"]["says"].startswith("2 ")
    assert "An all-reduce of 1 and 2 is 3 on both" in findings["2 ranks"]["says"]
    assert status == int("fail" in {f["level"] for f in findings.values()})
    assert eventually(lambda: not carrying(str(place)))
    assert list(place.iterdir()) == []


def test_too_few_files_fail_with_what_start_says_and_nothing_is_left(place: Path):
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); "
    code = f"{limit}os.execv(sys.executable, [sys.executable, '-m', 'labkit', 'doctor', '--json'])"
    given = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'notebooks'}", "TMPDIR": str(place)}
    ran = subprocess.run([sys.executable, "-c", code], env=given, cwd=place, capture_output=True, text=True)
    assert ran.returncode == 1, ran.stderr
    findings = {f["about"]: f for f in json.loads(ran.stdout)["findings"]}
    assert findings["open files"]["level"] == findings["2 ranks"]["level"] == "fail"
    assert "ulimit -n" in findings["2 ranks"]["do"]
    assert eventually(lambda: not carrying(str(place)))
    assert list(place.iterdir()) == []


def test_a_folder_without_processes_is_told_as_left_behind(place: Path):
    left = place / "labkit-0123456789ab"
    left.mkdir()
    (left / "address.json").write_text(json.dumps({"tag": "no process has this"}))
    (place / "labkit-notes").mkdir()  # no lab's
    assert machine.labs_of_this_user(str(place))[1] == (str(left),)
    with socket.socket(socket.AF_UNIX) as server:  # in another container, say
        server.bind(str(left / "fork.sock"))
        server.listen()
        assert machine.labs_of_this_user(str(place))[1] == ()
    assert machine.labs_of_this_user(str(place))[1] == (str(left),)


def test_a_lab_that_runs_is_told_and_is_not_taken_for_one_that_was_left_behind(lab):
    found = machine.ask(quick=True)
    running, left = machine.labs_of_this_user(found.place)
    assert os.getpid() in running
    assert str(lab._engines.processes.run.path) not in left
