"""Imports go down only, and one foreign library has one room: read from the source with `ast`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 500  # lines of a file
ROOMS = ("floor", "theory", "outcome", "grading", "content", "rank", "cluster", "plot", "show", "faces", "commands")

# What a room may import of labkit. `top` is what stands directly in labkit/, but for content.py, which is a room
# itself. rank is in no list but its own: the cluster names it in a string, so that the notebook starts without torch.
# commands stands above the top, where `__main__` names its modules in strings.
MAY_IMPORT = {
    "floor": {"floor"},
    "theory": {"theory", "floor"},
    "outcome": {"outcome", "theory", "floor"},
    "grading": {"grading", "outcome", "theory", "floor"},
    "content": {"grading", "floor"},
    "rank": {"rank", "grading", "theory", "floor"},
    "cluster": {"cluster", "grading", "outcome", "theory", "floor"},
    "plot": {"plot", "theory", "floor"},
    "show": {"show", "plot", "grading", "outcome", "theory", "floor"},
    "faces": {"faces", "show", "cluster", "plot", "content", "grading", "outcome", "theory", "floor"},
    "top": {"top", "faces", "show", "cluster", "plot", "content", "grading", "outcome", "theory", "floor"},
    "commands": {"commands", "top", "faces", "show", "cluster", "content", "grading", "outcome", "theory", "floor"},
}
# Who may import a library that has a room of its own.
ROOM_OF = {"torch": {"rank"}, "ipyparallel": {"cluster"}, "matplotlib": {"plot"}, "workbook": set(), "triton": set()}
# Rooms that import these foreign libraries at most.
ONLY = {
    "floor": set(),
    "theory": {"numpy"},
    "outcome": set(),
    "grading": {"numpy"},
    "plot": {"numpy", "matplotlib"},
}
# Where other libraries' private names are, and under which names the rest of labkit uses them.
INTERNALS = ("labkit.rank.torch_internals", "labkit.floor.kernel_internals")
SEEMS = re.compile(r"""[.'" ]_[a-zA-Z]""")  # a private name may be used
PRIVATE = re.compile(r"_(?!fields$|repr_)[a-zA-Z](\w*[^\W_])?")  # not a namedtuple's, nor what IPython calls


def room(dotted: str) -> str:
    """The room that holds a module of labkit: `labkit.plot.axes` → plot, `labkit.lab` → top."""
    parts = dotted.split(".")[1:]
    return parts[0] if parts and parts[0] in ROOMS else "top"


@cache
def imports(module: str, is_package: bool, source: str) -> list[tuple[int, str]]:
    """Every import anywhere in the source, also inside functions: (line, dotted name)."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def broken(module: str, source: str, is_package: bool = False) -> list[str]:
    """What the module imports and must not."""
    here = room(module)
    found = []
    for line, name in imports(module, is_package, source):
        library = name.split(".")[0]
        if library == "labkit":
            allowed = room(name) in MAY_IMPORT[here]
        else:
            ours = here in ROOM_OF.get(library, {here})
            allowed = ours and (here not in ONLY or library in ONLY[here] or library in sys.stdlib_module_names)
        if not allowed:
            found.append(f"{module}, line {line}: {here} must not import {name}")
    return found


def modules() -> list[tuple[str, Path]]:
    files = sorted((ROOT / "labkit").rglob("*.py"))
    return [(".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), f) for f in files]


def test_every_import_in_labkit_goes_down():
    found = [b for name, f in modules() for b in broken(name, f.read_text(), f.name == "__init__.py")]
    assert not found, "\n".join(found)


def circles(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is left of a graph once all are taken out of it that import nothing of it, or that nothing of it imports."""
    left = {module: imported - {module} for module, imported in graph.items()}
    while left:
        imported = set().union(*left.values())
        kept = {module for module, its in left.items() if its & left.keys() and module in imported}
        if len(kept) == len(left):
            break
        left = {module: left[module] & kept for module in kept}
    return left


def test_no_modules_import_each_other_in_a_circle():
    """Imports in functions and for types count too: a type that both sides need belongs below both."""
    files = dict(modules())
    graph = {
        module: {name if name in files else name.rpartition(".")[0] for _, name in found} & files.keys()
        for module, file in files.items()
        for found in [imports(module, file.name == "__init__.py", file.read_text())]
    }
    assert circles(graph) == {}


def test_a_circle_is_found_and_what_only_leads_to_it_is_not():
    graph = {"top": {"a"}, "a": {"b", "floor"}, "b": {"c"}, "c": {"a"}, "floor": set()}
    assert circles(graph) == {"a": {"b"}, "b": {"c"}, "c": {"a"}}
    assert circles(graph | {"c": set()}) == {}


NUMBERED = re.compile(r"lesson ?_?\d\d|(0\d|1[0-5])[a-f]?")  # what names one lesson


def test_no_module_of_labkit_knows_a_lesson_by_its_number():
    found = [
        f"{module}, line {node.lineno}: {node.value!r}"
        for module, file in modules()
        for tree in [ast.parse(file.read_text())]
        for specs in [[node.format_spec for node in ast.walk(tree) if getattr(node, "format_spec", None)]]
        for formats in [{id(its) for spec in specs for its in ast.walk(spec)}]  # f"{k:02}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in formats
        if NUMBERED.fullmatch(node.value)
    ]
    assert not found, "\n".join(found)


def test_no_two_time_limits_have_one_name():
    constant = re.compile(r"^([A-Z_]+) = [\d.e-]+  # (.*)", re.MULTILINE)
    names = [
        name
        for module, file in modules()
        for name, says in constant.findall(file.read_text())
        if module == "labkit.floor.time_limits" or "seconds" in says
    ]
    assert len(names) > 60
    assert [name for name, times in Counter(names).items() if times > 1] == []


def arrows() -> list[str]:
    """What each room imports, as the architecture's picture says it; the floor, under everything, left out."""
    drawn: dict[str, set[str]] = {}
    for name, file in modules():
        here = drawn.setdefault(room(name), set())
        for _, imported in imports(name, file.name == "__init__.py", file.read_text()):
            if imported.split(".")[0] == "labkit":
                here.add(room(imported))
    above = [name for name in ("commands", "top", *reversed(ROOMS[1:-1])) if drawn.get(name)]
    lines = [f"{name} → {', '.join(r for r in above if r in drawn[name] - {name})}" for name in above]
    return [line for line in lines if not line.endswith("→ ")]


def test_the_rooms_are_described_alike_where_they_are_described():
    told = re.compile(r"(\w+(?:/|\.py)) +(\w.*)")
    here, there = (
        dict(told.findall((ROOT / place).read_text(encoding="utf-8").partition("\nImports go down only")[0]))
        for place in ("labkit/__init__.py", "CONTRIBUTING.md")
    )
    assert {f"{name}/" for name in ROOMS if name != "content"} < here.keys()
    assert here.items() <= there.items()


@pytest.mark.parametrize("place", ["CONTRIBUTING.md", "labkit/__init__.py"])
def test_the_architectures_picture_is_the_one_that_the_imports_draw(place: str):
    lines = [" ".join(line.split()) for line in (ROOT / place).read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if " → " in line and line.split(" → ")[0] in ("top", *ROOMS)] == arrows()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("labkit.theory.values", "import torch"),
        ("labkit.theory.values", "def late():\n    from matplotlib import pyplot"),
        ("labkit.theory.values", "from labkit import cluster"),
        ("labkit.theory.values", "import pandas"),
        ("labkit.plot.axes", "import ipywidgets"),
        ("labkit.plot.axes", "from ..rank import comms"),
        ("labkit.cluster.start", "from labkit.rank import group"),
        ("labkit.cluster.start", "import torch.distributed as dist"),
        ("labkit.cluster.start", "from labkit import start"),
        ("labkit.rank.comms", "from labkit.cluster import launchers"),
        ("labkit.rank.comms", "import ipyparallel"),
        ("labkit.lab", "from .rank import comms"),
        ("labkit.lab", "import ipyparallel as ipp"),
        ("labkit.faces.widgets", "import matplotlib.pyplot as plt"),
        ("labkit.faces.widgets", "from labkit import lab"),
        ("labkit.floor.errors", "from labkit.theory import values"),
        ("labkit.content", "from labkit.faces import task"),
        ("labkit.show.look", "from labkit.cluster import engines"),
        ("labkit.outcome.text", "from labkit.grading import judge"),
        ("labkit.__main__", "from labkit.commands import doctor"),
        ("labkit.rank.agent", "import triton"),
    ],
)
def test_an_import_that_goes_up_or_into_the_wrong_room_is_found(module: str, source: str):
    assert len(broken(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("labkit.theory.values", "import math\nimport numpy as np\nfrom .collectives import all_reduce"),
        ("labkit.plot.axes", "from matplotlib.axes import Axes\nfrom labkit.theory import values"),
        ("labkit.rank.comms", "import torch.distributed as dist\nfrom labkit.floor.errors import LabError"),
        ("labkit.lab", "from . import cluster\nfrom .faces import task\nimport ipywidgets"),
    ],
)
def test_an_import_that_goes_down_is_allowed(module: str, source: str):
    assert broken(module, source) == []


def private(source: str) -> list[str]:
    """Every private name of another library's that the source uses, with its line: "line 3: client._send".

    A file's own are those that it defines, or that it reaches through `self`, `cls` or `super()`.
    """
    nodes = list(ast.walk(ast.parse(source)))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr)]
    own = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {node.attr for node in attributes if ast.unparse(node.value) in ("self", "cls", "super()")}
    used = [(node, [node.attr]) for node in attributes if ast.unparse(node.value) not in sys.stdlib_module_names]
    for node in nodes:
        if isinstance(node, ast.Import):
            used.append((node, [part for alias in node.names for part in alias.name.split(".")]))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            first, *parts = str(node.module).split(".")
            if first not in ("labkit", *sys.stdlib_module_names):
                used.append((node, [*parts, *(alias.name for alias in node.names)]))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "setattr", "hasattr"):
            used.append((node, [ast.unparse(node.args[1]).strip("'")]))
        elif isinstance(node, ast.Subscript) and getattr(getattr(node.value, "func", None), "id", "") == "vars":
            used.append((node, [ast.unparse(node.slice).strip("'")]))
    found = [node for node, names in used if any(PRIVATE.fullmatch(n) and n not in own for n in names)]
    return [f"line {node.lineno}: {ast.unparse(node)}" for node in sorted(found, key=lambda node: node.lineno)]


def test_other_libraries_private_names_have_one_module():
    sources = [(name, f.read_text()) for name, f in modules() if name not in INTERNALS]
    found = [f"{name}, {said}" for name, source in sources if SEEMS.search(source) for said in private(source)]
    assert not found, "\n".join(["Give it a public name in one of", *INTERNALS, *found])


@pytest.mark.parametrize(
    "source",
    [
        "from torch import _ops",
        "from torch._C import x",
        "import torch.utils._device",
        "torch._C.x",
        "client._send(x)",
        "class A:\n    def f(self): self.client._send()",
        "hasattr(stream, '_buffers')",
        "vars(torch)['_inductor']",
    ],
)
def test_a_private_name_of_another_library_is_found(source: str):
    assert len(private(source)) == 1


def test_a_files_own_private_names_are_its_own():
    own = "class A:\n    def _f(self, other: A): self._x, super()._y, other._f(), other._x, point._fields\n"
    assert private(f"{own}from labkit.theory import _x\nimport sys\nsys._getframe()\nx.__dict__\nx._repr_html_()") == []


def test_no_file_is_longer_than_its_reader_can_hold():
    """Data may be: lists of solutions that are right, or that take the least."""
    data = {"other_ways.py", "cheapest.py"}
    files = subprocess.check_output(["git", "ls-files", "-z", "*.py"], cwd=ROOT, text=True).rstrip("\0").split("\0")
    lines = {f: len((ROOT / f).read_text().splitlines()) for f in files if (ROOT / f).is_file()}
    assert {f: n for f, n in lines.items() if n > LONGEST and Path(f).name not in data} == {}


@pytest.mark.slow
def test_the_notebook_starts_without_torch():
    names = [name for name, _ in modules() if room(name) != "rank"]
    code = f"import importlib, sys; [importlib.import_module(n) for n in {names}]; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout.strip() == "False", ran.stderr or "something outside labkit.rank brings torch in"
