"""A lesson's code cells, run on the ranks of a test, the workbook's functions in place of the stubs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import nbformat
import pytest

import labkit
from labkit import CellError
from labkit.content import exercises
from tests.notebooks import NOTEBOOKS, cells

# On a GPU an optimizer steps all its tensors at once, unless told not to, which plain tensors beside DTensors cannot.
STEP_AS_ON_A_GPU = """
from torch.optim import optimizer as _torchs

_torchs._get_foreach_kernels_supported_devices = lambda: ["cpu"]
"""
NOT_HERE = ("lab = start(", "lab.stop(", "lab.exercise(", "lab.check(", "lab.progress(")


def code(lesson: str) -> list[nbformat.NotebookNode]:
    """The code cells of a lesson: "12b"."""
    return [cell for cell in cells(NOTEBOOKS[lesson]) if cell.cell_type == "code"]


def beginning(lesson: str, *beginnings: str) -> list[str]:
    """The lesson's cells on ranks that begin so, without their magic, in the lesson's order."""
    found = [cell.source.removeprefix("%%px\n") for cell in cells(NOTEBOOKS[lesson])]
    chosen = [source for source in found if source.startswith(beginnings)]
    assert len(chosen) == len(beginnings)
    return chosen


def run_cells(lab: labkit.Lab, lesson: str, notebook: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Each cell that runs on ranks, in its order, and what every rank has printed in it ("" where it did not run).

    With `notebook`, cells of the notebook's own process run as well; questions are asked there, and nobody answers.
    A cell that the lesson expects to raise must raise, and is not among the others. Optimizers step as on a GPU.
    """
    lab.run(STEP_AS_ON_A_GPU)
    mine = {e.stub: e.answer for e in exercises.every().values() if e.lesson == lesson}
    space: dict[str, Any] = {"lab": lab, "Predict": labkit.Predict, "Choose": labkit.Choose, "display": str}
    written = set()
    for cell in code(lesson):
        tags = cell.metadata.get("tags", ())
        source = cell.source
        if "exercise" in tags and source in mine:
            written.add(source)
            source = mine[source]
        magic, _, body = source.partition("\n")
        if magic.startswith("lab.use("):
            for name in ast.literal_eval(f"[{magic.removeprefix('lab.use(').removesuffix(')')}]"):
                lab.run(exercises.find(name).answer.removeprefix("%%px\n"))
        elif magic.startswith(("%%px", "%%flow ")):
            ranks = [0] if magic == "%%px --targets 0" else list(range(lab.n))
            if "raises-exception" in tags:
                with pytest.raises(CellError):
                    lab.run(body, ranks=ranks)
            else:
                printed = dict(zip(ranks, lab.run(body, ranks=ranks), strict=True))
                yield body, [printed.get(rank, "") for rank in range(lab.n)]
        elif notebook and not magic.startswith("%%") and not any(f"\n{start}" in f"\n{source}" for start in NOT_HERE):
            exec(source, space)
    assert written == set(mine), "every exercise has its cell"
