"""The workbook's predictions, one module or two a lesson (`lesson02.py`), each with a tuple PREDICTIONS.

The answers stand here and nowhere else: a notebook names a question, and neither its source nor the output under the
question gives the answer away.
"""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache

from labkit.errors import LabError
from labkit.predictions.prediction import Option, Prediction, Trap

__all__ = ["Option", "Prediction", "Trap", "every", "find"]


@cache
def every() -> dict[str, Prediction]:
    """All predictions by name, in the order of the lessons."""
    modules = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("lesson"))
    found: dict[str, Prediction] = {}
    for module in modules:
        for prediction in importlib.import_module(f"{__name__}.{module}").PREDICTIONS:
            assert prediction.name not in found, f"{prediction.name} is there twice"
            found[prediction.name] = prediction
    return found


def find(name: str) -> Prediction:
    """The prediction of this name; a LabError names the nearest one where there is none."""
    if name in every():
        return every()[name]
    near = get_close_matches(name, every(), 1)
    hint = f"Did you mean {near[0]!r}?" if near else "The lessons' cells name those there are."
    raise LabError(f"There is no prediction {name!r}. {hint}")
