"""Read what a course allows in its learners' notebooks: a file course.toml beside them, or where $LABKIT_COURSE says.

    solutions = false    # no lab.exercise(…).solution() and no .steps(), which play the workbook's messages
    hints = false        # no .hint(), and no afterword under a right verdict
    diagnosis = false    # lab.check says right or wrong, and not what is wrong: for an exam

What is not named stays on, and without a file all of it. It hides nothing from those who look: the solutions stand in
the workbook's source, which is open, and a learner can change the file.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from labkit.faces import progress
from labkit.floor.errors import LabError
from labkit.floor.words import listed

FILE = "course.toml"
WHERE = "LABKIT_COURSE"  # an environment variable
OFF = "This course has switched {} off."


@dataclass(frozen=True)
class Course:
    """What learners get beside a verdict."""

    solutions: bool = True
    hints: bool = True
    diagnosis: bool = True


def read() -> Course:
    """Return what the course allows; a LabError says what is wrong with its file, and nothing is allowed by mistake."""
    named = os.environ.get(WHERE)
    file = Path(named) if named else progress.HERE / FILE
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise LabError(f"There is no {file}, which {WHERE} names. Tell the one who runs this course.") from None
        return Course()
    except (OSError, ValueError) as error:
        raise LabError(f"{file} cannot be read: {error}. Tell the one who runs this course.") from error
    known = [field.name for field in fields(Course)]
    if odd := [key for key, value in told.items() if key not in known or not isinstance(value, bool)]:
        lines = listed([f"{name} = true or false" for name in known])
        raise LabError(f"{file} says something else of {odd[0]!r} than {lines}. Tell the one who runs this course.")
    return Course(**told)
