"""Find what lessons own: exercises, questions and tools. The only module that imports the lessons' package.

A lesson is one module of `workbook` or more (`lesson06.py`, `lesson06_puzzles.py`, `capstone.py`); what is an exercise,
a question or a series of them there is found by its type, under the name of its variable.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, cached_property
from types import ModuleType
from typing import Any, Generic, TypeVar

from labkit.floor.errors import LabError
from labkit.grading.exercise import Exercise, lesson_of
from labkit.grading.prediction import Prediction, Series

PACKAGE = "workbook"

T = TypeVar("T", bound=Exercise | Prediction | Series)


class Shelf(Generic[T]):
    """All of one kind in the order of the lessons, read when first asked for.

    >>> exercises.find("ring_shift").lesson
    '02'
    """

    def __init__(self, kind: type[T], called: str, where: str) -> None:
        self._kind, self._called, self._where = kind, called, where

    @cached_property
    def _all(self) -> dict[str, T]:
        found: dict[str, T] = {}
        for each in _owned():
            if isinstance(each, self._kind):
                assert found.get(each.name, each) == each, f"{each.name} is there twice"
                found[each.name] = each
        return found

    def every(self) -> dict[str, T]:
        """Return all of them by name."""
        return self._all

    def find(self, name: str) -> T:
        """Return the one of this name; a LabError names the nearest one where there is none."""
        if name in self._all:
            return self._all[name]
        near = get_close_matches(name, self._all, 1)
        hint = f"Did you mean {near[0]!r}?" if near else self._where
        raise LabError(f"There is no {self._called} {name!r}. {hint}")


exercises = Shelf(Exercise, "exercise", "lab.progress() lists them.")
predictions = Shelf(Prediction, "prediction", "The cells of the lessons name all of them.")
series = Shelf(Series, "prediction", "The cells of the lessons name all of them.")


def question(name: str) -> Prediction | Series:
    """Return the question, or the series of them, of this name."""
    return predictions.every().get(name) or series.find(name)


@cache
def _owned() -> list[Exercise | Prediction | Series]:
    """Return what the lessons' modules hold, in their order; a series after the predictions in it."""
    found: list[Exercise | Prediction | Series] = []
    for module in lessons():
        lesson = lesson_of(module.__name__)
        for name, value in vars(module).items():
            if isinstance(value, Series):
                parts = tuple(replace(part, lesson=lesson) for part in value.parts)
                found += [*parts, replace(value, parts=parts, name=name, lesson=lesson)]
            elif isinstance(value, Prediction):
                found.append(replace(value, name=name, lesson=lesson))
            elif isinstance(value, Exercise):
                found.append(value)
    return found


def lessons() -> list[ModuleType]:
    """Return the modules of the lessons, in the lessons' order; the capstone comes last."""
    package = _package()
    named = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name.startswith(("lesson", "capstone"))]
    ordered = sorted(named, key=lambda name: (name.startswith("capstone"), name))
    return [importlib.import_module(f"{PACKAGE}.{name}") for name in ordered]


def tool(name: str) -> Any:
    """Return what lessons' cells call under this name: the package's TOOLS say where it is."""
    return _found(_package().TOOLS[name])


def methods() -> Iterable[str]:
    """Return the names of the methods that lessons add to labs."""
    return _package().METHODS.keys()


def method(name: str) -> Callable[..., Any] | None:
    """Return the function that is a lab's method of this name, or None: the package's METHODS say where it is."""
    where = _package().METHODS.get(name)
    return _found(where) if where else None


def view(kind: str) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Return the function that makes a tool's view of this kind for a page without a kernel from metadata, or None.

    The package's VIEWS say where it is.
    """
    where = _package().VIEWS.get(kind)
    return _found(where) if where else None


def _package() -> ModuleType:
    """Import the lessons' package; a LabError names what Python finds in its place, such as a learner's folder."""
    package = importlib.import_module(PACKAGE)
    if not hasattr(package, "TOOLS"):
        where = package.__file__ or next(iter(package.__path__))
        says = f"{where} has the name of the lessons' package, and Python finds it first."
        raise LabError(f"{says} Rename it, and restart the kernel.")
    return package


def _found(where: str) -> Any:
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(f"{PACKAGE}.tools.{module}"), attribute)
