"""The workbook's notebooks, each read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import nbformat

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = {path.stem.split("-")[0]: path for path in sorted(FOLDER.glob("*.ipynb"))}  # by lesson: 02, capstone


@cache
def cells(path: Path) -> tuple[nbformat.NotebookNode, ...]:
    """Return a notebook's cells, which are everybody's: do not change them."""
    return tuple(nbformat.read(path, as_version=4).cells)


def sources(path: Path, kind: str = "") -> list[str]:
    """Return the text of all cells, or of those of one kind: "code" or "markdown"."""
    return [cell.source for cell in cells(path) if kind in ("", cell.cell_type)]
