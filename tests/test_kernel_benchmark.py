"""The benchmark of interpreted kernels says that its figures are no kernel's; no test measures a time."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def kernels(monkeypatch):
    """Import it as `python benchmarks/kernels.py` does."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("kernels")


def test_interpreted_kernels_stand_beside_gloo_and_shared_memory_with_ratios_and_no_target(kernels):
    seconds = {kernels.GLOO: 1.0, kernels.MINE: 0.5, kernels.ONE: 50.0, kernels.TWO: 100.0}
    told = {kernels.key(name, size): [each] for name, each in seconds.items() for size in kernels.SIZES}
    done = {ranks: [told] for ranks in kernels.RANKS}
    rows = kernels.rows(done)
    assert {row.met() for row in rows} == {None}
    assert len(rows) == 16
    said = kernels.section({}, done, ["round 1, 2 ranks: not installed"])
    assert "| 4 B | 1e+03 / 1e+03 ms | 500 / 500 ms |" in said
    assert "- round 1, 2 ranks: not installed" in said
    assert [row[0] for row in kernels.board(4, [])] == ["S, 4 ranks", "---", "4 B", "1 KiB", "16 KiB", "128 KiB"]


def test_the_results_say_that_an_interpreters_time_is_no_kernels_time(kernels):
    results = (FOLDER / "RESULTS.md").read_text(encoding="utf-8")
    section = results.split("<!-- kernels: begin -->")[1].split("<!-- kernels: end -->")[0]
    assert section.startswith(f"\n## {kernels.TITLE}")
    assert "an interpreter's time is no kernel's time" in section
    assert not [name for name in kernels.NAMES.values() if name not in section]
