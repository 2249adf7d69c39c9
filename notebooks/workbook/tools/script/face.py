"""Write the learner's cells, for `lab.script`, as a program beside the notebook, and never over what is not its own."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.faces import arguments, progress
from labkit.floor.errors import LabError
from labkit.floor.words import listed
from labkit.show.card import Note
from labkit.theory.cells import Cell, lacking, once
from workbook.tools import saving
from workbook.tools.script.program import Program, command, program

OURS = "# Written by lab.script, which writes over this file only while nobody has changed it: "  # and a digest
HIDES = {*sys.stdlib_module_names, "torch", "numpy", "labkit", "IPython"}  # modules whose names a program must not have


def script(
    lab: Any, file: str, cells: Sequence[int] | None = None, last: int | None = None, overwrite: bool = False
) -> Note:
    """Write the cells that ran on the ranks as a program that torchrun runs with the same result.

    >>> lab.script("mean.py")                    # all cells since start(), beside the notebook
    >>> lab.script("mean.py", last=2)            # the last two
    >>> lab.script("mean.py", cells=[3, 5])      # the numbers in brackets, left of the cells

    A cell that you ran again is in it once, as it ran last; with `cells`, each run that you name. Cells that failed
    are left out, and it says so. A file that you have changed, or that something else wrote, is only written over
    with `overwrite=True`. The lab remembers the last 500 cells.
    """
    arguments.text('lab.script("mean.py")', file)
    path = _path(file)
    engines = lab._console.engines
    ran = list(engines.cells)
    made = program(_chosen(ran, cells, last), engines.n, engines.backend, file)
    if not made.cells:
        why = " ".join(f"{cell.name[0].upper()}{cell.name[1:]}: {why}." for cell, why in made.left_out)
        raise LabError(f"There is nothing to write. {why} Run a %%px cell to its end first.".replace("  ", " "))
    saving.save(path, f"{made.text}{OURS}{_digest(made.text)}\n", "lab.script", _theirs, overwrite)
    return Note(_said(file, made, engines.n, lacking(made.cells, ran)), made.text)


def _said(file: str, made: Program, n: int, lacks: dict[str, Cell]) -> str:
    """Say what was written, what was not, and how to run it."""
    numbers = list(dict.fromkeys(f"[{cell.number}]" for cell in made.cells if cell.number))
    which = f"cell{'s' * (len(numbers) > 1)} {listed(numbers)}" if numbers else "your cells"
    run = command(file, n).replace("torchrun", _torchrun(), 1)
    lines = [f"`{file}` has {which}. Run it in a terminal, in this notebook's folder: `{run}`."]
    lines += [f"{cell.name[0].upper()}{cell.name[1:]} is left out: {why}." for cell, why in made.left_out]
    for name, cell in lacks.items():
        lines.append(f"**It needs `{name}`, which {cell.name} made and no cell in it makes.**")
    if whole := [cell for cell in lacks.values() if cell.number and cell.well]:
        both = sorted({cell.number for cell in (*made.cells, *whole)})
        lines.append(f"To have that as well: `lab.script({file!r}, cells={both})`.")
    lines.append(
        "Lines that the notebook ran itself are not in it. While it runs, torchrun listens on all network interfaces."
    )
    return "\n\n".join(lines)


def _torchrun() -> str:
    """Return how this environment's torchrun is called in the notebook's folder: by a path if its name will not do."""
    own = Path(sys.executable).with_name("torchrun")
    known = shutil.which("torchrun") == str(own) or not own.exists()
    return "torchrun" if known else shlex.quote(min(os.path.relpath(own, progress.HERE), str(own), key=len))


def _path(file: str) -> Path:
    """Return where the file is: beside the notebook, unless a folder is named."""
    path = Path(file)
    if path.suffix != ".py" or not path.stem.isidentifier():
        name = "".join(c if c.isalnum() else "_" for c in path.stem) or "mean"
        raise LabError(f"{str(file)!r} is not a name of a program. Choose one such as lab.script('{name}.py').")
    if path.stem in HIDES:
        raise LabError(
            f"A program named {path.name} would stand in the way of Python's module {path.stem}. Choose another name: "
            f"lab.script('my_{path.name}')."
        )
    return progress.HERE / path


def _chosen(ran: Sequence[Cell], cells: Sequence[int] | None, last: int | None) -> Sequence[Cell]:
    """Choose the cells of these numbers, as they ran; or each once, of the last so many notebook's cells or of all."""
    if not ran:
        raise LabError("No cell has run on the ranks yet. Run a %%px cell first.")
    numbers = list(dict.fromkeys(cell.number for cell in ran))
    if cells is not None:
        wanted = [cells] if isinstance(cells, int) else list(cells)
        if unknown := [k for k in wanted if k not in numbers]:
            raise LabError(
                f"cells={unknown}: no such cell has run on the ranks. Take the numbers in brackets left of the cells; "
                f"those that ran are {listed([str(k) for k in numbers])}."
            )
        return [cell for cell in ran if cell.number in wanted]
    if last is not None and (not isinstance(last, int) or last < 1):
        raise LabError(f"last={last!r} is not a number of cells. Give 1 or more, such as last=2.")
    kept = once(ran)
    if last is None:
        return kept
    if set(numbers) == {0}:  # no notebook numbers them
        return kept[-last:]
    latest = sorted({cell.number for cell in kept})[-last:]
    return [cell for cell in kept if cell.number in latest]


def _theirs(text: str) -> str:
    """Say why a program is the learner's own; "" where it is as `write` left it."""
    body, ours, mark = text.rpartition(OURS)
    if ours and mark.strip() == _digest(body):
        return ""
    return "has been changed since lab.script wrote it" if ours else "was not written by lab.script"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
