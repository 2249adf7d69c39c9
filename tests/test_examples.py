"""The examples in docstrings are true, wherever they need no ranks."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ON_RANKS = (
    "labkit.faces.drawing",
    "labkit.lab",
    "labkit.starting",
    "labkit.show.last",
    "labkit.faces.task",
    "workbook.tools.mpi",
    "labkit.rank.clock",
    "labkit.rank.comms",
    "workbook.tools.rank.link",
    "workbook.tools.rank.shared",
    "labkit.rank.spans",
    "workbook.tools.rank.window",
    "labkit.show.timeline",
    "labkit.show.wire",
)  # tested in tests/live


def modules() -> list[str]:
    """Every module that has an example for the notebook's own process."""
    files = [*(ROOT / "labkit").rglob("*.py"), *(ROOT / "notebooks/workbook/tools").rglob("*.py")]
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__").removeprefix("notebooks.")
        for file in sorted(files)
        if ">>> " in file.read_text("utf-8")
    ]
    return [name for name in names if name not in ON_RANKS]


def test_every_example_gives_what_it_says(subtests):
    found = modules()
    assert found
    for module in found:
        with subtests.test(module):
            told = doctest.testmod(importlib.import_module(module))

            assert told.attempted > 0
            assert told.failed == 0
