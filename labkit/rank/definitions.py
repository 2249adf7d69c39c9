"""Give a rank that was started anew the definitions that the learner's cells had made on it before it died."""

from __future__ import annotations

import ast
import builtins
import datetime
import dis
import functools
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from labkit.floor.words import listed
from labkit.rank import namespace
from labkit.rank.copies import shell
from labkit.theory.definitions import Reader, changed_inside

CONSTANTS = (
    *(int, float, complex, str, bytes, type(None), range, datetime.timedelta, torch.device, torch.dtype, torch.Size),
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, functools.partial),
)


def replay(cells: Sequence[str]) -> dict[str, list[str]]:
    """Run again, of the cells that ran on this rank, what is safe: imports, functions, classes, constants.

    `cells` are their sources, in the order in which they ran. Returns "back", the names that are defined again, and
    "lost", those that the cells had bound to anything else: tensors, models, what a call returned. What a cell has
    defined anew counts as its last cell says; `inspect.getsource` finds it there.
    """
    space = shell().user_ns
    reader = Reader()
    fate: dict[str, bool] = {}  # name → whether it is back
    for cell in cells:
        code = shell().transform_cell(cell)
        try:
            tree = ast.parse(code)
        except SyntaxError:  # then it never ran
            continue
        file = shell().compile.cache(code, 0, raw_code=cell)
        for statement in reader.read(tree):
            back = statement.safe and _run(statement.node, file, space)
            for name in statement.names:
                fate.pop(name, None)
                if not back:
                    space.pop(name, None)
                if not back or name in space:  # it may stand in a branch that was not taken, or be deleted
                    fate[name] = back
        for name in changed_inside(tree):
            space.pop(name, None)
            fate[name] = False
        namespace.put_right(space)
    names = [name for name in fate if not namespace.is_given(name)]
    return {"back": [n for n in names if fate[n]], "lost": [n for n in names if not fate[n]]}


def define(cell: str, name: str) -> str:
    """Run a cell that makes definitions; return why its function cannot be called, "" where it can."""
    space = shell().user_ns
    try:
        # The cell is cached: `inspect.getsource` finds the function there.
        compiled = compile(cell, shell().compile.cache(cell, 0, raw_code=cell), "exec", dont_inherit=True)
        exec(compiled, space)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        namespace.put_right(space)
    function = decorated(space.get(name))
    if not isinstance(function, types.FunctionType):
        return f"its cell defines no function {name}"
    lacks = [n for n in dict.fromkeys(_globals(function.__code__)) if n not in space and not hasattr(builtins, n)]
    return f"it uses {listed(lacks)}, which the ranks do not have" if lacks else ""


def drop(name: str) -> None:
    """Remove a name that `define` has given."""
    shell().user_ns.pop(name, None)


def decorated(value: Any) -> Any:
    """Return the function that a decorator such as `triton.jit` has made a value of, or the value itself."""
    inner = getattr(value, "fn", value)
    return inner if isinstance(inner, types.FunctionType) else value


def _globals(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that a function's code looks up, in the functions inside it as well."""
    yield from (i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _globals(inner)


def _run(node: ast.stmt, file: str, space: dict[str, Any]) -> bool:
    """Run one statement as IPython would; tell whether it did what a definition does."""
    try:
        compiled = shell().compile(ast.Module([node], []), file, "exec")  # type: ignore[arg-type]  # it takes a tree too
        exec(compiled, space)
    except Exception:  # it needs what is lost
        return isinstance(node, ast.Delete)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        return all(_is_constant(space.get(name)) for name in names)
    return True


def _is_constant(value: Any) -> bool:
    """Tell whether a value cannot have been changed since: an empty list may have been filled."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_constant, value))
    return isinstance(value, CONSTANTS)
