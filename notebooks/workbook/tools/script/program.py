"""The learner's cells as one program that torchrun runs: their code, and what has to stand before and behind it.

What the ranks of a lab have ready is made in plain torch here; labkit is imported only where a cell uses `comms`,
`timed`, `tiny`, `footprint`, `peak` or `span`. No file is written here (`script/face.py` does).
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from labkit.floor.words import listed
from labkit.theory.cells import Cell, tree, without_replaced
from labkit.theory.definitions import bound
from labkit.theory.primitives import PRIMITIVES, find

GLOO = """\
if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:  # all ranks on this machine: Gloo keeps to loopback
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
dist.init_process_group("gloo")  # torchrun has set in the environment who this rank is and where all meet
rank, world_size = dist.get_rank(), dist.get_world_size()"""
NCCL = """\
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)  # torchrun has set who this rank is, and where all meet
rank, world_size = dist.get_rank(), dist.get_world_size()"""
AGAIN = {  # what a cell may bind, and the next cell finds as it was
    "rank": "rank = dist.get_rank()",
    "world_size": "world_size = dist.get_world_size()",
}
WORKBOOKS = {
    "comms": "from labkit.rank import comms",
    "footprint": "from labkit.rank.footprint import footprint",
    "peak": "from labkit.rank.memory import peak",
    "tiny": "from labkit.rank import tiny",
    "span": "from labkit.rank.spans import span",
    "timed": "from labkit.rank.clock import timed",
}
SHOW = '''\


def {show}(value):
    """Print what a notebook shows under a cell that ends in an expression."""
    if value is not None:
        print(repr(value))
'''
END = """
dist.destroy_process_group()
# Python is not taken apart: a thread of Gloo that an optimizer, a mesh or a name of a group still holds could abort it.
sys.stdout.flush()
os._exit(0)
"""
FAILED = "it did not run to its end on all its ranks"
UNKNOWN = "its end was not waited for (run %pxresult first)"


@dataclass(frozen=True)
class Program:
    """A program's text, the cells in it, and those left out, each with why."""

    text: str
    cells: Sequence[Cell]
    left_out: Sequence[tuple[Cell, str]]


def program(cells: Sequence[Cell], n: int, backend: str, file: str) -> Program:
    """Write the program of these cells, in this order, for `n` ranks.

    Left out are cells that did not run to their end, and what is not plain Python.
    """
    found = [(cell, _why_not(cell)) for cell in cells if cell.body.strip()]
    good = without_replaced([cell for cell, why in found if not why])
    left = [(cell, why) for cell, why in found if why]
    nodes = [node for cell in good for node in ast.walk(tree(cell.body))]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {name for node in nodes if isinstance(node, ast.stmt) for name in bound(node)}
    show = next(name for name in ("show", "show_value", "print_value") if name not in names)
    parts = [_part(cell, n, show, names) for cell in good]
    future = sorted({ast.unparse(node) for node in nodes if _is_future(node)})
    texts = [_about(file, n, good, left), *(f"{line}\n" for line in future), _head(nodes, names, backend)]
    if any(f"{show}(" in part for part in parts):
        texts.append(SHOW.format(show=show))
    text = "\n".join([*texts, *(f"\n{part}" for part in parts), END])
    compile(text, file, "exec", dont_inherit=True)  # what has been put together is Python
    return Program(text, good, left)


def command(file: str, n: int) -> str:
    """Return the command that runs a program, and puts the rank that prints it before each line."""
    return f"torchrun --nproc-per-node {n} --tee 3 {shlex.quote(file)}"


def _why_not(cell: Cell) -> str:
    """Say why a cell cannot be in the program; empty where it can."""
    if cell.well is not True:
        return UNKNOWN if cell.well is None else FAILED
    try:
        compile(cell.body, "cell", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        if cell.origin == "lab.push":
            return f"the value of {cell.body.split()[0]} came from the notebook (make it in a %%px cell)"
        if _awaits(cell.body):
            return "it awaits outside of an async def, as only notebooks can"
        ipython = next((s for line in cell.body.splitlines() if (s := line.strip()).startswith(("%", "!"))), "")
        return f"{ipython.split()[0]} is IPython's, not Python's" if ipython else "it is not plain Python"
    return ""


def _awaits(body: str) -> bool:
    """Tell whether the code is Python where IPython runs it, which lets it await anywhere."""
    try:
        compile(body, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _about(file: str, n: int, cells: Sequence[Cell], left: Sequence[tuple[Cell, str]]) -> str:
    """Write the program's docstring: how to run it, and what it is made of."""
    numbers = list(dict.fromkeys(f"[{cell.number}]" for cell in cells if cell.number))
    which = f"Cell{'s' * (len(numbers) > 1)} {listed(numbers)} of a notebook" if numbers else "Cells of a notebook"
    lines = [
        f'"""{which}, as a program that every rank runs.',
        "",
        f"    {command(file, n)}",
        "",
        "What the notebook ran itself, outside of its %%px cells, is not in it.",
        *(f"{cell.name[0].upper()}{cell.name[1:]} is left out: {why}." for cell, why in left),
    ]
    return "\n".join([*lines, '"""', ""])


def _head(nodes: Sequence[ast.AST], names: Collection[str], backend: str) -> str:
    """Write the imports, the group, and of what a rank of the lab has ready, what the cells use."""
    lines = ["import os", "import sys", "", "import torch", "import torch.distributed as dist"]
    lines += ["from IPython.display import display"] * ("display" in names)
    if used := [line for name, line in WORKBOOKS.items() if name in names]:
        lines += ["", "# The workbook's own: pip install it where the program runs.", *used]
    lines += ["", NCCL if backend == "nccl" else GLOO]
    if "device" in names and backend != "nccl":
        lines += ['device = torch.device("cpu")']
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for function in (f for p in PRIMITIVES.values() for f in p.functions if f.names[0] in attributes):
        for old in function.names[1:2]:
            new, since = function.names[0], ".".join(map(str, function.since))
            lines += [f'if not hasattr(dist, "{new}"):  # torch before {since}', f"    dist.{new} = dist.{old}"]
    return "\n".join(lines)


def _part(cell: Cell, n: int, show: str, names: Collection[str]) -> str:
    """Write one cell: where it came from, its code, and behind it what the lab puts right."""
    nodes = tree(cell.body)
    lines = _shown(cell.body, nodes, show).rstrip().split("\n")
    for node in filter(_is_future, nodes.body):
        lines[node.lineno - 1] = "# its import from __future__ stands at the top"
    some = sorted(set(cell.ranks))
    if some != list(range(n)):
        fixed = {k for node in ast.walk(nodes) for k in _inside_text(node)}
        lines = [line if not line.strip() or i in fixed else f"    {line}" for i, line in enumerate(lines, 1)]
        lines.insert(0, f"if rank == {some[0]}:" if len(some) == 1 else f"if rank in {tuple(some)}:")
    while not lines[0].strip():
        lines.pop(0)
    origin = re.sub(r"\s+(--targets|-t)[ =]?\S+", "", cell.origin).replace("lab.use: ", "lab.use, ")
    made = {name for node in nodes.body for name in bound(node)}
    again = [
        f"{line}  # as every cell finds it" for name, line in AGAIN.items() if name in made and line not in cell.body
    ]
    return "\n".join([f"# {cell.name}, {origin}", *lines, *again, ""])


def _shown(body: str, nodes: ast.Module, show: str) -> str:
    """Make the last line of the code print what a notebook would show."""
    last = nodes.body[-1] if nodes.body else None
    if not isinstance(last, ast.Expr) or _is_silent(last.value):
        return body
    lines = body.encode().split(b"\n")  # ast counts bytes
    start, end = last.lineno - 1, (last.end_lineno or 1) - 1
    code, rest = lines[end][: last.end_col_offset], lines[end][last.end_col_offset or 0 :]
    if rest.strip().startswith(b";"):
        return body
    opened, closed = (f"{show}((", "))") if isinstance(last.value, ast.Tuple) else (f"{show}(", ")")
    lines[end] = code + closed.encode() + rest
    lines[start] = lines[start][: last.col_offset] + opened.encode() + lines[start][last.col_offset :]
    return b"\n".join(lines).decode()


def _is_silent(value: ast.expr) -> bool:
    """Tell whether an expression leaves nothing to show: a print, or a collective that returns nothing."""
    if not isinstance(value, ast.Call):
        return False
    called = ast.unparse(value.func)
    primitive = find(called) if called.startswith("dist.") else None
    handle = called.startswith("dist.i") or any(k.arg == "async_op" for k in value.keywords)
    return called == "print" or (primitive is not None and primitive.kind != "recv" and not handle)


def _is_future(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _inside_text(node: ast.AST) -> range:
    """Find the lines that begin inside of a string, before which no blank may be put."""
    text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))
    return range(node.lineno + 1, (node.end_lineno or 0) + 1) if text else range(0)  # type: ignore[attr-defined]
