"""`make test` runs what is cheap, what belongs to changes, and a part of the rest: four turns run all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import parts
import pytest
import suite
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent
NOTHING = frozenset[str]()
ID = (
    r"(tests/(live|hosts|browser|rank)/test_[a-c]\.py::test_x|notebooks/0[1-3]-y\.ipynb::Cell [0-9]"
    r"|tests/live/test_exercises\.py::test_the_(mistake|solution|stub)\w?\[lesson0[1-3]-[ab]-c\w\])"
)


@given(st.lists(st.from_regex(ID, fullmatch=True), unique=True), st.integers(0, 100))
def test_four_turns_in_a_row_run_every_test(tests: list[str], first: int):
    turns = [parts.part(tests, first + k, NOTHING) for k in range(parts.TURNS)]
    assert set().union(*turns) == set(tests)
    assert all(test in turn for turn in turns for test in tests if parts.family(test).every == 1)


def test_four_turns_run_every_test_that_there_is(request: pytest.FixtureRequest):
    """Of the tests that this run of pytest has collected: under `make test`, of all."""
    tests = request.config.stash[suite.COLLECTED]
    turns = [parts.part(tests, turn, NOTHING) for turn in range(parts.TURNS)]
    assert set().union(*turns) == set(tests)
    for f in parts.FAMILIES:
        assert f.every in range(1, parts.TURNS + 1)
        sizes = [sum(parts.family(test) is f for test in turn) for turn in turns]
        assert f.every == 1 or max(sizes) < sum(sizes) or sum(sizes) == 0, f"{f.name} take no turns: {sizes}"


def test_every_family_fits_a_file_that_there_is():
    files = [str(p.relative_to(ROOT)) for folder in ("tests", "notebooks") for p in (ROOT / folder).rglob("*.[pi]*")]
    exercises = [f"tests/live/test_exercises.py::test_the_{what}" for what in ("mistake", "solution", "stub")]
    assert {parts.family(test) for test in [*files, *exercises]} == set(parts.FAMILIES)


def test_each_turn_runs_a_mistake_of_each_exercise():
    counts = {"lesson01-two_sums": 4, "lesson02b-two_sums_more": 5, "lesson02b-ring": 9}
    mistakes = [
        f"tests/live/test_exercises.py::test_the_mistake_is_named_for_what_it_is[{exercise}-slip {k}]"
        for exercise, count in counts.items()
        for k in range(count)
    ]
    for turn in range(parts.TURNS):
        ran = parts.part(mistakes, turn, NOTHING)
        for exercise, count in counts.items():
            assert count // parts.TURNS <= sum(f"[{exercise}-slip" in test for test in ran) <= -(-count // parts.TURNS)


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("tests/live/test_race.py", "tests/live/test_race.py::test_a"),
        ("tests/live/notebook.py", "tests/live/test_start_queue.py::test_a"),
        ("notebooks/workbook/tools/rank/shared.py", "tests/live/test_race.py::test_a"),
        ("notebooks/workbook/tools/race/measure.py", "tests/live/test_race.py::test_a"),
        ("tests/browser/conftest.py", "tests/browser/test_knob.py::test_a"),
        ("tests/browser/contrasts.js", "tests/browser/test_jupyterlab.py::test_a"),
        ("labkit/rank/store.py", "tests/hosts/test_ssh.py::test_a"),
        ("notebooks/scripts/ddp_by_hand.py", "tests/live/test_lesson09.py::test_a"),
        ("notebooks/04-everyone.ipynb", "notebooks/04-everyone.ipynb::Cell 3"),
        ("notebooks/workbook/lesson04_questions.py", "notebooks/04-everyone.ipynb::Cell 3"),
        ("notebooks/workbook/lesson12_orders.py", "tests/live/test_exercises.py::test_the_stub[lesson12-order]"),
        ("notebooks/workbook/capstone_whole.py", "tests/live/test_exercises.py::test_the_stub[lessoncapstone-train]"),
        ("tests/mistakes/lesson02b.py", "tests/live/test_exercises.py::test_the_mistake[lesson02b-ring-slip]"),
        ("conftest.py", "tests/hosts/test_ssh.py::test_a"),
    ],
)
def test_what_belongs_to_a_change_runs_in_every_turn(path: str, test: str):
    others = [f"{test.partition('::')[0]}{k}::test_b" for k in range(parts.TURNS)]
    for turn in range(parts.TURNS):
        assert test in parts.part([*others, test], turn, frozenset({path}))


def test_a_change_of_something_else_brings_no_test_before_its_turn():
    test, other = "tests/browser/test_knob.py::test_a", "tests/browser/test_atlas.py::test_a"
    everything = frozenset({"labkit/theory/ring.py", "notebooks/05-cost.ipynb", "tests/hosts/conftest.py", "LICENSE"})
    for changed in (NOTHING, everything):
        assert [test in parts.part([other, test], turn, changed) for turn in range(3)] == [False, True, False]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two commits, of which the first has landed as number 6."""
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    for key in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{key}_NAME", "A")
        monkeypatch.setenv(f"{key}_EMAIL", "a@example.org")
    (tmp_path / ".ci").mkdir()
    parts._git("init", "--quiet")
    for text in ("old", "new"):
        (tmp_path / f"{text}.py").write_text(text)
        (tmp_path / "both.py").write_text(text)
        parts._git("add", ".")
        parts._git("commit", "--quiet", "--message", text)
    (tmp_path / parts.LANDED).write_text(f"6 {parts._git('rev-parse', 'HEAD~1')}")
    return tmp_path


def test_changed_is_what_differs_from_the_last_landing_committed_or_not(project: Path):
    number, commit = parts.landed()
    assert number == 6
    assert parts.changed(commit) == {"new.py", "both.py", ".ci/landed"}
    (project / "old.py").unlink()
    (project / "two words.py").write_text("")
    (project / ".gitignore").write_text("ignored.py")
    (project / "ignored.py").write_text("")
    (project / "both.py").write_text("old")
    assert parts.changed(commit) == {"new.py", "old.py", "two words.py", ".gitignore", ".ci/landed"}


@pytest.mark.usefixtures("project")
def test_where_git_cannot_tell_what_changed_everything_may_have():
    assert parts.changed("0" * 40) is None, "a clone without that commit"
    test = "tests/browser/test_knob.py::test_a"
    assert all(test in parts.part(["tests/browser/test_a.py::test_a", test], turn, None) for turn in range(3))


@pytest.mark.usefixtures("project")
def test_a_landing_is_noted_once(capsys: pytest.CaptureFixture[str]):
    parts.main()
    assert parts.landed() == (7, parts._git("rev-parse", "HEAD").strip())
    parts.main()
    assert parts.landed()[0] == 7
    assert "is noted already" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("beside", [(), ("-n2",)])
def test_a_run_tells_its_part_its_failures_and_its_costs(tmp_path: Path, beside: tuple[str, ...]):
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT / '.ci'}\n")
    (tmp_path / "conftest.py").write_text(
        "import parts\nparts.changed = lambda since: frozenset()\npytest_plugins = ('suite',)\n"
    )
    (tmp_path / "tests/browser").mkdir(parents=True)
    for name in "abc":
        (tmp_path / f"tests/browser/test_{name}.py").write_text("def test_it(): pass\n")
    (tmp_path / "tests/test_d.py").write_text(
        "import subprocess, sys\n"
        "def test_red():\n    assert 1 == 2\n"
        "def test_within(subtests):\n"
        "    for n in (1, 2):\n        with subtests.test(f'n = {n}'):\n            assert n == 1\n"
        "def test_busy():\n    subprocess.run([sys.executable, '-c', 'sum(range(10**8))'])\n"
    )
    command = [sys.executable, "-m", "pytest", "--turn=4", "-p", "no:cacheprovider", *beside, "tests"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "turn: TURN=0 of 4" in ran.stdout, ran.stdout + ran.stderr
    assert "FAILED tests/test_d.py::test_red\n" in ran.stdout
    assert "FAILED tests/test_d.py::test_within [n = 2]\n" in ran.stdout
    assert "3 failed, 2 passed" in ran.stdout
    ((tests, _, cpu),) = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+)  tests/test_d.py$", ran.stdout, re.MULTILINE)
    ((whole,),) = [re.findall(r"([\d,]+) CPU seconds", ran.stdout)]
    assert tests == "3"
    assert float(whole.replace(",", "")) + 1 > float(cpu) > 0.5, "what a test's own programs spend counts"
