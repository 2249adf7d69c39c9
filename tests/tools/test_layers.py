"""Tools import labkit and one another, never a lesson; torch is on their rank side alone, matplotlib in their plots."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from labkit import content
from tests.test_layers import imports
from workbook import METHODS, TOOLS

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
HERE = "workbook.tools"


def within(name: str, package: str) -> bool:
    """Whether a dotted name is a package, or something in it."""
    return f"{name}.".startswith(f"{package}.")


def broken(module: str, source: str, is_package: bool = False) -> list[str]:
    """What a tool's module imports and must not."""
    on_ranks = within(module, f"{HERE}.rank")
    plots = module.rpartition(".")[2] == "plot"
    found = []
    for line, name in imports(module, is_package, source):
        library = name.split(".")[0]
        if (
            (library == "workbook" and not within(name, HERE))
            or ((library == "torch" or within(name, "labkit.rank") or within(name, f"{HERE}.rank")) and not on_ranks)
            or (library == "matplotlib" and not plots)
            or library == "ipyparallel"
            or (on_ranks and any(within(name, f"labkit.{room}") for room in ("cluster", "show", "plot")))
        ):
            found.append(f"{module}, line {line}: must not import {name}")
    return found


def modules() -> list[tuple[str, Path]]:
    files = sorted((NOTEBOOKS / "workbook" / "tools").rglob("*.py"))
    return [(".".join(f.relative_to(NOTEBOOKS).with_suffix("").parts).removesuffix(".__init__"), f) for f in files]


def test_every_import_in_a_tool_goes_down():
    found = [b for name, f in modules() for b in broken(name, f.read_text(), f.name == "__init__.py")]
    assert modules()
    assert not found, "\n".join(found)


def test_what_lessons_call_by_name_is_there():
    assert all(callable(content.tool(name)) for name in TOOLS)
    assert all(callable(content.method(name)) for name in METHODS)
    assert content.method("nothing") is None


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("workbook.tools.costs.nccl", "import torch"),
        ("workbook.tools.race.measure", "from workbook.tools.rank import race"),
        ("workbook.tools.race.measure", "def late():\n    from labkit.rank import clock"),
        ("workbook.tools.events.show", "from matplotlib import pyplot"),
        ("workbook.tools.planning.price", "from workbook import lesson15c"),
        ("workbook.tools.rank.window", "from labkit.cluster import engines"),
        ("workbook.tools.sweep.measure", "import ipyparallel"),
    ],
)
def test_an_import_that_goes_up_is_found(module: str, source: str):
    assert len(broken(module, source)) == 1


@pytest.mark.slow
def test_a_tool_is_imported_without_torch():
    names = [name for name, _ in modules() if not within(name, f"{HERE}.rank")]
    code = f"import importlib, sys; [importlib.import_module(n) for n in {names}]; print('torch' in sys.modules)"
    paths = [str(NOTEBOOKS), str(NOTEBOOKS.parent)]
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths}; {code}"], capture_output=True, text=True
    )
    assert ran.stdout.strip() == "False", ran.stderr or "something outside workbook.tools.rank brings torch in"
