"""Say behind the error of a cell of the notebook's own what to write instead: a `%%px` or quotes were forgotten."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from IPython.core.error import UsageError

from labkit.cluster.engines import Engines
from labkit.floor import time_limits
from labkit.theory.cells import GIVEN

MAGICS = {"px": "%%px", "flow": "%%flow x", "late": "%%late 1", "mpi": "%%mpi 4"}
NO_RANK = "Default process group has not been initialized"  # torch's words
BARE = re.compile(r"^\s*(\w+)\.(\w+)[ \t]+(\w[\w.]*)\s*$", re.MULTILINE)  # lab.look x


def watch(shell: Any, engines: Engines, lab: Any) -> None:
    """Look at every cell of the notebook that ends, for as long as the lab runs."""

    def remind(result: Any) -> None:
        if engines.state.stopped:
            shell.events.unregister("post_run_cell", remind)
            return
        error, space = result.error_in_exec or result.error_before_exec, shell.user_ns
        if isinstance(error, (UsageError, SyntaxError)):
            said = _misspelt(error, result.info.raw_cell or "", space, lab)
        elif isinstance(error, AttributeError) and type(error.obj).__module__.startswith(("labkit.", "workbook.")):
            said = _no_method(error.name or "", error.obj, type(error.obj) is type(lab))
        elif isinstance(error, (ValueError, RuntimeError)) and NO_RANK in str(error):
            said = "The notebook is not a rank, and is in no process group. Begin the cell with %%px: the ranks run it."
        elif name := missing(error, space):
            said = next(_missing(engines, name, _source(error), space, lab), "")
        else:
            return
        if said:
            print(said)

    shell.events.register("post_run_cell", remind)


def missing(error: BaseException | None, space: dict[str, Any]) -> str:
    """Return the name that a cell's own line, or a function of a cell, asked for in vain; else ""."""
    if not isinstance(error, NameError) or not error.name or error.__traceback__ is None:
        return ""
    at = error.__traceback__
    while at.tb_next is not None:
        at = at.tb_next
    return error.name if at.tb_frame.f_globals is space else ""


def _missing(engines: Engines, name: str, source: ast.Module, space: dict[str, Any], lab: Any) -> Iterator[str]:
    """Yield what to write where the notebook lacks a name, the best first."""
    there = name in GIVEN or _has(engines, name)
    lives = f"{name} lives on the ranks" if there else ""
    calls = [node for node in ast.walk(source) if isinstance(node, ast.Call)]
    asked = [call for call in calls if type(space.get(_owner(call))) is type(lab)]
    for call in asked:
        if isinstance(call.func, ast.Attribute) and any(_reads(argument, name) for argument in call.args):
            why = lives or f"{ast.unparse(call.func)} takes what the ranks should read as text"
            if call.func.attr == "flow" and len(call.args) == 1:
                yield f"{why}. Begin a cell with %%flow {ast.unparse(call.args[0])} to follow it through that cell."
            yield f"{why}. Put quotes around it: {_quoted(call)}."
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in dir(lab) and _reads(call.func.value, name):
            of = ast.Constant(ast.unparse(call.func.value))
            called = next((its for its, value in space.items() if type(value) is type(lab)), "lab")
            yield f"{lives or f'There is no {name}'}. To ask the ranks, write {called}.{call.func.attr}({_text(of)})."
    if there and any(_reads(word.value, name) for call in asked for word in call.keywords):
        yield f'{lives}, and the notebook has none. Fetch it first, a value per rank: {name} = lab.pull("{name}").'
    if there and asked:
        yield f"{lives}, and this cell ran in the notebook. Move its line into a cell that begins with %%px."
    if there:
        yield f"{lives}, and this cell ran in the notebook. Begin it with %%px."
    if name in dir(lab) and any(ast.unparse(call.func) == name for call in calls):
        yield f"{name} is a method of lab: write lab.{name}(…)."


def _no_method(name: str, of: Any, is_lab: bool) -> str:
    """Say what to write where the lab, or something that it has returned, lacks an attribute of this name."""
    if is_lab and name.lower() in MAGICS:
        return f"Begin a cell with {MAGICS[name.lower()]} for that."
    known = [its for its in dir(of if is_lab else type(of)) if not its.startswith("_")]
    if near := get_close_matches(name.lower(), known, 1):
        return f"Did you mean {'lab' * is_lab}.{near[0]}?"
    return "help(lab) lists what it can do." * is_lab


def _misspelt(error: BaseException, cell: str, space: dict[str, Any], lab: Any) -> str:
    """Say what to write where a cell's magic, or a call of the lab's, is not spelt as Python and IPython want it."""
    for owner, method, of in BARE.findall(cell):
        if type(space.get(owner)) is type(lab) and isinstance(error, SyntaxError) and method in dir(lab):
            if method in MAGICS:
                return f"Begin a cell with %%{method} {of}; what the ranks should run stands below."
            return f'Write it with brackets and quotes: {owner}.{method}("{of}").'
    found = re.search(r"^([ \t]*)(%+)([ \t]*)(\w+)", cell, re.MULTILINE)
    near = get_close_matches(found[4].lower(), MAGICS, 1, 0.7) if found else []
    if not found or not near:
        return ""
    if (found[2], found[3], found[4]) != ("%%", "", near[0]):
        return f"Write {MAGICS[near[0]]}: two %, no blank behind them, small letters." * ("not found" in str(error))
    if found[1] or cell[: found.start()].strip():
        return f"Let %%{near[0]} be the first line of its cell, at the very left."
    if re.search(r"unrecognized arguments: (?!--(?!rank))", str(error)):
        return "Code for the ranks stands below the line of %%px; ranks are chosen with %%px --targets 0,2."
    return ""


def _source(error: BaseException | None) -> ast.Module:
    """Return the statement that raised, as a tree; empty where its source is not known."""
    at = error.__traceback__ if error is not None else None
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None:
        return ast.Module([], [])
    try:
        tree = ast.parse("".join(linecache.getlines(at.tb_frame.f_code.co_filename)))
    except SyntaxError:
        return ast.Module([], [])
    around = [s for s in tree.body if s.lineno <= at.tb_lineno <= (s.end_lineno or s.lineno)]
    return ast.Module(around, [])


def _owner(call: ast.Call) -> str:
    """Return the name whose method is called; "" for any other call."""
    return call.func.value.id if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) else ""


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def _quoted(call: ast.Call) -> str:
    """Write a call with its arguments as text: what stands there as text or as a number already stays."""
    given = [_text(a if isinstance(a, ast.Constant) else ast.Constant(ast.unparse(a))) for a in call.args]
    words = [ast.unparse(word) for word in call.keywords]
    return f"{ast.unparse(call.func)}({', '.join([*given, *words])})"


def _text(constant: ast.Constant) -> str:
    """Write a constant as the workbook does: text in double quotes where it has none itself."""
    value = constant.value
    return f'"{value}"' if isinstance(value, str) and not set(value) & {'"', "\\", "\n"} else repr(value)


def _has(engines: Engines, name: str) -> bool:
    """Tell whether the ranks have a variable of this name, as far as they can answer."""
    if engines.dead() or engines.lost():
        return False
    asked = dict.fromkeys(range(engines.n), (name,))
    outcome = engines.call("labkit.rank.function.describe", asked, time_limits.NAME_FOUND)
    return outcome.well and any(what["state"] != "missing" for what in outcome.answers.values())
