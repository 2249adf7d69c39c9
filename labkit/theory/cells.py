"""The cells that were sent to ranks, and which of them make the program of a notebook: each once, as it was last."""

from __future__ import annotations

import ast
import builtins
import dis
import re
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from labkit.theory.definitions import Reader, bound

# What every rank has ready: `labkit.rank.agent.prepare` puts it there.
GIVEN = frozenset(
    ("torch", "dist", "rank", "world_size", "device", "comms", "timed", "tiny", "footprint", "peak", "span")
)
SPELT = 2000  # characters that a value's spelling may have


@dataclass
class Cell:
    """Code that was sent to ranks; a comment in its first line names the magic, or the lab's method, that it came by.

    `number` is that of the notebook's cell, in brackets left of it, or 0; a notebook's cell may send several. `key` is
    the same when the same cell runs again, and empty where that is unknown. `well` says whether all its ranks have run
    it to its end, None while that is unknown. `sent` are the messages that it went in.
    """

    code: str
    ranks: Sequence[int]
    number: int = 0
    key: str = ""
    well: bool | None = None
    sent: Sequence[str] = ()

    @property
    def origin(self) -> str:
        """The line of its magic, or the name of the lab's method that it came from.

        >>> Cell("# %%flow x\\ndist.all_reduce(x)", [0, 1]).origin
        '%%flow x'
        """
        first = self.code.partition("\n")[0]
        return first.removeprefix("# ") if first.startswith(("# %%", "# lab.")) else "lab.run"

    @property
    def body(self) -> str:
        """The code without the comment that names its origin."""
        return self.code if self.origin == "lab.run" else self.code.partition("\n")[2]

    @property
    def name(self) -> str:
        """The name that a learner knows it by: "cell [3]"."""
        return f"cell [{self.number}]" if self.number else "a cell"


def makes_group(code: str) -> bool:
    """Tell whether a cell makes a process group of all ranks by hand, as far as its text shows.

    >>> makes_group("dist.init_process_group('gloo')"), makes_group("x = 1  # as init_process_group left it")
    (True, False)
    """
    return bool(re.search(r"^[^#]*\binit_process_group\b", code, re.MULTILINE))


def assignment(name: str, value: object) -> str:
    """Spell a line of Python that makes a value anew; where Python cannot spell it, one that is not Python.

    >>> assignment("lr", 0.1), assignment("x", object)
    ('lr = 0.1', 'x = …')
    """
    spelt = repr(value)
    try:
        well = len(spelt) <= SPELT and ast.literal_eval(spelt) == value
    except (SyntaxError, ValueError):
        well = False
    return f"{name} = {spelt}" if well is True else f"{name} = …"


def once(cells: Iterable[Cell]) -> list[Cell]:
    """List each cell once, as it ran well last if it ever did, in the order in which they ran.

    Where a cell ran again, it keeps its first place, or comes behind the first cell that makes what it needs now.
    """
    cells = list(cells)
    runs: dict[object, dict[int, list[Cell]]] = {}
    for i, cell in enumerate(cells):
        runs.setdefault(cell.key or i, {}).setdefault(cell.number, []).append(cell)
    last = [next((r for r in reversed(m.values()) if all(c.well for c in r)), [*m.values()][-1]) for m in runs.values()]
    waiting = [cell for run in last for cell in run]
    if len(waiting) == len(cells):
        return waiting
    order: list[Cell] = []
    there = GIVEN | set(dir(builtins))
    while waiting:
        lacks = [_needs(cell.body) - there for cell in waiting]
        makes = [_makes(cell.body) for cell in waiting]
        free = (i for i, names in enumerate(lacks) if not any(names & m for j, m in enumerate(makes) if j != i))
        order.append(waiting.pop(next(free, 0)))
        there |= _makes(order[-1].body)
    return order


def without_replaced(cells: Sequence[Cell]) -> list[Cell]:
    """Leave out what only defines names that a later cell defines anew before any cell has used them."""
    return [cell for i, cell in enumerate(cells) if not _is_replaced(cell, cells[i + 1 :])]


def lacking(cells: Sequence[Cell], ran: Iterable[Cell]) -> dict[str, Cell]:
    """Map the names that these cells look up and none of them makes to the last of the cells that `ran` that does.

    >>> x, y = Cell("x = rank", [0]), Cell("y = x + 1", [0])
    >>> lacking([y], [x, y]) == {"x": x}
    True
    """
    there = GIVEN.union(*(_makes(cell.body) for cell in cells))
    codes = [compile(tree(cell.body), "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT) for cell in cells]
    wanted = {name for code in codes for name in _looked_up(code)} - there
    makers = {name: cell for cell in ran for name in _makes(cell.body)}
    return {name: makers[name] for name in sorted(wanted & makers.keys())}


def _is_replaced(cell: Cell, later: Sequence[Cell]) -> bool:
    defines = _defines(cell.body)
    for other in later if defines else ():
        if defines <= _defines(other.body) and set(other.ranks) >= set(cell.ranks):
            return True
        if defines & set(re.findall(r"\w+", other.body)):
            return False
    return False


def tree(body: str) -> ast.Module:
    """Parse a cell's statements; none where it is not plain Python."""
    try:
        return ast.parse(body)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _makes(body: str) -> set[str]:
    return {name for node in tree(body).body for name in bound(node)}


def _defines(body: str) -> set[str]:
    """Find the names of a cell that does nothing but define functions, classes and constants; none for any other."""
    statements = list(Reader().read(tree(body)))
    return {name for s in statements for name in s.names} if all(s.safe for s in statements) else set()


def _needs(body: str) -> set[str]:
    """Find the names that a cell reads before it binds them, but for those that only its functions read."""
    own: set[str] = set()
    needs: set[str] = set()
    for statement in tree(body).body:
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            needs |= _read(statement) - own
        own |= set(bound(statement))
    return needs


def _looked_up(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that code reads, in the functions inside it as well."""
    yield from (i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_NAME", "LOAD_GLOBAL"))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _looked_up(inner)


def _read(statement: ast.stmt) -> set[str]:
    nodes = list(ast.walk(statement))
    inner = {a.arg for n in nodes if isinstance(n, ast.arguments) for a in (*n.posonlyargs, *n.args, *n.kwonlyargs)}
    loops = [n.target for n in nodes if isinstance(n, (ast.comprehension, ast.For, ast.NamedExpr))]
    inner |= {name.id for target in loops for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - inner
