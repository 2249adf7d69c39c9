"""labkit: real ranks in a notebook.

    notebooks/     one lesson each, executed for readers
      workbook/    what lessons own: lesson04.py, its exercises and questions; tools/, and tools/rank/ on ranks
    labkit/
      lab.py       Lab: the one object that a learner holds, a thin face over the rest
      starting.py  start(): what is asked for, how many ranks with which backend, and the Lab
      content.py   what lessons own, found by name: exercises, questions, tools
      commands/    what `python -m labkit NAME` does in a terminal
      faces/       what a learner's cell or a button calls: tasks, sliders, predictions, curves, progress, scripts
      show/        values that show themselves: a card, a look, a flow, curves, a timeline, steps, a verdict
      plot/        their pictures: matplotlib only, data in, axes out
      cluster/     starting, running, healing and stopping engines: the only room that imports ipyparallel
      rank/        what runs on an engine: the only room that imports torch; its private names are in torch_internals.py
      grading/     exercises, questions and inputs; a learner's function held against what it should do: pure
      outcome/     what became of a cell, told in sentences, and why it is stuck: pure
      theory/      what a collective means, what it costs, what the ranks' records say: pure Python and numpy
      floor/       what lies under all: words, errors, files, time limits, ipykernel's private names, source lines

Imports go down only; `floor` lies under everything, and `top` is what stands directly in labkit/, `content` aside:

    commands → top, faces, show, cluster, content, grading
    top → faces, show, cluster, content, theory
    faces → show, cluster, content, grading, theory
    show → plot, grading, outcome, theory
    plot → theory
    cluster → grading, outcome, theory
    rank → grading, theory
    content → grading
    grading → outcome, theory
    outcome → theory

`rank` is named by `cluster` as a string that engines import, so that the notebook's kernel starts without torch.
tests/test_layers.py holds the source to this picture, and the picture to the source.
"""

import importlib
from typing import TYPE_CHECKING, Any

from labkit.faces import no_ranks
from labkit.floor import moved_modules  # noqa: F401 - it finds what learners' kept cells import
from labkit.floor.errors import CellError, LabError, StoppedError, StuckError

if TYPE_CHECKING:
    from labkit.faces.knob import Knob
    from labkit.faces.restore import put_back
    from labkit.faces.widgets import Choose, Predict
    from labkit.lab import Lab
    from labkit.starting import start

    Atlas: Any
    Elsewhere: Any
    Painter: Any
    Phrasebook: Any
    Planner: Any
    WhatIf: Any
    draw: Any

__all__ = [
    "Atlas",
    "CellError",
    "Choose",
    "Elsewhere",
    "Knob",
    "Lab",
    "LabError",
    "Painter",
    "Phrasebook",
    "Planner",
    "Predict",
    "StoppedError",
    "StuckError",
    "WhatIf",
    "draw",
    "put_back",
    "start",
]


_WHERE = {
    "Choose": "labkit.faces.widgets",
    "Knob": "labkit.faces.knob",
    "Lab": "labkit.lab",
    "Predict": "labkit.faces.widgets",
    "put_back": "labkit.faces.restore",
    "start": "labkit.starting",
}


def __getattr__(name: str) -> Any:
    """Import the notebook's side when it is asked for: the ranks import labkit too and need none of it."""
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    if name in __all__:  # a tool of the lessons'
        return importlib.import_module("labkit.content").tool(name)
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


no_ranks.explain("There are no ranks yet. Run lab = start() first.")
