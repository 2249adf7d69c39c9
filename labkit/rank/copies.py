"""Copy the variables that a cell uses, so that it can run again and leave the learner's own as they are."""

from __future__ import annotations

import ast
import contextlib
import copy
import types
from typing import Any

import torch
import torch.distributed as dist
from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell

LARGE = 64 << 20  # bytes: copying more for every probe takes too long
SHARED = ("_io", "_thread", "builtins", "threading")  # there is one of each file, lock or generator


class Refused(Exception):
    """Why a cell cannot be run again, in words."""


def shell() -> InteractiveShell:
    """Return the engine's IPython."""
    found = get_ipython()
    assert found is not None, "only an engine calls this"
    return found


def named(codes: list[str], space: dict[str, Any]) -> list[str]:
    """List the names of the namespace that some code uses, also through the functions and classes that it names."""
    found: list[str] = []
    trees = [ast.parse(shell().transform_cell(code)) for code in codes]
    todo = [n.id for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Name)]
    while todo:
        name = todo.pop()
        if name in space and name not in found:
            found.append(name)
            value = space[name]
            functions = vars(value).values() if isinstance(value, type) else [value]
            for f in functions:
                if isinstance(f, types.FunctionType) and f.__globals__ is space:
                    todo += _names(f.__code__)
    return found


def _names(code: types.CodeType) -> list[str]:
    inner = [name for c in code.co_consts if isinstance(c, types.CodeType) for name in _names(c)]
    return [*code.co_names, *inner]


def copied(space: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Copy these names of a namespace: data copied, the learner's functions bound to the copy, modules shared."""
    new = dict(space)
    copier = _Copier(space, new)
    new.update({name: copier(space[name]) for name in names})
    return new


class _Copier:
    """Copies values so that what shared memory still does; the learner's functions see the new namespace."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        self.old, self.new = old, new
        self.memo: dict[int, Any] = {}
        self.alive: list[Any] = []  # the memo goes by id
        self.bytes = 0

    def __call__(self, value: Any) -> Any:
        if id(value) in self.memo:
            return self.memo[id(value)]
        self.alive.append(value)
        new = self._copy(value)
        self.memo[id(value)] = new
        return new

    def _copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self.bytes += value.numel() * value.element_size()
            if self.bytes > LARGE:
                raise Refused(f"the cell's variables take more than {LARGE >> 20} MiB")
            if value.requires_grad and not value.is_leaf:
                return value.detach().clone().requires_grad_()
            return copy.deepcopy(value, self.memo)
        if type(value) is list:
            return [self(v) for v in value]
        if type(value) is tuple:
            return tuple(self(v) for v in value)
        if type(value) is dict and value is not self.old:
            return {k: self(v) for k, v in value.items()}
        if isinstance(value, types.FunctionType) and value.__globals__ is self.old:
            return self._function(value)
        if isinstance(value, (type, types.ModuleType)) or getattr(value, "__self__", None) is shell():
            return value
        try:
            return copy.deepcopy(value, self.memo)
        except Exception as error:
            if type(value).__module__.split(".")[0] in SHARED or isinstance(value, dist.ProcessGroup):
                return value
            raise Refused(f"a {type(value).__name__} that the cell uses cannot be copied") from error

    def _function(self, f: types.FunctionType) -> types.FunctionType:
        cells = None if f.__closure__ is None else tuple(types.CellType() for _ in f.__closure__)
        new = types.FunctionType(f.__code__, self.new, f.__name__, f.__defaults__, cells)
        new.__kwdefaults__ = f.__kwdefaults__
        new.__dict__.update(f.__dict__)
        self.memo[id(f)] = new
        for mine, theirs in zip(cells or (), f.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a cell that is empty stays so
                mine.cell_contents = self(theirs.cell_contents)
        return new
