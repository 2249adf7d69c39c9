"""The workbook's predictions, one module or two a lesson (`lesson02.py`, `capstone.py`), each with a tuple PREDICTIONS.

The answers stand here and nowhere else: a notebook names a question, and neither its source nor the output under the
question gives the answer away. A `Series` among them is asked in one table, by `Choose`. Where Gloo and NCCL differ,
the answer is Gloo's, `Prediction.nccl` has NCCL's, and `Prediction.on(backend)` chooses.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import TypeVar

from labkit.errors import LabError
from labkit.predictions.prediction import OnNccl, Option, Prediction, Series, Trap

__all__ = ["OnNccl", "Option", "Prediction", "Series", "Trap", "every", "find", "find_series", "series"]

T = TypeVar("T")


@cache
def every() -> dict[str, Prediction]:
    """All predictions by name, in the order of the lessons, those of a series one by one."""
    found: dict[str, Prediction] = {}
    for asked in _asked():
        for prediction in asked.parts if isinstance(asked, Series) else (asked,):
            assert prediction.name not in found, f"{prediction.name} is there twice"
            found[prediction.name] = prediction
    return found


@cache
def series() -> dict[str, Series]:
    """All series of questions by name."""
    return {asked.name: asked for asked in _asked() if isinstance(asked, Series)}


def find(name: str) -> Prediction:
    """The prediction of this name; a LabError names the nearest one where there is none."""
    return _found(name, every())


def find_series(name: str) -> Series:
    """The series of this name; a LabError names the nearest one where there is none."""
    return _found(name, series())


def _asked() -> Iterator[Prediction | Series]:
    named = [m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith(("lesson", "capstone"))]
    modules = sorted(named, key=lambda name: (name.startswith("capstone"), name))  # which comes last
    for module in modules:
        yield from importlib.import_module(f"{__name__}.{module}").PREDICTIONS


def _found(name: str, among: Mapping[str, T]) -> T:
    if name in among:
        return among[name]
    near = get_close_matches(name, among, 1)
    hint = f"Did you mean {near[0]!r}?" if near else "The lessons' cells name those there are."
    raise LabError(f"There is no prediction {name!r}. {hint}")
