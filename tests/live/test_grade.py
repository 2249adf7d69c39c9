"""`python -m labkit grade` runs learners' code on ranks: whatever it does costs its own exercise, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from labkit.__main__ import main
from labkit.commands import grader
from labkit.commands.grader import Grader
from labkit.content import exercises
from tests import copies, mistakes

LESSON = "04"
TWO = ["repair_mean", "average_ints"]
MEAN = exercises.find("repair_mean")
HELPER = "%%px\nSHARE = 1\ndef added(t):\n    dist.all_reduce(t)\n    return t\n"
WITH_HELPER = """%%px
def repair_mean(x):
    sums = added(torch.tensor([x.sum(), len(x)], device=device))
    return sums[0] / sums[1] * SHARE
"""


def put(folder: Path, who: str, *cells: str) -> Path:
    """Write a notebook with these code cells."""
    path = folder / who / "homework.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]}))
    return path


def found(path: Path, *names: str, timeout: float = 60.0) -> dict[str, tuple[str, str]]:
    """Grade exercises of a notebook: the state of each, and what is said."""
    copy = Grader(timeout).copy("it", path, [exercises.find(name) for name in names])
    assert not copy.note
    return {e.name: (e.state, " ".join(e.says)) for e in copy.exercises}


def test_right_wrong_and_hanging_copies_are_told_apart(tmp_path, monkeypatch, capsys):
    wrong = {e: f"%%px\n{mistakes.every()[e][0].source}" for e in TWO}
    hanging = {
        "repair_mean": copies.HANGS.format(name="repair_mean"),
        "average_ints": copies.ENDLESS.format(name="average_ints"),
    }
    for who, but in {"right": {}, "wrong": wrong, "hanging": hanging}.items():
        (tmp_path / "in" / who).mkdir(parents=True)
        (tmp_path / "in" / who / "04.ipynb").write_text(copies.solved(LESSON, but))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress"))
    files = ["--gradescope", "out/results.json", "--junit", "out/junit.xml", "--leaderboard"]
    assert main(["grade", "in", "--exercises", ",".join(TWO), "--timeout", "4", *files]) == 0
    printed = capsys.readouterr().out
    assert "right: 2 of 2" in printed
    assert "wrong: 0 of 2" in printed
    assert "✗ repair_mean: a deadlock" in printed
    assert "✗ average_ints: too slow" in printed
    assert printed.rstrip().endswith("bytes of memory: right")
    told = {test["name"]: test["score"] for test in json.loads(Path("out/results.json").read_text())["tests"]}
    assert told == {f"{who}: {name}": int(who == "right") for who in ("right", "wrong", "hanging") for name in TWO}
    assert Path("out/junit.xml").is_file()
    assert sorted(os.listdir()) == ["in", "out"], "no one's progress, and nothing that ranks have written"


@pytest.mark.parametrize(
    ("cell", "state", "says"),
    [
        (copies.BROKEN.format(name="repair_mean"), "raises", "no Python, line 2"),
        (copies.EXITS.format(name="repair_mean"), "raises", "SystemExit"),
        (copies.DIES.format(name="repair_mean"), "raises", "died"),
        (MEAN.stub, "not attempted", "as the workbook gives it"),
        ("%%px\nx = 1", "not attempted", "No cell of the notebook defines repair_mean"),
        ("%%px\nwhile True: pass\nroom = []\ndef repair_mean(x): return room", "raises", "not run to its end"),
        ("%%px\nroom = nothing\n@room\ndef repair_mean(x): return x", "raises", "NameError"),
        ("%%px\ndef repair_mean(x): return lacking", "raises", "into its own cell"),
    ],
    ids=["no Python", "exits", "dies", "the stub", "none", "its cell hangs", "its cell raises", "lacks a name"],
)
def test_the_next_exercise_is_graded_whatever_becomes_of_one(tmp_path, cell: str, state: str, says: str):
    path = put(tmp_path, "ada", cell, exercises.find("average_ints").answer)
    told = found(path, *TWO, timeout=4)
    assert told["repair_mean"][0] == state
    assert says in told["repair_mean"][1]
    assert told["average_ints"] == ("right", grader.NOT_ITS_OWN)


@pytest.mark.parametrize(
    "cells",
    [
        (HELPER, WITH_HELPER),
        (HELPER, WITH_HELPER.removeprefix("%%px\n")),
        ("%%px\nroom = []\n" + HELPER.removeprefix("%%px\n") + WITH_HELPER.removeprefix("%%px\n") + "    # room",),
        (HELPER, WITH_HELPER.replace("* SHARE", "* len(room)").replace("%%px\n", "%%px\nroom = [1]\nprint(room)\n")),
    ],
    ids=["in a cell of its own", "in a cell without %%px", "beside it", "beside a variable"],
)
def test_a_function_has_what_its_notebook_defines_for_it(tmp_path, cells: tuple[str, ...]):
    assert found(put(tmp_path, "ada", *cells), "repair_mean")["repair_mean"] == ("right", "")


def test_nothing_of_one_copy_reaches_the_next(tmp_path):
    body = MEAN.answer.removeprefix("%%px\n").replace(
        "    return", "    assert not hasattr(dist, 'marked')\n    return"
    )
    first = put(tmp_path, "ada", f"%%px\ndist.marked = True\n{body}")
    second = put(tmp_path, "bob", f"%%px\n{body}")
    assert found(first, "repair_mean")["repair_mean"][0] == "raises"
    assert found(second, "repair_mean")["repair_mean"] == ("right", "")


def test_what_has_no_time_left_is_not_graded_and_what_cannot_be_read_is_told(tmp_path, capsys):
    path = put(tmp_path, "ada", MEAN.answer)
    assert main(["grade", str(path), "--exercises", "repair_mean", "--timeout-all", "0"]) == 1
    assert "not graded. The time for all exercises was over." in capsys.readouterr().out
    path.write_text("{")
    assert main(["grade", str(path)]) == 1
    assert "is not a notebook" in capsys.readouterr().out
    assert main(["grade", str(tmp_path / "empty")]) == 1


def test_a_check_that_does_not_come_back_is_given_up_and_made_once_more_on_new_ranks(tmp_path, monkeypatch):
    tried = []

    def check(console, *_):
        tried.append(console)
        raise OSError("the controller is gone")

    monkeypatch.setattr(grader.check, "check", check)
    state, says = found(put(tmp_path, "ada", MEAN.answer), "repair_mean")["repair_mean"]
    assert state == "not graded"
    assert "OSError: the controller is gone" in says
    assert len(tried) == 2
    assert tried[0] is not tried[1]


def test_in_an_exam_it_tells_right_or_wrong_alone(tmp_path, capsys):
    path = put(tmp_path, "ada", copies.HANGS.format(name="repair_mean"), exercises.find("average_ints").answer)
    assert main(["grade", str(path), "--exercises", ",".join(TWO), "--exam"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines == ["  ✗ repair_mean: wrong.", "  ✓ average_ints: right on 18 inputs."]
