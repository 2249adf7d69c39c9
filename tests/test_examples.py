"""The examples in docstrings are true, wherever they need no ranks."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import workbook

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
    "workbook.tools.rank.symmetric",
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
    methods = {f"workbook.tools.{where.partition(':')[0]}" for where in workbook.METHODS.values()}  # of a lab
    return [name for name in names if name not in {*ON_RANKS, *methods}]


def test_every_example_gives_what_it_says(subtests):
    found = modules()
    assert found
    for module in found:
        with subtests.test(module):
            told = doctest.testmod(importlib.import_module(module))

            assert told.attempted > 0
            assert told.failed == 0
