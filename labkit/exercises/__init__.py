"""The workbook's exercises, one module or more a lesson (`lesson06.py`, `capstone.py`), each with a tuple EXERCISES.

The solutions stand here and nowhere else: stubs, checks and tests are made of them. Imports theory and errors only.
"""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache

from labkit.errors import LabError
from labkit.grading.exercise import Exercise


@cache
def every() -> dict[str, Exercise]:
    """All exercises by name, in the order of the lessons."""
    named = [m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith(("lesson", "capstone"))]
    modules = sorted(named, key=lambda name: (name.startswith("capstone"), name))  # which comes last
    found: dict[str, Exercise] = {}
    for module in modules:
        for exercise in importlib.import_module(f"{__name__}.{module}").EXERCISES:
            assert exercise.name not in found, f"{exercise.name} is there twice"
            found[exercise.name] = exercise
    return found


def find(name: str) -> Exercise:
    """The exercise of this name; a LabError names the nearest one where there is none."""
    if name in every():
        return every()[name]
    near = get_close_matches(name, every(), 1)
    hint = f"Did you mean {near[0]!r}?" if near else "lab.progress() lists them."
    raise LabError(f"There is no exercise {name!r}. {hint}")
