"""Run what an exercise puts around a learner's function, from the lesson's module as a rank has it.

A rank imports the module that the notebook imports too, with the names of `labkit.rank.cell_names` in it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from labkit.grading.exercise import Exercise
from labkit.rank import cell_names, known_mistakes

_loaded: list[ModuleType] = []


class _OnRank(SourceFileLoader):
    """Load a module with what its functions see on a rank, and with its assertions, also under `python -O`."""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True, optimize=0)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({name: value for name, value in vars(cell_names).items() if name in cell_names.__all__})
        _loaded.append(module)
        super().exec_module(module)


def find(module: str, name: str, space: Mapping[str, Any]) -> Exercise:
    """Return the exercise of this name; its functions see the rank, world_size and device of this `space`."""
    package = importlib.import_module(module.rpartition(".")[0])
    if module not in sys.modules:
        for folder in package.__path__:
            sys.path_importer_cache[folder] = FileFinder(folder, (_OnRank, SOURCE_SUFFIXES))
    found = vars(importlib.import_module(module))[name]
    for each in (cell_names, *_loaded):  # the first for modules that a function imports later
        vars(each).update({name: space[name] for name in ("rank", "world_size", "device")})
    assert isinstance(found, Exercise)
    return found


def around(exercise: Exercise, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function in what the exercise puts around it."""
    if exercise.harness:
        return partial(exercise.harness, function)
    if exercise.slips:
        return known_mistakes.by_slips(exercise, function)

    def called(*args: Any, **options: Any) -> Any:
        given, left = (exercise.setup(*args, **options), {}) if exercise.setup else (args, options)
        out = function(*given, **left)
        return exercise.collect(out, *given) if exercise.collect else out

    return called
