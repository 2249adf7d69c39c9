"""`make test-gpu` tells what was wrong, what hung and what was not run; without a GPU it says that nothing was checked.

Here with stand-ins for its checks, and with its own checks where torch is told that there is no GPU.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.theory import primitives
from tests.gpu import lane
from tests.gpu.primitives import PRIMITIVES

ROOT = Path(__file__).resolve().parent.parent
CHECKS = "tests/gpu/checks.py"
STAND_INS = """
import threading
import pytest
from tests.gpu.conftest import ALONE, LAST, Check, OutOfTime
from tests.live.notebook import Notebook

both = threading.Barrier(2)
last = []

class Lane:
    def __init__(self, ranks):
        self.ranks, self.began = ranks, 0
    def close(self):
        last.append(self.ranks)

def width(ranks): return 1
def about(): return "Stand-ins."

def right(lane):
    lane.began += 1
    lane.note = f"time {lane.began}"
    return 0.25 * lane.began
def beside(lane): both.wait(60)
def wrong(lane): assert [1.0] == [2.0], "rank 0 has [1.0]"
def sometimes(lane):
    seconds = right(lane)
    assert lane.began != 5, "the fifth is wrong"
    return seconds
def hangs(lane):
    with Notebook() as kernel:
        kernel.enough = 0.5
        kernel.run("while True: pass")
def late(lane):
    if hasattr(lane, "once"):
        raise OutOfTime("no time was left")
    lane.once = True
    return 1.0
def never(lane): raise OutOfTime("no time was left")
def at_the_end(lane): assert set(last) == {"a", "b", "c"}, last

CHECKS = [
    Check("right", "a", right, 3, ALONE),
    Check("beside", "a", beside),
    Check("beside", "b", beside),
    Check("wrong", "a", wrong, 5),
    Check("sometimes", "a", sometimes, 4),
    Check("hangs", "b", hangs),
    Check("late", "b", late, 3),
    Check("never", "b", never),
    Check("cannot", "c", wrong, cannot="only a GPU has it"),
    Check("right", "c", right),
    Check("at the end", "all", at_the_end, when=LAST),
]

@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_is_right(check, seen):
    assert not seen.wrong
"""


def run(*words: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / ".ci")])
    quick = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path, **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=folder, env=quick, capture_output=True, text=True)


@pytest.mark.slow
def test_each_check_is_a_row_that_says_what_came_of_it(tmp_path: Path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "conftest.py").write_text("from tests.gpu.conftest import *\n")
    (tmp_path / "checks.py").write_text(STAND_INS)
    ran = run("checks.py", folder=tmp_path, TABLE="table.md")
    table = (tmp_path / "table.md").read_text()
    assert table in ran.stdout
    assert ran.returncode == 1
    about, _, head, _, *rows, _, counted = table.splitlines()
    assert about == "Stand-ins."
    assert head == "| what | ranks | times | right | wrong | median | worst | |"
    rows = [re.sub(r"(?<=\| )[\d.]+ [mµ]?s(?= \|)", "T", row) if "time" not in row else row for row in rows]
    rows = [re.sub(r"(?<=so far it showed ).*(?= \|)", "…", row) for row in rows]
    assert rows == [
        "| right | a | 3 | 3 | 0 | 500 ms | 750 ms | time 3 |",
        "| beside | a | 1 | 1 | 0 | T | T |  |",
        "| beside | b | 1 | 1 | 0 | T | T |  |",
        "| wrong | a | 3 of 5 | 0 | 3 |  |  | **wrong**: rank 0 has [1.0]; given up after 3 that were wrong |",
        "| sometimes | a | 4 | 3 | 1 | 1.5 s | 1.75 s | **wrong**: the fifth is wrong; time 7 |",
        "| hangs | b | 1 | 0 | 1 |  |  | **wrong**: the cell hangs; so far it showed … |",
        "| late | b | 1 of 3 | 1 | 0 | 1 s | 1 s | no time was left |",
        "| never | b | 0 of 1 | 0 | 0 |  |  | skipped: not run: no time was left |",
        "| cannot | c | 0 | 0 | 0 |  |  | skipped: only a GPU has it |",
        "| right | c | 1 | 1 | 0 | 250 ms | 250 ms | time 1 |",
        "| at the end | all | 1 | 1 | 0 | T | T |  |",
    ]
    assert counted == "11 checks: 5 right, 3 wrong, 1 not run as often as they should be, 2 skipped."


@pytest.mark.slow
def test_without_a_gpu_every_check_is_skipped_by_name_and_none_is_right():
    ran = run(CHECKS, CUDA_VISIBLE_DEVICES="", DEVICE="cuda")
    assert ran.returncode == 0, ran.stdout
    rows = re.findall(r"^\| (?!what|---).*$", ran.stdout, re.MULTILINE)
    assert len(rows) > 100
    assert all(row.endswith(f"| 0 | 0 | 0 |  |  | skipped: {lane.FINDS_NONE} |") for row in rows)
    for name in ("all_reduce AVG, in turns", "a rank is killed, side by side", "04-everyone, as start() does"):
        assert any(row.startswith(f"| {name.replace(', ', ' | ')} |") for row in rows)
    counted = f"{len(rows)} checks: 0 right, 0 wrong, 0 not run as often as they should be, {len(rows)} skipped."
    assert counted in ran.stdout


def test_every_primitive_has_a_check():
    named = {word for name in PRIMITIVES for word in re.findall(r"\w+", name)}
    assert {found.name for found in map(primitives.find, named) if found} == set(primitives.PRIMITIVES)


def test_a_program_is_hidden_and_those_beside_it_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder, names in (("here", ("mps", "smi")), ("there", ("mps", "env"))):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/here{os.pathsep}{tmp_path}/there{os.pathsep}{tmp_path}/nowhere")
    path = lane.path_without("mps")
    assert shutil.which("mps") == f"{tmp_path}/here/mps"
    assert shutil.which("mps", path=path) is None
    assert all(os.path.exists(shutil.which(name, path=path)) for name in ("smi", "env"))
    assert path.endswith(f"{tmp_path}/nowhere")


def test_no_other_run_of_the_tests_counts_these_checks():
    ran = run("tests/gpu", "--collect-only")
    assert (ran.returncode, "no tests collected" in ran.stdout) == (pytest.ExitCode.NO_TESTS_COLLECTED, True), (
        ran.stdout
    )
