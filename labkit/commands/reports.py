"""Write what grading found, as text for the screen and in the forms that autograders read. Nothing is run here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

from labkit.floor.errors import LabError
from labkit.floor.words import count
from labkit.grading.graded import UNGRADED, Copy, Fewest, Graded

WIDE = 120  # characters of a line on the screen
COSTS = {"sent": ("byte", "bytes"), "rounds": ("step", "steps"), "memory": ("byte of memory", "bytes of memory")}
ENDS = {"not attempted": "skipped", UNGRADED: "error"}  # what JUnit calls states that are neither right nor wrong
UNSAFE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML cannot hold
# classroom50's names for who has submitted what; its runner sets these variables.
CLASSROOM50 = {
    "classroom": "CLASSROOM",
    "assignment": "ASSIGNMENT",
    "submission": "SUBMISSION_TAG",
    "commit": "COMMIT_URL",
    "release": "RELEASE_URL",
}

Write = Callable[[Sequence[Copy], Sequence[Fewest], Mapping[str, str]], str]


# -- for the screen ---------------------------------------------------------------------------------------------------


def detail(copy: Copy) -> str:
    """Write a line for each exercise of a copy."""
    if copy.note:
        return f"{copy.name}: {copy.note}"
    lines = [f"{e.head}. {' '.join(e.says)}" for e in copy.exercises]
    return "\n".join([f"{copy.name}: {_of(copy)}, in {copy.seconds:.0f} s", *[f"  {_cut(line)}" for line in lines]])


def summary(copies: Sequence[Copy]) -> str:
    """Write a line for each copy: its points, and a sign for each exercise."""
    wide = max(len(copy.name) for copy in copies)
    lines = []
    for copy in copies:
        signs = " ".join(e.head[0] for e in copy.exercises)
        lines.append(f"  {copy.name:{wide}}  {_of(copy) if copy.exercises else 'not graded':10}  {signs}".rstrip())
    return "\n".join([f"{count(len(copies), 'copy', 'copies')}:", *lines])


def leaderboard(best: Sequence[Fewest]) -> str:
    """Write a line for each cost of each exercise: the least, and whose it is."""
    if not best:
        return "No right solution that a leaderboard could compare."
    lines = [f"  {f.exercise}: {count(round(f.value), *COSTS[f.cost])}: {', '.join(f.names)}" for f in best]
    return "\n".join(["The least that a right solution took:", *lines])


def _of(copy: Copy) -> str:
    return f"{copy.points} of {len(copy.exercises)}"


def _cut(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= WIDE else f"{line[: WIDE - 1]}…"


# -- for autograders --------------------------------------------------------------------------------------------------


def junit(copies: Sequence[Copy], best: Sequence[Fewest], environ: Mapping[str, str]) -> str:
    """Write JUnit's XML: a suite for each copy, a case for each exercise."""
    root = ElementTree.Element("testsuites")
    for copy in copies:
        cases = copy.exercises
        ends = ["system-out" if e.points else ENDS.get(e.state, "failure") for e in cases]
        counts = {
            "tests": len(cases),
            "failures": ends.count("failure"),
            "errors": ends.count("error") + bool(copy.note),
            "skipped": ends.count("skipped"),
        }
        about = {"name": copy.name, "time": f"{copy.seconds:.3f}"} | {k: str(v) for k, v in counts.items()}
        suite = ElementTree.SubElement(root, "testsuite", about)
        for e, end in zip(cases, ends, strict=True):
            case = ElementTree.SubElement(suite, "testcase", classname=copy.name, name=e.name, time=f"{e.seconds:.3f}")
            message = {} if e.points else {"message": _xml(e.head)}
            ElementTree.SubElement(case, end, message).text = _xml(e.text)
        if copy.note:
            ElementTree.SubElement(suite, "system-err").text = _xml(copy.note)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def gradescope(copies: Sequence[Copy], best: Sequence[Fewest], environ: Mapping[str, str]) -> str:
    """Write Gradescope's results.json, with a leaderboard's columns where one was asked for."""
    tests = [
        {
            "name": name,
            "score": e.points,
            "max_score": 1,
            "status": "passed" if e.points else "failed",
            "output": e.text,
            "output_format": "text",
            "visibility": "visible",
        }
        for name, e in _named(copies)
    ]
    told: dict[str, Any] = {
        "score": sum(copy.points for copy in copies),
        "execution_time": round(sum(copy.seconds for copy in copies)),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
    }
    if notes := _notes(copies):
        told["output"] = notes
    if best:
        told["leaderboard"] = [
            {"name": f"{f.exercise}: {COSTS[f.cost][1]}", "value": f.value, "order": "asc"} for f in best
        ]
    return _json(told)


def prairielearn(copies: Sequence[Copy], best: Sequence[Fewest], environ: Mapping[str, str]) -> str:
    """Write PrairieLearn's results.json: points per exercise, and their share as the score."""
    tests = [
        {
            "name": name,
            "description": e.title,
            "points": e.points,
            "max_points": 1,
            "message": e.head,
            "output": "\n".join(e.says),
        }
        for name, e in _named(copies)
    ]
    if not tests:  # it gives the attempt back to the student
        return _json({"gradable": False, "format_errors": _notes(copies) or "No exercise was found."})
    points = sum(copy.points for copy in copies)
    told = {"gradable": True, "score": points / len(tests), "message": f"{points} of {len(tests)} are right."}
    return _json({**told, "output": _notes(copies), "tests": tests})


def classroom50(copies: Sequence[Copy], best: Sequence[Fewest], environ: Mapping[str, str]) -> str:
    """Write classroom50's result.json (classroom50/result/v1); who has submitted what stands in the environment."""
    if lacking := [name for name in CLASSROOM50.values() if not environ.get(name)]:
        raise LabError(
            f"classroom50's runner sets {', '.join(lacking)}, and the environment lacks that. Run this from its "
            "autograder.py, or set them."
        )
    tests = [
        {"test-name": name, "passed": bool(e.points), "score": e.points, "max-score": 1, "output": e.text}
        for name, e in _named(copies)
    ]
    told = {
        "schema": "classroom50/result/v1",
        **{key: environ[name] for key, name in CLASSROOM50.items()},
        "review": environ.get("REVIEW_URL") or environ["COMMIT_URL"],
        "datetime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "score": sum(copy.points for copy in copies),
        "max-score": len(tests),
        "tests": tests,
    }
    return _json(told)


FORMATS: dict[str, tuple[str, Write]] = {
    "junit": ("JUnit's XML", junit),
    "gradescope": ("Gradescope's results.json, of all the notebooks together", gradescope),
    "prairielearn": ("PrairieLearn's results.json, likewise", prairielearn),
    "classroom50": ("classroom50's result.json, likewise", classroom50),
}


def _named(copies: Sequence[Copy]) -> list[tuple[str, Graded]]:
    """Return all exercises, with the copy's name before their own where there are several copies."""
    return [(f"{copy.name}: {e.name}" if len(copies) > 1 else e.name, e) for copy in copies for e in copy.exercises]


def _notes(copies: Sequence[Copy]) -> str:
    return "\n".join(copy.note for copy in copies if copy.note)


def _json(told: Mapping[str, Any]) -> str:
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


def _xml(text: str) -> str:
    return UNSAFE.sub("�", text)
