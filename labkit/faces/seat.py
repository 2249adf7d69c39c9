"""Tell a course at which question or exercise a learner is, where it has asked for that: one small file per learner.

The environment variable LABKIT_ROOM names a folder of this machine, and LABKIT_NAME, if set, the learner; without it
the file has a random number for a name. `python -m labkit room FOLDER` shows all files of the folder. What is written:
which exercise or question it is, how many checks and hints it has had, since when, and how many are done; no code, no
answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.floor import files

ROOM, NAME = "LABKIT_ROOM", "LABKIT_NAME"  # environment variables
NUMBER = "room-number"  # the file with a learner's random number
FACTS = ("state", "checks", "hints")
TOLD = (
    "This course sees in {} which exercise or question you are at, under the name {}. It sees no code and no answer. "
    "Unset LABKIT_ROOM to end that."
)

_told: set[Path] = set()  # the folders of which the learner has been told


def tell(mine: Path, what: str, known: Mapping[str, Mapping[str, Any]]) -> None:
    """Write that the learner is at `what`, if a room is named.

    `mine` is the folder of the learner's own progress, `known` the facts of all exercises and predictions in it. A room
    that cannot be written to is a sentence, once, and never an error.
    """
    if not (named := os.environ.get(ROOM)):
        return
    folder = Path(named)
    first = folder not in _told
    _told.add(folder)
    try:
        number = _number(mine)
        file = folder / f"{number}.json"
        since = now = time.time()
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):  # no file, or another form
            before = json.loads(file.read_text(encoding="utf-8"))
            if before["what"] == what:
                since = min(now, before["since"])
        name = os.environ.get(NAME, "")
        facts = {fact: value for fact, value in known["exercises"].get(what, {}).items() if fact in FACTS}
        done = sum(each["state"] == "solved" for each in known["exercises"].values()) + len(known["predictions"])
        seat = {"name": name, "what": what, **facts, "since": since, "when": now, "done": done}
        files.write(file, json.dumps(seat))
        file.chmod(0o644)
    except OSError as error:
        if first:
            print(f"This course cannot see where you are ({error.strerror}: {folder}). Tell the one who runs it.")
        return
    if first:
        print(TOLD.format(folder, name or number))


def _number(mine: Path) -> str:
    """Return the learner's random number, the same each time."""
    file = mine / NUMBER
    with contextlib.suppress(OSError):
        if (number := file.read_text(encoding="utf-8").strip()).isalnum():
            return number
    number = secrets.token_hex(3)
    files.write(file, f"{number}\n")
    return number
