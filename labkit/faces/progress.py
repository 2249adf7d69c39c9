"""Keep what a learner has done in a folder on this machine: a small JSON file, and every attempt as a .py file.

The folder is $LABKIT_PROGRESS, else my-work/ beside the learner's notebooks, else ~/.local/share/collectives-workbook/.
Nothing of it leaves the machine, and a new version of the workbook leaves it alone. A course may ask to see where its
learners are (`labkit.faces.seat`); then they are told.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from labkit.faces import seat
from labkit.floor import files

FOLDER = "LABKIT_PROGRESS"  # an environment variable
HERE = Path.cwd()  # the notebooks' folder: a kernel starts in it, and cells may go elsewhere later
OTHERS = ("predictions", "plans", "ways")  # what is kept beside the exercises
ALWAYS = ("exercises", "predictions")  # in the file even where there is none
ABOUT = (
    "What you did in the Collectives Workbook: for each exercise how it stands, how many times it was checked, how "
    "many hints were shown, and the least that a right solution of yours took; for each prediction what you chose "
    "first, and whether it was right; for each job that you planned the least that a plan of yours took; the way "
    "through the workbook that you have chosen. Beside this file lies every attempt that was checked (name-1.py, "
    "name-2.py, …). Nothing of this leaves your machine. Delete the folder to begin afresh."
)


def folder() -> Path:
    """Return the folder where progress is kept; it need not exist yet."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named)
    beside = HERE / "my-work"
    if beside.is_dir() or os.access(HERE, os.W_OK):
        return beside
    return Path.home() / ".local" / "share" / "collectives-workbook"


def read() -> dict[str, dict[str, Any]]:
    """Return what is known of every exercise, by name.

    That is "state", "checks", "hints", "shown", "attempts"; "solved", the number of the last attempt that was right,
    with "inputs", on how many; "best", as `grading.score` keeps it. A file that cannot be read is kept aside under
    another name, and the attempts beside it still count.
    """
    known = _content()["exercises"]
    for name, numbers in _attempts().items():
        facts = known.setdefault(name, {})
        facts["attempts"] = max(numbers)
        facts.setdefault("state", "tried")
    return known


def predicted() -> dict[str, dict[str, Any]]:
    """Return the first choice of every prediction that was answered, by name: "first", and whether it was "right"."""
    return _content()["predictions"]


def planned() -> dict[str, float]:
    """Return for each job that was planned the least that a plan took, in times of the best one's time."""
    return {job: float(facts["least"]) for job, facts in _content()["plans"].items() if "least" in facts}


def plan(job: str, ratio: float) -> None:
    """Write down what a plan took, in times of the best one's time, if no earlier one took less."""
    with files.alone(folder()):
        if ratio < planned().get(job, float("inf")):
            _keep("plans", job, {"least": ratio})


def way() -> str:
    """Return the name of the way through the workbook that the learner has chosen; empty where there is none."""
    return str(_content()["ways"].get("chosen", {}).get("name", ""))


def choose_way(name: str) -> None:
    """Write down the way that the learner takes."""
    with files.alone(folder()):
        _keep("ways", "chosen", {"name": name})


def predict(name: str, choice: str | float, right: bool) -> None:
    """Write down the choice of a prediction, unless it was answered before: the first one counts."""
    with files.alone(folder()):
        if name not in predicted():
            _keep("predictions", name, {"first": choice, "right": right})


def _content() -> dict[str, dict[str, dict[str, Any]]]:
    """Return what is in the file, where it can be read: facts of exercises, and those of each of OTHERS."""
    file = folder() / "progress.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        exercises = {str(name): _sound(facts) for name, facts in content["exercises"].items()}
        others = {kind: {str(n): dict(facts) for n, facts in content.get(kind, {}).items()} for kind in OTHERS}
        return {"exercises": exercises, **others}
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        aside = _unused(file)
        with contextlib.suppress(OSError):
            file.rename(aside)
        print(f"{file} could not be read. It was kept as {aside.name}; your attempts are beside it, none is lost.")
    return {"exercises": {}, **{kind: {} for kind in OTHERS}}


def _sound(facts: dict[str, Any]) -> dict[str, Any]:
    """Make facts what this version knows; others stay as they are."""
    state = facts.get("state")
    numbers = {key: int(facts.get(key, 0)) for key in ("checks", "hints")}
    best = facts.get("best")
    if not isinstance(best, dict) or not all(isinstance(best.get(key), (int, float)) for key in ("n", "size", *best)):
        facts = {key: value for key, value in facts.items() if key != "best"}
    return {**facts, **numbers, "state": state if state in ("not attempted", "tried", "solved") else "tried"}


def change(name: str, **facts: Any) -> dict[str, Any]:
    """Write down what is new about an exercise, and return all that is known of it now."""
    with files.alone(folder()):
        mine = {"state": "not attempted", "checks": 0, "hints": 0, **read().get(name, {}), **facts}
        _keep("exercises", name, mine)
    return mine


def _keep(part: str, name: str, facts: dict[str, Any]) -> None:
    """Write down the facts of one exercise, prediction or plan, behind those of the others."""
    known = {**_content(), "exercises": read()}
    known[part].pop(name, None)
    known[part][name] = facts
    content = {"about": ABOUT, "version": 1, **{kind: all_ for kind, all_ in known.items() if all_ or kind in ALWAYS}}
    _write(folder() / "progress.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    if part in ALWAYS:
        seat.tell(folder(), name, known)


def save(name: str, cell: str) -> int:
    """Keep the source of an attempt, unless it is the same as the last one, and return the number that it has."""
    number = max(_attempts().get(name, [0]))
    if cell and cell != last(name):
        number += 1
        _write(folder() / f"{name}-{number}.py", cell)
    return number


def last(name: str) -> str:
    """Return the source of the last attempt; empty where there is none."""
    return _source(name, max(_attempts().get(name, [0])))


def mine(name: str) -> tuple[str, bool]:
    """Return the source of the learner's own solution, else of the last attempt, and whether it is the solution."""
    solution = _source(name, read().get(name, {}).get("solved", 0))
    return solution or last(name), bool(solution)


def _source(name: str, number: int) -> str:
    try:
        return (folder() / f"{name}-{number}.py").read_text(encoding="utf-8") if number else ""
    except OSError:
        return ""


def _attempts() -> dict[str, list[int]]:
    """Return the numbers of the attempts that are kept, by exercise."""
    found: dict[str, list[int]] = {}
    for file in folder().glob("*-*.py") if folder().is_dir() else ():
        name, _, number = file.stem.rpartition("-")
        if number.isdigit():
            found.setdefault(name, []).append(int(number))
    return found


def _write(file: Path, text: str) -> None:
    """Write all of a file or nothing. A disk that takes nothing is not an error, but a sentence."""
    try:
        files.write(file, text)
    except OSError as error:
        why = f"{error.strerror}: {file}"
        print(f"Your progress could not be written ({why}). Set {FOLDER} to a folder that can be written to.")


def _unused(file: Path) -> Path:
    number = 1
    while (aside := file.with_name(f"{file.stem}-broken-{number}{file.suffix}")).exists():
        number += 1
    return aside
