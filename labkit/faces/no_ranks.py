"""Let `%%px` and the other magics say why there are no ranks. Imports nothing that the learner has not imported."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from labkit.floor.errors import LabError

MAGICS = ("px", "flow", "late")


def explain(why: str, instead: bool = False) -> None:
    """Let a notebook's magics say why they cannot run, with `instead` in place of those that are there."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return
    from labkit.cluster.rundir import TAG

    def no_ranks(line: str, cell: str | None = None) -> NoReturn:
        raise LabError(why)

    if not instead:
        shell.events.register("post_run_cell", no_lab)
    for name in MAGICS:
        if TAG not in os.environ and (instead or name not in shell.magics_manager.magics["cell"]):
            shell.register_magic_function(no_ranks, "line_cell", name)


def no_lab(result: Any) -> None:
    """Say after a NameError for `lab` what makes it."""
    if isinstance(result.error_in_exec, NameError) and result.error_in_exec.name == "lab":
        print("lab is what start() returns. Run the cell with lab = start() first.")


def after(error: BaseException) -> str:
    """Say why there are no ranks after a start that ended with this error."""
    if isinstance(error, LabError):
        return f"There are no ranks, since start() failed: {error}"
    what = "was stopped" if isinstance(error, KeyboardInterrupt) else f"failed ({type(error).__name__}: {error})"
    return f"There are no ranks, since start() {what}. Run lab = start() again."
