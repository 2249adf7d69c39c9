"""Find a learner's function on a rank, tell it from an empty one, and run it on an input among the first n ranks."""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import functools
import inspect
import io
import linecache
import os
import textwrap
import traceback
from collections.abc import Callable, Iterator
from time import monotonic
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from IPython.core.displaypub import CapturingDisplayPublisher

from labkit.floor.source_lines import is_cell
from labkit.grading import gradients, judge
from labkit.rank import agent, cell_end, group, lessons, recorder, settings, subworld
from labkit.rank.agent import plain  # by name: a function may replace agent's
from labkit.rank.copies import shell
from labkit.rank.definitions import decorated
from labkit.rank.memory import Peak
from labkit.rank.subworld import Gate

LOG = "LABKIT_LOG"  # the log of a rank that another host's agent has started
PRINTED = 2000  # characters of what a function prints that are kept

_unseen = CapturingDisplayPublisher()
_last_words: int | None = None  # the file that a dying process writes its stack to


def begin(n: int, limit: float, folder: str, count: int) -> None:
    """Make the sub-group for runs on n ranks, number `count`, and let a process that crashes leave its stack."""
    global _last_words
    subworld.make(n, limit, count)
    if not faulthandler.is_enabled():
        # Another host does not have the folder: there it goes into the log that the host's agent keeps.
        log = os.environ.get(LOG)
        path, how = (log, os.O_APPEND) if log else (f"{folder}/last-words-{dist.get_rank()}", os.O_TRUNC)
        _last_words = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
        faulthandler.enable(_last_words)


def finish(count: int) -> bool:
    """Undo `begin`, number groups from `count` again, and tell whether this rank is in the lab's group."""
    global _last_words
    subworld.destroy(count)
    if _last_words is not None:
        faulthandler.disable()
        os.close(_last_words)
        _last_words = None
    return group.joined()


def ready(name: str) -> dict[str, Any]:
    """Return what `describe` and `agent.groups` tell before a check."""
    return {**describe(name), **agent.groups()}


def describe(name: str) -> dict[str, Any]:
    """Tell what the learner's namespace has under this name: `state` is "missing", "other", "empty" or "function"."""
    space = shell().user_ns
    if name not in space:
        return {"state": "missing", "cell": "", "source": ""}
    value = decorated(space[name])
    if not isinstance(value, FunctionType):
        state = "function" if callable(value) else "other"
        return {"state": state, "cell": "", "source": "", "what": type(value).__name__}
    try:
        source = textwrap.dedent(inspect.getsource(value))
        cell = "".join(linecache.getlines(value.__code__.co_filename))
    except (OSError, TypeError):
        return {"state": "function", "cell": "", "source": ""}
    blank = _blank(source)
    line = value.__code__.co_firstlineno + blank - 1 if blank else None
    return {"state": "function" if blank is None else "empty", "cell": cell, "source": source, "line": line}


def _blank(source: str) -> int | None:
    """Find what a function lacks: the line of a `...` in it; 0 for all of its body; None where it is written."""
    try:
        node = ast.parse(source).body[0]
    except (SyntaxError, IndexError):
        return None
    if not isinstance(node, ast.FunctionDef):
        return None

    # No body is a docstring, `...`, `pass` or NotImplementedError and nothing else.
    def idle(statement: ast.stmt) -> bool:
        constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        raises = isinstance(statement, ast.Raise) and "NotImplementedError" in ast.unparse(statement)
        return constant or raises or isinstance(statement, ast.Pass)

    if all(idle(statement) for statement in node.body):
        return 0
    left = [n for n in ast.walk(node) if isinstance(n, ast.Expr) and getattr(n.value, "value", None) is ...]
    return min((n.lineno for n in left), default=None)


def run(name: str, n: int, count: int, call: dict[str, Any]) -> dict[str, Any]:
    """Call the learner's function as one of n ranks, and tell what came of it.

    `call` has "args", "options", "dtype", "in_place", "module", "gradients", "memory", "seed" and "most", the bytes
    that a result may have to be told. The answer has "out", or "error" (type, message, place); also "kept" (the
    arguments afterwards), "drew" (whether the function drew random numbers), "printed", "record", the recorder's, and
    where it was asked for "memory", the bytes of `labkit.rank.memory.Peak`. `left` tells whether the function has
    destroyed the lab's group.
    """
    answer: dict[str, Any] = {"drew": False}
    with _one_of(n, count, answer) as gate:
        _attempt(gate, name, call, answer)
        answer["record"] = recorder.records()
    return answer


def again(name: str, n: int, count: int, calls: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Call it with one input after another, until an error on any rank or the end of the seconds."""
    # An answer is `run`'s without "record" and "drew"; an "error" of the last one stands beside "answers" too.
    answer: dict[str, Any] = {"answers": []}
    until = monotonic() + seconds
    with _one_of(n, count, answer) as gate:
        for nth, call in enumerate(calls, count):
            one: dict[str, Any] = {}
            answer["answers"].append(one)
            with subworld.one_call(n, nth):
                _attempt(gate, name, call, one)
            answer |= {what: one[what] for what in ("error", "ended") if what in one}
            try:
                with gate.opened():
                    if subworld.any_rank(n, nth, "error" in one or monotonic() > until):
                        break
            except BaseException as error:  # another rank does not come, and the lab has freed this one
                answer = {"error": _said(error), "ended": cell_end.of(error)} | answer
                break
            subworld.destroy_temporary()
    return answer


@contextlib.contextmanager
def _one_of(n: int, count: int, answer: dict[str, Any]) -> Iterator[Gate]:
    """Be one of n ranks; what was printed goes into the answer."""
    world = dist.group.WORLD
    with Gate() as gate:
        with subworld.one_of(n, count, shell().user_ns), _captured() as printed:
            yield gate
        answer["printed"] = "".join(stream.getvalue() for stream in printed)[-PRINTED:]
        answer["left"] = dist.group.WORLD is not world


def _attempt(gate: Gate, name: str, call: dict[str, Any], answer: dict[str, Any]) -> None:
    """Call the function once, recorded, under torch's own settings; only what it does itself can be interrupted."""
    with settings.as_new():
        try:
            with gate.opened():
                _call(name, call, answer)
        except BaseException as error:
            answer["error"] = _said(error)
            answer["ended"] = cell_end.of(error)
        finally:
            recorder.end()


@contextlib.contextmanager
def _captured() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Keep what is printed on both streams, and show nothing; IPython's capture_output takes six times as long."""
    out, err, before = io.StringIO(), io.StringIO(), shell().display_pub
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        shell().display_pub = _unseen
        try:
            yield out, err
        finally:
            shell().display_pub = before
            _unseen.outputs.clear()


def _call(name: str, call: dict[str, Any], answer: dict[str, Any]) -> None:
    space = shell().user_ns
    args = [agent.made(a, call["dtype"], space["device"]) for a in call["args"]]
    leaves = [a for a in args if call["gradients"] and isinstance(a, torch.Tensor) and a.is_floating_point()]
    for a in leaves:
        a.requires_grad_()
    function, options, peak = space[name], call["options"], Peak()
    if call["memory"]:
        function = peak.around(function)
    if "drew" in answer:
        function = _watched(function, answer)
    if call["module"]:
        function = lessons.around(lessons.find(call["module"], name, space), function)
    settings.seed(call["seed"])
    recorder.begin()
    out = function(*args, **options)
    out = args[0] if call["in_place"] else out
    if call["gradients"]:
        answer["gradients"] = _gradients(out, leaves, call["gradients"])
    recorder.end()
    answer["memory"] = peak.bytes
    answer["out"] = _told(out, call["most"])
    answer["dtype"] = str(out.dtype).removeprefix("torch.") if isinstance(out, torch.Tensor) else ""
    answer["kept"] = [_told(a, call["most"]) for a in args]


def _watched(function: Callable[..., Any], answer: dict[str, Any]) -> Callable[..., Any]:
    """Wrap the function: the answer's "drew" says whether it drew random numbers."""

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        before = settings.drawn()
        try:
            return function(*args, **kwargs)
        finally:
            answer["drew"] |= settings.drawn() != before

    return watched


def _gradients(out: Any, leaves: list[torch.Tensor], loss: str) -> list[Any]:
    """Return the arguments' gradients, for the loss that `grading.gradients` weighs the result with."""
    if not isinstance(out, torch.Tensor) or not out.requires_grad:
        return [None] * len(leaves)
    shared = loss == "one"
    weights = torch.from_numpy(gradients.weights(out.numel(), 0 if shared else dist.get_rank())).to(out)
    (out.flatten() * weights).sum().backward()
    # None for an argument that nothing connects the result with.
    return [None if a.grad is None else plain(a.grad) for a in leaves]


def _told(value: Any, most: int) -> Any:
    """Return a value as plain data; of one that takes more than `most` bytes, only what it is."""
    left = most
    for size in _sizes(value):
        left -= size
        if left < 0:
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
            return judge.Large(f"a tensor{shape}" if shape else judge.kind(value))
    return plain(value)


def _sizes(value: Any) -> Iterator[int]:
    """Yield the bytes of all that a value holds, piece by piece."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield value.numel() * value.element_size() if isinstance(value, torch.Tensor) else value.nbytes
    elif isinstance(value, (dict, list, tuple)):
        for v in value.values() if isinstance(value, dict) else value:
            yield from _sizes(v)
    else:
        yield len(value) if isinstance(value, (str, bytes)) else 32


def _said(error: BaseException) -> tuple[str, str, dict[str, Any]]:
    """Return an exception's type, message and place; the message is empty where the learner's type cannot say it."""
    try:
        message = str(error)
    except Exception:
        message = ""
    return type(error).__name__, message, _place(error)


def _place(error: BaseException) -> dict[str, Any]:
    """Find the learner's innermost line that an error came through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_cell(frame.filename):
            return {"line": frame.lineno, "function": frame.name, "source": (frame.line or "").strip()}
    return {"line": None, "function": "", "source": ""}
