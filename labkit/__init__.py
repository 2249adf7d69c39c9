"""labkit: real ranks in a notebook.

    notebooks/     one lesson each, executed for readers
      workbook/    what serves a lesson or two: tools/, and tools/rank/ on ranks; labkit finds it by name (content.py)
    labkit/
      lab.py       Lab: the one object that a learner holds, a thin face over the rest
      task.py      an exercise in a learner's hands: card, check, hints, solution
      script.py    the learner's cells, written as a program that torchrun runs
      progress.py  what a learner has done, kept on this machine; files.py: written all or nothing
      restore.py   the button that puts a notebook back; my_notebooks.py: the learner's copies of the lessons
      widgets.py   a question to answer before the ranks do
      knob.py      sliders that call a function and show what it returns; turns.py: when it runs, beside no cell
      choose.py    a table of questions to choose an answer to each
      no_ranks.py  what %%px says before start()
      show/        values that show themselves: a look, a flow, a timeline, steps, a verdict
      plot/        their pictures: matplotlib only, axes in, axes out
      cluster/     starting, running, healing and stopping engines: the only room that imports ipyparallel
      rank/        what runs on an engine: the only room that imports torch
      exercises/   the exercises with their solutions, one module a lesson
      predictions/ the questions of the lessons with their answers and replies, one module a lesson
      grading/     a learner's function held against what it should do: pure, plain data in and out
      outcome/     what became of a cell, told in sentences, and why it is stuck: pure
      theory/      what a collective means, what it costs, what the ranks' records say: pure Python and numpy
      words.py     how ranks, lists, seconds and bytes are said; errors.py: what can go wrong for a learner
      lines.py     the line that code is in, also where Python knows none; place.py: where process numbers mean the same
      moment.py    when something happened, on a clock that nobody sets; descriptors.py: some more files to open
      time_limits.py: for how long one process waits for another
      kernel_internals.py  the private names of ipykernel, ipyparallel and ipywidgets; rank/torch_internals.py: torch's

Imports go down only; `words`, `errors`, `lines`, `moment`, `place`, `time_limits`, `descriptors` and `kernel_internals`
lie under everything, and `top` is every module directly in labkit/:

    top → show, cluster, grading, theory
    show → plot, grading, outcome, theory
    plot → theory
    cluster → grading, outcome, theory
    rank → grading, theory
    grading → outcome, theory
    outcome → theory

`rank` is named by `cluster` as a string that engines import, so that the notebook's kernel starts without torch.
tests/test_layers.py holds the source to this picture, and the picture to the source.
"""

import importlib
from typing import TYPE_CHECKING, Any

from labkit import moved, no_ranks  # noqa: F401 - moved finds what learners' kept cells import
from labkit.errors import CellError, LabError, StoppedError, StuckError

if TYPE_CHECKING:
    from labkit.choose import Choose
    from labkit.knob import Knob
    from labkit.lab import Lab, start
    from labkit.restore import put_back
    from labkit.show.schedule import draw
    from labkit.widgets import Predict

    Atlas: Any
    Elsewhere: Any
    Painter: Any
    Phrasebook: Any
    Planner: Any
    WhatIf: Any

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
    "Choose": "labkit.choose",
    "Knob": "labkit.knob",
    "Lab": "labkit.lab",
    "Predict": "labkit.widgets",
    "draw": "labkit.show.schedule",
    "put_back": "labkit.restore",
    "start": "labkit.lab",
}


def __getattr__(name: str) -> Any:
    """Import the notebook's side when it is asked for: the ranks import labkit too and need none of it."""
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    if name in __all__:  # a tool of the lessons'
        return importlib.import_module("labkit.content").tool(name)
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


no_ranks.explain("There are no ranks yet. Run lab = start() first.")
