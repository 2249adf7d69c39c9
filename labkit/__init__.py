"""labkit: real ranks in a notebook.

    notebooks/   one lesson each
    labkit/
      lab.py       Lab: the one object that a learner holds, a thin face over the rest
      exercise.py  a learner's function against its meaning: cards, checks, hints, solutions
      progress.py  what a learner has done, kept on this machine
      exercises/   the exercises with their solutions and planted mistakes, one module a lesson
      widgets.py   ipywidgets controls over plain values
      whatif.py    what collectives would cost elsewhere, under sliders
      no_ranks.py  what %%px says before start()
      errors.py    what can go wrong for a learner, each ending with what to do next
      show/        values that show themselves: a look, a flow, a timeline, steps, a schedule
      plot/        their pictures: matplotlib only, axes in, axes out
      theory/      what a collective means, where its numbers come from: pure Python and numpy, no cluster, no torch
      rank/        what runs on an engine: the only room that imports torch
      cluster/     starting, running, healing and stopping engines: the only room that imports ipyparallel

Imports go down only (tests/test_layers.py reads them): lab, widgets → show, exercises → cluster, plot → theory. `rank`
is named by `cluster` as a string that engines import, so that the notebook's kernel starts without torch.
"""

from typing import TYPE_CHECKING, Any

from labkit import no_ranks
from labkit.errors import CellError, LabError, StuckError

if TYPE_CHECKING:
    from labkit.lab import Lab, start
    from labkit.show.schedule import draw
    from labkit.whatif import WhatIf
    from labkit.widgets import Predict

__all__ = ["CellError", "Lab", "LabError", "Predict", "StuckError", "WhatIf", "draw", "start"]


def __getattr__(name: str) -> Any:
    """Import the notebook's side when it is asked for: the ranks import labkit too and need none of it."""
    if name in ("Lab", "start"):
        from labkit import lab

        return getattr(lab, name)
    if name == "Predict":
        from labkit.widgets import Predict

        return Predict
    if name == "draw":
        from labkit.show.schedule import draw

        return draw
    if name == "WhatIf":
        from labkit.whatif import WhatIf

        return WhatIf
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


no_ranks.explain("There are no ranks yet. Run lab = start() first.")
