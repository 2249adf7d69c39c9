"""Read a notebook as its code cells: their number, the process they run in, their code without the magic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat

# The tag of a cell that ends otherwise with NCCL than is committed, where Gloo ran: in an error, in none, in another.
DIFFERS = "differs-with-nccl"
ON_RANKS = ("%%px", "%%flow", "%%late")
OPTIONAL = "## Optional: "
EXTRA = (OPTIONAL, "## Exercises")  # how the heading of a section begins that learners may leave out: it opens folded
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Code:
    """One code cell: `number` is what JupyterLab shows as [n], `index` counts the text cells too, from 0."""

    number: int
    index: int
    source: str
    tags: tuple[str, ...]

    @property
    def magic(self) -> str:
        """The cell magic's line, or an empty string: `"%%px --targets 0"`."""
        first = self.source.lstrip("\n").split("\n", 1)[0]
        return first.strip() if first.startswith("%%") else ""

    @property
    def on_ranks(self) -> bool:
        """True for a cell that runs on the ranks, False for one of the notebook's own process."""
        return self.magic.split(" ")[0] in ON_RANKS

    @property
    def body(self) -> str:
        """The code without its cell magic, of which an empty line is left: lines keep their numbers."""
        if not self.magic:
            return self.source
        above, below = self.source.split(self.magic, 1)
        return above + below


def code_cells(nb: nbformat.NotebookNode) -> list[Code]:
    """The notebook's code cells in order, numbered from 1."""
    found = [(index, cell) for index, cell in enumerate(nb.cells) if cell.cell_type == "code"]
    return [
        Code(number, index, cell.source, tuple(cell.metadata.get("tags", ())))
        for number, (index, cell) in enumerate(found, start=1)
    ]


def on_the_way(cells: Sequence[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The cells that every learner takes: those outside *Exercises* and of no section marked as optional.

    A section begins with a text cell whose first line is its heading, "## …", and ends where the next one begins.
    """
    kept, taken = [], True
    for cell in cells:
        if cell.cell_type == "markdown" and re.search(r"^## ", cell.source, re.MULTILINE):
            taken = not cell.source.startswith(EXTRA)
        if taken:
            kept.append(cell)
    return kept


def notebook_paths(arguments: list[str]) -> list[Path]:
    """The notebooks named, those in the folders named, or all of the workbook's."""
    paths = []
    for path in map(Path, arguments or [str(ROOT / "notebooks")]):
        inside = sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]
        paths += [p for p in inside if ".ipynb_checkpoints" not in p.parts]
    return paths


def named(path: Path, cell: Code | None, message: str) -> str:
    """One line that says where and what: `notebooks/01-meet-the-ranks.ipynb: cell [3] has no output`."""
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{path}: {f'cell [{cell.number}]' if cell else 'notebook'} {message}"
