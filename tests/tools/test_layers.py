"""Tools import labkit and one another, never a lesson; torch is on their rank side alone, matplotlib in their plots.

Triton, which few learners have, is imported by three modules: on ranks once `open_symmetric` has found it, and in a
process of its own that compiles.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import content
from tests.test_layers import imports
from workbook import METHODS, TOOLS

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
HERE = "workbook.tools"
WITH_TRITON = [f"{HERE}.{name}" for name in ("kernels.compiled", "rank.interpreter", "rank.kernels")]
READIES_IT = f"{HERE}.rank.symmetric"  # which imports them late, and nothing else of the workbook may


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
            or (library == "triton" and module not in WITH_TRITON)
            or (module != READIES_IT and any(within(name, its) for its in WITH_TRITON))
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


def names_triton(node: ast.AST) -> bool:
    """Whether a node is Triton's name, as a module's or in a string that may be one: not in a sentence."""
    words = [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
    words += [node.id] if isinstance(node, ast.Name) else []
    return any(word.partition(".")[0] == "triton" for word in words if " " not in word and "\n" not in word)


def test_who_imports_triton_has_it_ready_first():
    """At the top of `interpreter` and `kernels`; `symmetric` asks whether it is there before it imports the first."""
    sources = {name: f.read_text() for name, f in modules()}
    named = {name for name, source in sources.items() if any(map(names_triton, ast.walk(ast.parse(source))))}
    assert READIES_IT in named
    assert named <= {READIES_IT, *WITH_TRITON}
    at_top = [node for node in ast.parse(sources[READIES_IT]).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not [node for node in at_top if "interpreter" in ast.unparse(node) or "kernels" in ast.unparse(node)]


def test_lessons_import_triton_where_a_rank_runs_them_alone():
    """The notebook reads their modules too: they stand in for `triton.jit`, and import the rest for types."""
    for file in sorted((NOTEBOOKS / "workbook").glob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert not [name for name in WITH_TRITON if name in ast.unparse(node)], file.name
                assert "triton" not in ast.unparse(node), file.name


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
        ("workbook.tools.rank.window", "import triton"),
        ("workbook.tools.kernels.races", "from triton import language"),
        ("workbook.tools.rank.window", "from workbook.tools.rank import interpreter"),
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
