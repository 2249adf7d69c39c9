"""A learner's function on a rank: found, told from an empty one, run on an input among the first n ranks.

For a run on fewer ranks than the lab has, a sub-group takes the default group's place, so that `dist.send(x, 1)`,
`rank` and `world_size` mean what they mean in a world of that size.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from IPython.utils.capture import capture_output
from torch.distributed import distributed_c10d

from labkit.grading import gradients
from labkit.rank import agent, ended, frames, recorder
from labkit.rank.copies import shell

PRINTED = 2000  # characters of what a function prints that are told

_groups: dict[int, Any] = {}


def describe(name: str) -> dict[str, Any]:
    """What the learner's namespace has under this name: `state` is "missing", "other", "empty" or "function"."""
    space = shell().user_ns
    if name not in space:
        return {"state": "missing", "cell": "", "source": ""}
    value = space[name]
    if not isinstance(value, FunctionType):
        state = "function" if callable(value) else "other"
        return {"state": state, "cell": "", "source": "", "what": type(value).__name__}
    try:
        source = textwrap.dedent(inspect.getsource(value))
        cell = "".join(linecache.getlines(value.__code__.co_filename))
    except (OSError, TypeError):
        return {"state": "function", "cell": "", "source": ""}
    return {"state": "empty" if _is_empty(source) else "function", "cell": cell, "source": source}


def _is_empty(source: str) -> bool:
    """Whether a function has no body yet: a docstring, `...`, `pass` or NotImplementedError and nothing else."""
    try:
        node = ast.parse(source).body[0]
    except (SyntaxError, IndexError):
        return False
    if not isinstance(node, ast.FunctionDef):
        return False

    def idle(statement: ast.stmt) -> bool:
        constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        raises = isinstance(statement, ast.Raise) and "NotImplementedError" in ast.unparse(statement)
        return constant or raises or isinstance(statement, ast.Pass)

    return all(idle(statement) for statement in node.body)


def gather(sizes: Sequence[int], limit: float) -> None:
    """Make the sub-groups of the first n ranks; every rank of the world calls this."""
    _loosen(sys.modules.get("torch.distributed.nn.functional"))
    for n in sizes:
        _groups[n] = dist.new_group(list(range(n)), timeout=timedelta(seconds=limit))


def _loosen(module: Any) -> None:
    """Let torch's differentiable collectives use today's default group, not that of the moment of their import."""
    for function in vars(module).values() if module is not None else ():
        defaults = getattr(function, "__defaults__", None) or ()
        if any(isinstance(value, dist.ProcessGroup) for value in defaults):
            function.__defaults__ = tuple(None if isinstance(v, dist.ProcessGroup) else v for v in defaults)


def part(count: int) -> None:
    """Let the sub-groups go; after a heal they are gone already. `count` is where groups are numbered from now."""
    for group in _groups.values():
        if group is not dist.GroupMember.NON_GROUP_MEMBER and group in distributed_c10d._world.pg_map:
            dist.destroy_process_group(group)
    _groups.clear()
    distributed_c10d._world.group_count = count


@contextlib.contextmanager
def _world_of(n: int, count: int) -> Iterator[None]:
    """For a while, be one of n ranks; groups that are made meanwhile are numbered from `count` and let go again."""
    world: Any = distributed_c10d._get_default_group()
    space = shell().user_ns
    had = {name: space.get(name) for name in ("rank", "world_size")}
    groups = set(distributed_c10d._world.pg_map)
    size = os.environ.get("WORLD_SIZE", "")
    space.update(rank=dist.get_rank(), world_size=n)
    os.environ["WORLD_SIZE"] = str(n)
    try:
        distributed_c10d._update_default_pg(_groups[n])
        distributed_c10d._world.group_count = count  # groups meet under their number, which all ranks must share
        recorder.confine(n)
        yield
    finally:
        recorder.confine(None)
        if dist.is_initialized():
            distributed_c10d._update_default_pg(world)
            for group in set(distributed_c10d._world.pg_map) - groups:
                dist.destroy_process_group(group)
        space.update(had)
        os.environ["WORLD_SIZE"] = size


def run(name: str, n: int, count: int, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Call the learner's function as one of n ranks, and tell what became of it.

    `calls[r]`, for rank r, has "args", "options", "dtype", "in_place", "harness" and "gradients". The answer has
    "out", or "error" (type, message, place); also "kept" (the arguments afterwards), "printed", and "told", the
    recorder's.
    """
    answer: dict[str, Any] = {}
    generator = torch.get_rng_state()
    try:
        with _world_of(n, count), capture_output() as said:
            try:
                _call(name, calls[dist.get_rank()], answer)
            except BaseException as error:
                answer["error"] = (type(error).__name__, str(error), _place(error))
                answer["ended"] = ended.of(error)
            finally:
                recorder.end()
                answer["told"] = recorder.records()
        answer["printed"] = (said.stdout + said.stderr)[-PRINTED:]
    finally:
        torch.set_rng_state(generator)
    return answer


def _call(name: str, call: dict[str, Any], answer: dict[str, Any]) -> None:
    space = shell().user_ns
    args = [made(a, call["dtype"], space["device"]) for a in call["args"]]
    leaves = [a for a in args if call["gradients"] and isinstance(a, torch.Tensor) and a.is_floating_point()]
    for a in leaves:
        a.requires_grad_()
    function, options = space[name], call["options"]
    if call["harness"]:
        scope = dict(space)
        exec(compile(call["harness"], "<labkit-harness>", "exec"), scope)
        function, args = scope["harness"], [function, *args]
    torch.manual_seed(0)
    recorder.begin()
    out = function(*args, **options)
    if call["harness"]:
        args = args[1:]
    out = args[0] if call["in_place"] else out
    if call["gradients"]:
        answer["gradients"] = _gradients(out, leaves, call["gradients"])
    recorder.end()
    answer["out"] = agent.plain(out)
    answer["dtype"] = str(out.dtype).removeprefix("torch.") if isinstance(out, torch.Tensor) else ""
    answer["kept"] = agent.plain(args)


def _gradients(out: Any, leaves: list[torch.Tensor], loss: str) -> list[Any]:
    """The gradients of the floating-point arguments, for the loss that `theory.slopes` weighs the result with."""
    if not isinstance(out, torch.Tensor) or not out.requires_grad:
        raise TypeError("the result carries no gradient: nothing connects it with x in autograd")
    shared = loss == "one"
    weights = torch.from_numpy(gradients.weights(out.numel(), 0 if shared else dist.get_rank())).to(out)
    (out.flatten() * weights).sum().backward()
    return [None if a.grad is None else agent.plain(a.grad) for a in leaves]


def made(value: Any, dtype: str, device: torch.device) -> Any:
    """The value with tensors in place of numpy arrays, each with memory of its own."""
    if isinstance(value, np.ndarray):
        tensor = torch.tensor(value)
        tensor = tensor.to(getattr(torch, dtype)) if dtype and tensor.is_floating_point() else tensor
        return tensor.to(device)
    if isinstance(value, dict):
        return {k: made(v, dtype, device) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(made(v, dtype, device) for v in value)
    return value


def _place(error: BaseException) -> dict[str, Any]:
    """The learner's innermost line that an error came through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frames.is_cell(frame.filename):
            return {"line": frame.lineno, "function": frame.name, "source": (frame.line or "").strip()}
    return {"line": None, "function": "", "source": ""}
