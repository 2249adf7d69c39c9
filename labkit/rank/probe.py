"""Run a cell again on a copy of the learner's variables, with other numbers in one of them, and see what moves.

`remember` copies, before the cell runs, the variables that its code names; `again` and `respond` run the code on
such copies only, so the learner's own stay as the cell left them. What would last beyond the variables, a file that
is written or a program that is started, happens once: a run for the picture is refused it. All ranks take the same
steps in the same order.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from IPython.utils.capture import capture_output

from labkit.rank import cell_end, guard, settings, subworld
from labkit.rank.async_cells import run_awaiting
from labkit.rank.copies import Refused, copied, named, shell
from labkit.rank.frames import MAIN, works_for_backward
from labkit.theory.values import leaves

FILE = "<ipython-input-flow>"  # the agent takes such frames for the learner's cell
SHOWN = 4096  # elements of a value that are told to the notebook
HOLDS = (torch.Tensor, np.ndarray, list, tuple, dict)  # what holds more than one value
MANY = 4_000_000  # elements of a result times runs
RUNS = 128  # stretches of one provenance in a result; more cannot be drawn

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
LASTING = {f"os.{name}" for name in ("link", "mkdir", "remove", "rename", "rmdir", "symlink", "truncate", "system")}
LASTING |= {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "os.kill", "socket.connect"}

_kept: dict[str, Any] = {}
_hooked = False  # a hook cannot be taken away again
_probing = False  # whether the cell runs again


def remember(code: str, x: str, y: str) -> dict[str, Any]:
    """Copy what `code`, `x` and `y` name, and tell what `x` holds: see `told`."""
    space = shell().user_ns
    forget()
    said = told(x)
    if "error" not in said:
        try:
            names = named([code, x, y], space)
            _kept.update(code=code, x=x, random=settings.random_states(), space=copied(space, names), names=names)
        except (Refused, SyntaxError) as error:
            _kept.update(refused=str(error))
    return said


def forget() -> None:
    """Let go of the copies, and of the groups that runs on them made."""
    _kept.clear()
    subworld.destroy_temporary()


def again(y: str) -> dict[str, Any]:
    """Run the cell once more on what it started from: tell the seconds it took, and whether `y` came out the same."""
    if "refused" in _kept:
        return _failed(Refused(_kept["refused"]))
    try:
        with _untouched():
            began = time.perf_counter()
            now = _result(y, _run(None))  # read within the time: on a GPU it is there only then
            seconds = time.perf_counter() - began
            there = _result(y, shell().user_ns)
        steady = len(there) == len(now) and all(_near(a, b) for a, b in zip(there, now, strict=True))
        return {"seconds": seconds, "steady": steady}
    except BaseException as error:
        return _failed(error)


def respond(y: str, families: list[tuple[int, int]], sources: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Run the cell for each family (rest, changed) with one source changed at a time, then with all of them.

    A source is (rank, start, stop), elements of that rank's x. Of y it returns `starts`, where stretches of
    equal response begin, and for each family `rest` and `changes` (one row a source, the last for all).
    """
    try:
        rank = dist.get_rank()
        with _untouched():
            count = len(_result(_kept["x"], _kept["space"]))
            rests, changes = [], []
            for rest, changed in families:
                levels = np.full(count, rest)
                base = _result(y, _run(levels))
                if len(base) * (len(sources) + 2) * len(families) > MANY:
                    raise Refused(f"{y} has {len(base)} elements")
                rows = []
                for source in [*sources, None]:
                    levels = np.full(count, rest)
                    if source is None:
                        levels[:] = changed
                    elif source[0] == rank:
                        levels[source[1] : source[2]] = changed
                    out = _result(y, _run(levels))
                    if len(out) != len(base):
                        raise ValueError(f"{y} changes its size with the numbers in {_kept['x']}")
                    rows.append([_change(a, b) for a, b in zip(base, out, strict=True)])
                rests.append([_number(v) for v in base])
                changes.append(rows)
        return _stretches(np.array(rests), np.array(changes))
    except BaseException as error:
        return _failed(error)


def _stretches(rests: np.ndarray, changes: np.ndarray) -> dict[str, Any]:
    """Return the responses, neighbours that are alike told once where there are many."""
    size = rests.shape[1]
    starts = list(range(size))
    if size > 64:
        differs = np.any(changes[:, :, 1:] != changes[:, :, :-1], axis=(0, 1))
        starts = [0, *(int(i) + 1 for i in np.flatnonzero(differs))]
        if len(starts) > RUNS:
            raise Refused(f"the result has {len(starts)} stretches of different origin")
    return {"starts": starts, "rest": rests[:, starts].tolist(), "changes": changes[:, :, starts].tolist()}


# -- values -----------------------------------------------------------------------------------------------------


def told(expression: str) -> dict[str, Any]:
    """Tell what an expression holds now: `size`, `groups` (lengths of a list's entries), `values`, `shape`."""
    try:
        value = eval(expression, shell().user_ns)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "size": 0, "groups": [], "values": [], "shape": None}
    if value is None:
        return {"size": 0, "groups": [], "values": [], "shape": None}
    flat = leaves(value)
    entries = list(value.values()) if isinstance(value, dict) else value
    nested = isinstance(entries, (list, tuple)) and any(isinstance(v, HOLDS) for v in entries)
    return {
        "size": len(flat),
        "groups": [len(leaves(v)) for v in entries] if nested else [len(flat)],
        "values": [v if isinstance(v, (bool, int, float, str, type(None))) else repr(v) for v in flat[:SHOWN]],
        "shape": list(value.shape) if isinstance(value, torch.Tensor) else None,
    }


def _filled(value: Any, levels: Iterator[int]) -> Any:
    """Put other numbers into a value, type for type; tensors, arrays, lists and dicts are changed in place."""
    if isinstance(value, torch.Tensor):
        new = torch.tensor([next(levels) for _ in range(value.numel())])
        with torch.no_grad():
            value.copy_(new.reshape(value.shape))
    elif isinstance(value, np.ndarray):
        value[...] = np.array([next(levels) for _ in range(value.size)]).reshape(value.shape)
    elif isinstance(value, dict):
        for k, v in value.items():
            value[k] = _filled(v, levels)
    elif isinstance(value, list):
        for i, v in enumerate(value):
            value[i] = _filled(v, levels)
    elif isinstance(value, tuple):
        return tuple(_filled(v, levels) for v in value)
    else:
        level = next(levels)
        return type(value)(level) if isinstance(value, (bool, int, float, str)) else value
    return value


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (bool, int, float)) else 0.0


def _change(before: Any, after: Any) -> float:
    """Tell by how much a leaf moved; 1 where it is not a number and became another."""
    if isinstance(before, (bool, int, float)) and isinstance(after, (bool, int, float)):
        if before == after or (before != before and after != after):
            return 0.0
        return float(after) - float(before) if before == before and after == after else 0.5  # a NaN came or went
    return float(before != after)


def _result(y: str, space: dict[str, Any]) -> list[Any]:
    """List the leaves of the result; none where this rank has none."""
    try:
        value = eval(y, space)
    except NameError:
        return []
    return [] if value is None else leaves(value)


def _near(a: Any, b: Any) -> bool:
    change = _change(a, b)
    return change == 0 or (isinstance(a, float) and abs(change) <= 1e-3 * abs(a))


# -- runs -------------------------------------------------------------------------------------------------------


def _run(levels: np.ndarray | None) -> dict[str, Any]:
    """Run the remembered code on a fresh copy, with these numbers in x; return the names as it left them."""
    space = copied(_kept["space"], _kept["names"])
    if levels is not None:
        x = _kept["x"]
        old = eval(x, space)
        new = old if old is None else _filled(old, iter(levels.tolist()))
        if new is not old:
            exec(f"{x} = _", space, {"_": new}) if not x.isidentifier() else space.update({x: new})
    settings.set_random_states(_kept["random"])
    source = shell().transform_cell(_kept["code"])
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    with capture_output():
        waits = eval(compile(source, FILE, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)
        if waits is not None:  # the code awaits something, and what was made is its coroutine
            run_awaiting(waits)
    return space


@contextlib.contextmanager
def _untouched() -> Iterator[None]:
    """Leave the random numbers as the cell left them, keep no group, and refuse what would last."""
    global _hooked, _probing
    if not _hooked:
        sys.addaudithook(_once)
        _hooked = True
    before = settings.random_states()
    _probing = True
    try:
        with subworld.temporary_groups():
            yield
    finally:
        _probing = False
        settings.set_random_states(before)


def _once(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what would last, as Python's audit hook, which is asked before each of these events."""
    lasts = event in LASTING or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING)
    if _probing and lasts and (threading.get_ident() == MAIN or works_for_backward()):
        if arguments and guard.is_board(arguments[0]):  # of a group that the cell makes: it goes with the group
            return
        raise Refused("the cell changes files or reaches other programs, and that is not done again")


def _failed(error: BaseException) -> dict[str, Any]:
    return {"error": (type(error).__name__.removeprefix("_"), str(error)), "ended": cell_end.of(error)}
