"""Canaries: what labkit takes of another library's private names is there and does what it is taken for.

@relies_on(torch_internals, "groups", "made")
def test_…(): …                  # where it fails, these names are told, with the modules of labkit that use them
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
tested: dict[str, set[str]] = {}  # a module of private names → those of its names that a test relies on


def names(module: ModuleType) -> set[str]:
    """The public names that a module defines, not those that it imports."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    found = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)}
    return found


def users(module: ModuleType) -> dict[str, set[str]]:
    """Which modules of labkit and of the workbook use each of its names."""
    own = module.__name__.rpartition(".")[2]
    found: dict[str, set[str]] = {name: set() for name in names(module)}
    for file in (*(ROOT / "labkit").rglob("*.py"), *(ROOT / "notebooks" / "workbook").rglob("*.py")):
        user = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if own in text or user == module.__name__ else ():
            if isinstance(node, ast.ImportFrom) and node.module == module.__name__:
                used = [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == own:
                used = [node.attr]
            elif isinstance(node, ast.Name) and user == module.__name__ and isinstance(node.ctx, ast.Load):
                used = [node.id]
            else:
                continue
            for name in found.keys() & set(used):
                found[name].add(user)
    return found


def relies_on(module: ModuleType, *relied: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a test that fails tell which of the module's names it is about, and who uses them."""
    tested.setdefault(module.__name__, set()).update(relied)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def canary(*args: Any, **kwargs: Any) -> None:
            try:
                test(*args, **kwargs)
            except Exception as error:
                by = users(module)
                told = [f"{module.__name__}.{name}, used by {', '.join(sorted(by[name]))}" for name in relied]
                installed = ", ".join(f"{name} {version(name)}" for name in LIBRARIES[module.__name__])
                said = f"{type(error).__name__}: {error}"
                raise AssertionError("\n".join([f"With {installed} this does not hold:", *told, said])) from error

        return canary

    return decorate


LIBRARIES = {
    "labkit.rank.torch_internals": ["torch"],
    "labkit.floor.kernel_internals": ["ipykernel", "ipyparallel", "ipywidgets"],
}
