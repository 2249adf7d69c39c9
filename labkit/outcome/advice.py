"""What to do about a slip that the error of a cell alone does not tell."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from labkit.floor.words import ranks
from labkit.outcome import text
from labkit.outcome.outcome import Outcome
from labkit.theory.primitives import PRIMITIVES, find

UNDEFINED = re.compile(r"name '(\w+)' is not defined")
LACKS = re.compile(
    r"(?:'(?P<type>[\w.]+)' object|module '(?P<module>[\w.]+)'|type object '[\w.]+') has no attribute '(?P<name>\w+)'"
)
NOT_A_TENSOR = re.compile(
    r"Expected parameter `\w+` of type torch\.Tensor\s+but got <class '(int|float|bool|list|tuple)'>"
)
DTYPES = re.compile(  # three ways in which torch says that the tensors of a call have two dtypes
    r"dtype\(\) == .*\((\w+) vs\. (\w+)\)|\(dtype=(\w+),.* got \w+\(dtype=(\w+),"
    r"|different dtypes\s*Found torch\.(\w+) and\s+torch\.(\w+)"
)
IN_C = {"float": "float32", "double": "float64", "int": "int32", "long": "int64"}  # what C++ calls a dtype
WATCHED = "is being modified inplace|requires grad is being used in an in-place operation"
MEMORY = "can't allocate memory"  # what torch says on a CPU, in a RuntimeError
NOT_A_MEMBER = re.compile(r"Global rank \d+ is not part of group")
MARKED = re.compile(r"^ *-+> *(\d+) (.*)$", re.MULTILINE)  # the line that raised, as IPython marks it
FUNCTIONS = {name for primitive in PRIMITIVES.values() for function in primitive.functions for name in function.names}
SILENT = FUNCTIONS - {"recv", "isend", "irecv", "batch_isend_irecv"}  # what returns None, unless it is asynchronous
OTHERS = {"ReduceOp", "P2POp", "batch_isend_irecv", "new_group", "get_rank", "get_world_size"}  # torch.distributed's
USUAL = {"np": "import numpy as np", "nn": "from torch import nn", "F": "import torch.nn.functional as F"}
CROSSING = (bool, int, float, complex, str, bytes, list, tuple, dict)  # what lab.push gives to the ranks
LAB = "lab"
METHODS = ("look", "check", "exercise", "flow", "wire", "use", "pull", "curves")  # of `lab`, which a rank has not


def advice(outcome: Outcome, anew: Collection[int], cells: Sequence[str], here: Mapping[str, Any]) -> list[str]:
    """Say what to do about the errors that a cell ended with, each thing once.

    `anew` are the ranks whose process was replaced, `cells` the sources that ran on the ranks, the last one last, and
    `here` what the notebook has under its names.
    """
    lack: dict[str, list[int]] = {}
    others: dict[str, None] = {}
    for rank, error in sorted(outcome.errors.items()):
        what = text.plain(error.evalue)
        if error.ename == "NameError" and (found := UNDEFINED.match(what)):
            lack.setdefault(found[1], []).append(rank)
        else:
            line, above = _raising(error.traceback, cells)
            others |= dict.fromkeys(hints(error.ename, what, line, above))
    told = [_undefined(name, which, set(which) <= set(anew), here) for name, which in lack.items()]
    return [*told, *others, *_memory(outcome)]


def _memory(outcome: Outcome) -> list[str]:
    """Tell which ranks were refused memory: they live on, and what they have is kept."""
    short = [r for r, e in outcome.errors.items() if e.ename == "MemoryError" or MEMORY in e.evalue]
    return [f"{ranks(short)} could not get that much memory: use smaller tensors, or fewer ranks"] * bool(short)


def _undefined(name: str, which: list[int], anew: bool, here: Mapping[str, Any]) -> str:
    """Say what to do about a name that these ranks lack."""
    if anew:
        was = "was" if len(which) == 1 else "were"
        return f"{ranks(which)} {was} started anew and may have lost {name}: run the cell that makes it again"
    if name == LAB:
        return "lab lives in the notebook: run this line in a cell of its own, without %%px"
    if name in here:
        return f"{name} lives in the notebook, and this cell ran on the ranks: {_across(name, here[name])}"
    if name in FUNCTIONS | OTHERS:
        return f"torch.distributed has it: write dist.{name}"
    if name in USUAL or name in sys.stdlib_module_names:
        return f"the ranks have not imported it: begin the cell with {USUAL.get(name, f'import {name}')}, below %%px"
    return f"if an earlier cell makes {name}, run that cell first"


def _across(name: str, value: Any) -> str:
    """Say how what the notebook has under a name comes to the ranks."""
    home = value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
    ours = home.startswith("labkit.") and not home.startswith(("labkit.theory", "labkit.rank"))
    shows = any(hasattr(value, f"_repr_{kind}_") for kind in ("html", "mimebundle"))
    if home == "labkit" or ours or (home.startswith("workbook.") and shows):
        return "run this line in a cell of its own, without %%px"
    if isinstance(value, ModuleType):
        return "import it in a %%px cell too"
    if value is None or isinstance(value, CROSSING) or type(value).__module__ == "numpy":
        return f"give it to them with lab.push({name}={name})"
    return "make or import it in a %%px cell"


def hints(ename: str, what: str, line: str, above: Sequence[str] = ()) -> Iterator[str]:
    """Yield what to do about one error that is not a missing name: of a line, and what ran on the rank before it."""
    if "NoneType" in what and ename in ("TypeError", "AttributeError") and (call := _silent(what, line, above)):
        if (primitive := find(call)) and primitive.gets:
            why, then = "what it brings is in the tensors that it was given", ", and use those after it"
        else:  # a send, a barrier
            why, then = "there is nothing in it to use or to wait for", ""
        yield f"a call of {call} returns None: {why}. Call it on a line of its own{then}"
    elif found := LACKS.match(what):
        if found["name"] in METHODS and found["module"] is None:
            yield f'that is a method of lab, in the notebook: lab.{found["name"]}("x"), in a cell without %%px'
        elif found["module"] == "torch.distributed" and (near := _near(found["name"], FUNCTIONS)):
            yield f"torch.distributed calls it {near}: write dist.{near}"
        elif found["type"] == "Tensor" and found["name"] in FUNCTIONS:
            yield f"it is a function of torch.distributed, and no method: write dist.{found['name']}(x)"
        elif (found["type"] or "").endswith("Work"):
            yield "with async_op=True a call returns a handle: call its wait(), and then use the tensor"
        elif "ReduceOp' has" in what:
            yield "write a reduction in capitals, such as dist.ReduceOp.SUM"
    elif found := NOT_A_TENSOR.search(what):
        yield f"torch.distributed moves tensors: put the {found[1]} into one, as in torch.tensor([1.0, 2.0])"
    elif found := DTYPES.search(what):
        one, other = (IN_C.get(name, name) for name in found.groups() if name)
        made = "`torch.empty_like(x)` makes room in the dtype of x, and so does `dtype=x.dtype`"
        yield f"one tensor of this call is {one}, and another {other}: {made}"
    elif NOT_A_MEMBER.match(what):
        yield "give src or dst as a rank of the world; to count within the group, write group_src=0 or group_dst=0"
    elif re.search(WATCHED, what):
        yield "autograd watches this tensor: pass `x.detach()`, which has the same memory and no gradient"
    elif "ReduceOp" in what and "incompatible function arguments" in what:
        yield "op takes one of torch's reductions: op=dist.ReduceOp.SUM, or MAX, MIN, PRODUCT"
    elif "%flow" in what or "%wire" in what or "%late" in what:
        yield "%%flow and %%late run their cell on all ranks themselves: leave out the %%px above"


def _near(name: str, names: Collection[str]) -> str:
    bare = {n.replace("_", ""): n for n in sorted(names)}
    near = get_close_matches(name.replace("_", "").lower(), bare, 1, 0.8)
    return bare[near[0]] if near else ""


def _raising(traceback: str, cells: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the line that raised, and the cells before it, of the last one what stands above that line."""
    marked, frames = MARKED.findall(text.trim(traceback)), text.lines(traceback)
    if not marked:
        return "", cells[:-1]
    number, line = marked[-1]
    if not (cells and frames and frames[-1][0]):
        return line, cells[:-1]
    return line, [*cells[:-1], "\n".join(cells[-1].splitlines()[: int(number) - 1])]


def _silent(what: str, source: str, above: Sequence[str]) -> str:
    """Find the call of torch.distributed whose None this line has used; "" where none is seen."""
    line = _statement(source)
    if line is None:
        return ""
    kept = {id(node.value) for node in ast.walk(line) if isinstance(node, (ast.Expr, ast.Assign, ast.Return))}
    for node in ast.walk(line):
        if isinstance(node, ast.Call) and id(node) not in kept and "Expected parameter" not in what and _call(node):
            return _call(node)
    for name in (node.id for node in ast.walk(line) if isinstance(node, ast.Name)):
        bound = re.compile(rf"^[ \t]*{name}[ \t]*=(?!=)(.*)$", re.MULTILINE)
        last = next((values[-1] for cell in reversed(above) if (values := bound.findall(cell))), "")
        value = _statement(last)
        if isinstance(value, ast.Expr) and isinstance(value.value, ast.Call) and _call(value.value):
            return _call(value.value)
    return ""


def _statement(line: str) -> ast.stmt | None:
    """Parse a line of code alone; None where it is a part of something longer."""
    line = line.strip()
    try:
        found = ast.parse(f"{line} pass" if line.endswith(":") else line).body
    except SyntaxError:
        return None
    return found[0] if found else None


def _call(call: ast.Call) -> str:
    """Return the function, as written, of a call of torch.distributed that returns None; "" for any other call."""
    written = ast.unparse(call.func)
    function = written.removeprefix("torch.distributed.").removeprefix("dist.")
    asynchronous = any(word.arg == "async_op" for word in call.keywords)
    return written if function in SILENT and not asynchronous else ""
