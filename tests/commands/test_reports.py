"""Reports of what grading found have the keys and the values that each autograder documents."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from labkit.commands import reports
from labkit.floor.errors import LabError
from labkit.grading.graded import Copy, Fewest, Graded

ADA = Copy(
    "ada",
    (
        Graded("total", "Add it up", "right", "✓ total: right on 12 inputs", (), 1.5),
        Graded("ring", "Shift", "deadlock", "✗ ring: a deadlock", ("It hangs.", "Rank 0 waits for rank 1."), 2.5),
        Graded("tree", "Grow", "not attempted", "○ tree: not attempted yet", ("There is no tree.",)),
        Graded("cut", "Cut", "not graded", "○ cut: not graded", ("The time was over.",)),
    ),
)
BOB = Copy("bob", (), "bob.ipynb is not a notebook. Name a file that Jupyter has saved.")
BEST = [Fewest("total", "sent", 96.0, ("ada",)), Fewest("total", "rounds", 1.0, ("ada", "eve"))]
RUNNER = {
    "CLASSROOM": "parallel",
    "ASSIGNMENT": "lesson-04",
    "SUBMISSION_TAG": "submit/2026-06-01",
    "COMMIT_URL": "commit/1",
    "RELEASE_URL": "release/1",
}


def told(name: str, *copies: Copy, best: list[Fewest] | None = None) -> Any:
    return json.loads(reports.FORMATS[name][1](copies, best or [], RUNNER))


def test_gradescope_gets_a_score_for_each_exercise_and_their_sum():
    results = told("gradescope", ADA)
    assert results["score"] == 1
    assert results["execution_time"] == 4
    assert results["stdout_visibility"] == "hidden"
    assert [(t["name"], t["score"], t["max_score"], t["status"]) for t in results["tests"]] == [
        ("total", 1, 1, "passed"),
        ("ring", 0, 1, "failed"),
        ("tree", 0, 1, "failed"),
        ("cut", 0, 1, "failed"),
    ]
    assert results["tests"][1]["output"] == "✗ ring: a deadlock.\nIt hangs.\nRank 0 waits for rank 1."
    assert {t["output_format"] for t in results["tests"]} == {"text"}
    assert "leaderboard" not in results


def test_gradescopes_leaderboard_has_the_least_first_and_no_names():
    assert told("gradescope", ADA, best=BEST)["leaderboard"] == [
        {"name": "total: bytes", "value": 96.0, "order": "asc"},
        {"name": "total: steps", "value": 1.0, "order": "asc"},
    ]


def test_several_notebooks_of_one_submission_are_told_apart():
    results = told("gradescope", ADA, BOB)
    assert results["tests"][0]["name"] == "ada: total"
    assert results["output"] == BOB.note


def test_prairielearn_gets_a_share_of_the_points():
    results = told("prairielearn", ADA)
    assert (results["gradable"], results["score"], results["message"]) == (True, 0.25, "1 of 4 are right.")
    assert results["tests"][1] == {
        "name": "ring",
        "description": "Shift",
        "points": 0,
        "max_points": 1,
        "message": "✗ ring: a deadlock",
        "output": "It hangs.\nRank 0 waits for rank 1.",
    }


def test_prairielearn_gives_back_what_is_no_notebook():
    assert told("prairielearn", BOB) == {"gradable": False, "format_errors": BOB.note}


def test_classroom50_gets_whole_points_and_who_has_submitted_what():
    result = told("classroom50", ADA)
    assert result["schema"] == "classroom50/result/v1"
    keys = ("classroom", "assignment", "submission", "commit", "release", "review")
    assert [result[k] for k in keys] == [*RUNNER.values(), "commit/1"]
    assert (result["score"], result["max-score"]) == (1, 4)
    assert [(t["test-name"], t["passed"], t["score"], t["max-score"]) for t in result["tests"]][:2] == [
        ("total", True, 1, 1),
        ("ring", False, 0, 1),
    ]
    assert result["datetime"].endswith("Z")


def test_without_classroom50s_runner_it_says_what_is_missing():
    with pytest.raises(LabError, match="COMMIT_URL"):
        reports.classroom50([ADA], [], {**RUNNER, "COMMIT_URL": ""})


def test_junit_counts_failures_skips_and_errors_apart():
    root = ElementTree.fromstring(reports.junit([ADA, BOB], [], {}))
    ada, bob = root
    assert {k: ada.get(k) for k in ("name", "tests", "failures", "skipped", "errors")} == {
        "name": "ada",
        "tests": "4",
        "failures": "1",
        "skipped": "1",
        "errors": "1",
    }
    assert [[child.tag for child in case] for case in ada] == [["system-out"], ["failure"], ["skipped"], ["error"]]
    assert bob.get("errors") == "1"
    assert bob.findtext("system-err") == BOB.note


def test_junit_is_xml_whatever_a_learner_prints():
    odd = Graded("total", "", "wrong", "✗ total: wrong", ("\x1b[31m\x00 <b> & \ud800",))
    root = ElementTree.fromstring(reports.junit([Copy("ada", (odd,))], [], {}))
    assert root.findtext(".//failure") == "✗ total: wrong.\n�[31m� <b> & �"


def test_the_table_names_each_copy_once_with_a_sign_for_each_exercise():
    lines = reports.summary([ADA, BOB]).splitlines()
    assert lines == ["2 copies:", "  ada  1 of 4      ✓ ✗ ○ ○", "  bob  not graded"]
    assert reports.detail(BOB) == f"bob: {BOB.note}"
    assert max(map(len, reports.detail(ADA).splitlines())) <= 2 + reports.WIDE


def test_the_leaderboard_names_all_who_share_the_least():
    assert reports.leaderboard(BEST).splitlines()[1:] == ["  total: 96 bytes: ada", "  total: 1 step: ada, eve"]
    assert "No right solution" in reports.leaderboard([])
