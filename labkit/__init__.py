"""labkit: real ranks in a notebook.

    notebooks/     one lesson each, executed for readers
    labkit/
      lab.py       Lab: the one object that a learner holds, a thin face over the rest
      task.py      an exercise in a learner's hands: card, check, hints, solution
      script.py    the learner's cells, written as a program that torchrun runs
      progress.py  what a learner has done, kept on this machine; files.py: written all or nothing
      restore.py   the button that puts a notebook back; my_notebooks.py: the learner's copies of the lessons
      widgets.py   a question to answer before the ranks do; whatif.py: what collectives would cost elsewhere
      knob.py      sliders that call a function and show what it returns; turns.py: when it runs, beside no cell
      painter.py   a product of matrices painted over a mesh of ranks: what it takes, and what they do with it
      planner.py   a plan of your own for a big job, judged
      choose.py    a table of questions to choose an answer to each; sheet.py: every primitive on two pages
      atlas.py     published nccl-tests tables, and one's own log beside them
      diagnosis.py a diagnosis tree for broken programs, on a page to print
      elsewhere.py the same ten lines in other systems' words; phrasebook.py: call by call
      nccl.py      this machine's GPUs, and NCCL's settings tried on them; what others published where there is none
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

    top → show, plot, cluster, predictions, exercises, grading, theory
    show → plot, predictions, grading, outcome, theory
    plot → theory
    cluster → grading, outcome, theory
    rank → grading, theory
    exercises → grading, theory
    grading → outcome, theory
    outcome → theory

`rank` is named by `cluster` as a string that engines import, so that the notebook's kernel starts without torch.
tests/test_layers.py holds the source to this picture, and the picture to the source.
"""

import importlib
from typing import TYPE_CHECKING, Any

from labkit import no_ranks
from labkit.errors import CellError, LabError, StoppedError, StuckError

if TYPE_CHECKING:
    from labkit.atlas import Atlas
    from labkit.choose import Choose
    from labkit.elsewhere import Elsewhere
    from labkit.knob import Knob
    from labkit.lab import Lab, start
    from labkit.painter import Painter
    from labkit.phrasebook import Phrasebook
    from labkit.planner import Planner
    from labkit.restore import put_back
    from labkit.show.schedule import draw
    from labkit.whatif import WhatIf
    from labkit.widgets import Predict

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
    "Atlas": "labkit.atlas",
    "Choose": "labkit.choose",
    "Elsewhere": "labkit.elsewhere",
    "Knob": "labkit.knob",
    "Lab": "labkit.lab",
    "Painter": "labkit.painter",
    "Phrasebook": "labkit.phrasebook",
    "Planner": "labkit.planner",
    "Predict": "labkit.widgets",
    "WhatIf": "labkit.whatif",
    "draw": "labkit.show.schedule",
    "put_back": "labkit.restore",
    "start": "labkit.lab",
}


def __getattr__(name: str) -> Any:
    """Import the notebook's side when it is asked for: the ranks import labkit too and need none of it."""
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


no_ranks.explain("There are no ranks yet. Run lab = start() first.")
