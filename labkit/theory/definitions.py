"""Which statements of a learner's cells make definitions and may run again: read from the source, nothing is run here.

Imports, functions and classes may, and constants, whose names are in capitals, where making them calls nothing but
what is known to be harmless. Any other assignment makes a variable, which a rank that is started anew has lost.
What communicates, writes, prints or computes for long is a call, and calls are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

# What may be called while a definition is made: each only wraps a function, names a type or makes a small constant.
HARMLESS = {
    "abc.abstractmethod",
    "collections.namedtuple",
    "contextlib.contextmanager",
    "dataclasses.dataclass",
    "dataclasses.field",
    "datetime.timedelta",
    "enum.auto",
    "functools.cache",
    "functools.lru_cache",
    "functools.partial",
    "functools.wraps",
    "torch.autograd.function.once_differentiable",
    "torch.compile",
    "torch.device",
    "torch.enable_grad",
    "torch.inference_mode",
    "torch.no_grad",
    "triton.jit",
    *("bool", "classmethod", "float", "frozenset", "int", "len", "max", "min", "property", "range", "staticmethod"),
    *("str", "super", "tuple"),
}
GIVEN = {"torch": "torch", "dist": "torch.distributed"}  # what a rank has imported before the first cell
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
PLAIN = (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Set, ast.Dict)
SUMS = (ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.Starred)


@dataclass(frozen=True)
class Statement:
    """One statement of a cell: the names that it binds or deletes, and whether it may run again."""

    node: ast.stmt
    names: tuple[str, ...]
    safe: bool


class Reader:
    """Read the cells of one rank in their order: what a name stands for in one depends on those before.

    >>> [s.safe for s in Reader().read(ast.parse("import math\\nx = 1\\nLR = 0.1\\ndef f(): return x"))]
    [True, False, True, True]
    """

    def __init__(self) -> None:
        self._origin = dict(GIVEN)  # a name → what it was imported as
        self._harmless: set[str] = set()  # the learner's own functions that only make definitions

    def read(self, cell: ast.Module) -> Iterator[Statement]:
        """Yield the statements of one cell, in their order."""
        for node in cell.body:
            safe = self._statement(node) and all(map(str.isupper, self._assigned(node)))
            yield Statement(node, tuple(dict.fromkeys(bound(node))), safe)
            self._remember(node)

    def _remember(self, node: ast.stmt) -> None:
        for name in bound(node):
            self._origin.pop(name, None)
            self._harmless.discard(name)
        if isinstance(node, ast.Import):
            self._origin |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            self._origin |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.FunctionDef) and not node.decorator_list and all(map(self._statement, node.body)):
            self._harmless.add(node.name)

    def _statement(self, node: ast.AST) -> bool:
        """Tell whether a statement only makes definitions."""
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Pass():
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                made = [*node.args.defaults, *(d for d in node.args.kw_defaults if d), *_annotations(node)]
                return all(map(self._value, made)) and all(map(self._call, node.decorator_list))
            case ast.ClassDef():
                made = [*node.bases, *(k.value for k in node.keywords)]
                calls = all(map(self._call, node.decorator_list))
                return calls and all(map(self._value, made)) and all(map(self._statement, node.body))
            case ast.Assign():
                return all(map(_is_name, node.targets)) and self._value(node.value)
            case ast.AnnAssign():
                return _is_name(node.target) and self._value(node.annotation) and self._value(node.value)
            case ast.Expr():
                return isinstance(node.value, ast.Constant)  # a docstring, an ellipsis
            case ast.Return():
                return self._value(node.value)
            case ast.Delete():
                return all(map(_is_name, node.targets))
            case ast.If():
                return self._value(node.test) and all(map(self._statement, [*node.body, *node.orelse]))
            case ast.Try():
                parts = [*node.body, *(s for h in node.handlers for s in h.body), *node.orelse, *node.finalbody]
                return all(map(self._statement, parts))
        return False

    def _assigned(self, node: ast.AST) -> set[str]:
        """Find the names that a statement gives a value where it stands, but for functions and imported names."""
        parts = [child for child in ast.iter_child_nodes(node) if not isinstance(child, SCOPES)]
        imported = {name for n in ast.walk(node) if isinstance(n, (ast.Import, ast.ImportFrom)) for name in bound(n)}
        match node:
            case ast.Assign(value=ast.Lambda()) | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return set()
            case ast.Assign(value=ast.Call(func=made)) if self._name(made) == "functools.partial":
                return set()
            case ast.Name(ctx=ast.Store()):
                return {node.id}
        return {name for part in parts for name in self._assigned(part)} - imported

    def _value(self, node: ast.AST | None) -> bool:
        """Tell whether an expression may be evaluated: it calls nothing that is not harmless."""
        match node:
            case None:
                return True
            case ast.Lambda():
                return all(map(self._value, [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]))
            case ast.Call():
                return self._call(node.func) and all(map(self._value, [*node.args, *(k.value for k in node.keywords)]))
        known = isinstance(node, (*PLAIN, *SUMS, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context))
        return known and all(map(self._value, ast.iter_child_nodes(node)))

    def _call(self, node: ast.expr) -> bool:
        """Tell whether what an expression stands for may be called; a decorator is."""
        if isinstance(node, ast.Call):  # @lru_cache(maxsize=None) calls what it returns
            return self._value(node)
        return self._name(node) in HARMLESS or (isinstance(node, ast.Name) and node.id in self._harmless)

    def _name(self, node: ast.expr) -> str:
        """Return the name that an expression was imported as: "functools.partial"."""
        first, *rest = ast.unparse(node).split(".")
        return ".".join([self._origin.get(first, first), *rest])


def bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds or deletes where it stands, not inside the functions that it defines."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Name(ctx=ast.Store() | ast.Del()):
            yield node.id
        case ast.ImportFrom(module="__future__"):
            return
        case ast.Import() | ast.ImportFrom():
            yield from (a.asname or a.name.split(".")[0] for a in node.names if a.name != "*")
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name:
            yield node.name
    if not isinstance(node, SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from bound(child)


def only(cell: str, name: str) -> str:
    """Blank the lines of a cell that make no definition; the function of this name stays in any case.

    >>> only("x = 2\\ndef f():\\n    return 3\\nprint(f())", "f").split("\\n")
    ['', 'def f():', '    return 3', '']
    """
    try:
        statements = list(Reader().read(ast.parse(cell)))
    except SyntaxError:  # running it will say so
        return cell
    lines = cell.splitlines()
    for s in statements:
        if not s.safe and not (isinstance(s.node, ast.FunctionDef) and s.node.name == name):
            first = min([s.node.lineno, *(d.lineno for d in getattr(s.node, "decorator_list", []))])
            last = s.node.end_lineno or first
            lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(lines)


def changed_inside(cell: ast.Module) -> set[str]:
    """Find the names that functions of a cell declare `global`: they may hold anything by now."""
    return {name for node in ast.walk(cell) if isinstance(node, ast.Global) for name in node.names}


def _annotations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    a = node.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]
    return [*(x.annotation for x in every if x.annotation), *([node.returns] if node.returns else [])]


def _is_name(node: ast.AST) -> bool:
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(_is_name, node.elts))
    return isinstance(node, ast.Name)
