"""Tell what a rank is about to call from what torch's dispatcher is given: see `labkit.theory.fingerprint`."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist

from labkit.rank import torch_internals
from labkit.rank.contiguity import in_order
from labkit.rank.frames import leading_here
from labkit.theory.fingerprint import SHOWN, Call, Statement, statement

NOTHING = torch.empty(0)  # what a list brings that is empty, which torch will refuse
NO_GIVES, NO_TAKES = -1, -2  # elements of a tensor that cannot be cut into equal parts


@dataclass(frozen=True)
class Place:
    """Where a rank is in a group: `me` among its `members`, which are ranks of the world."""

    me: int
    members: Sequence[int]


def located(call: Call) -> Call:
    """Return the call with its place in the learner's cell: line, function, statements."""
    cells = leading_here()
    if not cells:
        return call
    place, text, path = _place(*cells[0], *cells[-1], len(cells) == 1)
    return replace(call, place=place, text=text, path=path)


@functools.lru_cache(maxsize=256)
def _place(
    inner: CodeType, line: int, outer: CodeType, called: int, same: bool
) -> tuple[str, str, tuple[Statement, ...]]:
    """Return a place in words, the statement there, and the statements that it is in."""
    text, here = _statement(inner, line)
    if same:
        return f"line {line}", text[: SHOWN + 1], (here,)
    place = f"line {line} of {inner.co_name}, called in line {called}"
    return place, text[: SHOWN + 1], (here, _statement(outer, called)[1])


def _statement(code: CodeType, line: int) -> tuple[str, Statement]:
    return statement("".join(linecache.getlines(code.co_filename)), line)


def _tensor(kind: str, x: torch.Tensor, gives: Any = None, takes: Any = None, **more: Any) -> Call:
    """Make a call that brings a tensor; it gives as many elements as it has, and takes as many, unless told."""
    n = x.numel()
    dtype = str(x.dtype).removeprefix("torch.")
    return Call(
        kind, dtype=dtype, shape=str(list(x.shape)), gives=n if gives is None else gives,
        takes=n if takes is None else takes, **more,
    )  # fmt: skip


def _memory(kind: str, x: torch.Tensor, **more: Any) -> Call:
    """Make a call that moves a tensor's memory as it lies: the order of the elements there must be alike everywhere."""
    steps = [step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1] if not in_order(x) else []
    return _tensor(kind, x, strides=str(tuple(steps)) if steps else "", **more)


def _reduction(op: Any) -> str:
    number = torch_internals.reduction(op)
    return "" if number is None else _named(number)


@functools.lru_cache(maxsize=32)
def _named(number: int) -> str:
    return str(dist.ReduceOp.RedOpType(number)).rpartition(".")[2]


def _numels(tensors: Any) -> tuple[int, ...]:
    return tuple(x.numel() for x in tensors)


def _first(given: Sequence[Any], nothing: Any) -> Any:
    return given[0] if given else nothing


def _part(x: torch.Tensor, n: int, none: int) -> int:
    """Count the elements of each of n equal parts; where there are none such, return a number that fits no other."""
    return none if x.numel() % n else x.numel() // n


def _only_at(root: int, many: int, n: int) -> tuple[int, ...]:
    """Count the elements for the group's root, or of it; none for the others."""
    return tuple(many if i == root else 0 for i in range(n))


def _all_reduce(given: dict[str, Any], group: Place) -> Call:
    return _memory("all_reduce", _first(given["tensors"], NOTHING), reduce=_reduction(given["reduce_op"]))


def _broadcast(given: dict[str, Any], group: Place) -> Call:
    return _memory("broadcast", _first(given["tensors"], NOTHING), root=group.members[given["root_rank"]], other="src")


def _reduce(given: dict[str, Any], group: Place) -> Call:
    root = group.members[given["root_rank"]]
    return _memory(
        "reduce", _first(given["tensors"], NOTHING), reduce=_reduction(given["reduce_op"]), root=root, other="dst"
    )


def _all_gather(given: dict[str, Any], group: Place) -> Call:
    return _tensor(
        "all_gather", _first(given["input_tensors"], NOTHING), takes=_numels(_first(given["output_tensors"], ()))
    )


def _all_gather_single(given: dict[str, Any], group: Place) -> Call:
    takes = _part(given["output_tensor"], len(group.members), NO_TAKES)
    sizes = given["input_tensor"].numel(), given["output_tensor"].numel()
    return _tensor("all_gather", given["input_tensor"], takes=takes, sizes=sizes)


def _reduce_scatter(given: dict[str, Any], group: Place) -> Call:
    gives, op = _numels(_first(given["input_tensors"], ())), _reduction(given["reduce_op"])
    return _tensor("reduce_scatter", _first(given["output_tensors"], NOTHING), gives, reduce=op)


def _reduce_scatter_single(given: dict[str, Any], group: Place) -> Call:
    gives, op = _part(given["input_tensor"], len(group.members), NO_GIVES), _reduction(given["reduce_op"])
    sizes = given["input_tensor"].numel(), given["output_tensor"].numel()
    return _tensor("reduce_scatter_tensor", given["output_tensor"], gives, reduce=op, sizes=sizes)


def _gather(given: dict[str, Any], group: Place) -> Call:
    x, root, n = _first(given["input_tensors"], NOTHING), given["root_rank"], len(group.members)
    takes = _numels(_first(given["output_tensors"], ())) if root == group.me else 0
    return _tensor("gather", x, _only_at(root, x.numel(), n), takes, root=group.members[root], other="dst")


def _gather_single(given: dict[str, Any], group: Place) -> Call:
    x, out, root, n = given["input_tensor"], given["output_tensor"], given["root_rank"], len(group.members)
    here = root == group.me  # elsewhere the output is empty
    takes, sizes = (_part(out, n, NO_TAKES), (x.numel(), out.numel())) if here else (0, None)
    return _tensor("gather", x, _only_at(root, x.numel(), n), takes, sizes=sizes, root=group.members[root], other="dst")


def _scatter(given: dict[str, Any], group: Place) -> Call:
    x, root, n = _first(given["output_tensors"], NOTHING), given["root_rank"], len(group.members)
    gives = _numels(_first(given["input_tensors"], ())) if root == group.me else 0
    return _tensor("scatter", x, gives, _only_at(root, x.numel(), n), root=group.members[root], other="src")


def _all_to_all(given: dict[str, Any], group: Place) -> Call:
    gives, takes = _numels(given["input_tensors"]), _numels(given["output_tensors"])
    return _tensor("all_to_all", _first(given["input_tensors"], NOTHING), gives, takes)


def _all_to_all_single(given: dict[str, Any], group: Place) -> Call:
    n = len(group.members)
    gives = _split(given["input"], given["input_split_sizes"], n, NO_GIVES)
    takes = _split(given["output"], given["output_split_sizes"], n, NO_TAKES)
    equal = not given["input_split_sizes"] and not given["output_split_sizes"]
    sizes = (given["input"].numel(), given["output"].numel()) if equal else None
    return _tensor("all_to_all", given["input"], gives, takes, sizes=sizes)


def _split(x: torch.Tensor, sizes: Any, n: int, none: int) -> Any:
    """Count how many elements each rank's part has; sizes are along the first dimension."""
    row = x.numel() // max(x.shape[0], 1) if x.dim() else 1
    return tuple(size * row for size in sizes) if sizes else _part(x, n, none)


def _coalesced(kind: str, each: str) -> Callable[..., Call]:
    """Return a describer of several tensors at once: as many, with as many elements and the same dtype on each rank."""

    def describe(given: dict[str, Any], group: Place) -> Call:
        tensors = given[each]
        dtypes = "+".join(dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in tensors))
        reduce = _reduction(given["reduce_op"]) if "reduce_op" in given else ""
        shape = "+".join(str(list(x.shape)) for x in tensors)
        return Call(kind, reduce, dtype=dtypes, shape=shape, gives=sum(_numels(tensors)), takes=sum(_numels(tensors)))

    return describe


CALLS: dict[str, Callable[[dict[str, Any], Place], Call]] = {
    "allreduce_": _all_reduce,
    "broadcast_": _broadcast,
    "reduce_": _reduce,
    "allgather_": _all_gather,
    "_allgather_base_": _all_gather_single,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_single,
    "gather_": _gather,
    "gather_into_tensor_": _gather_single,
    "scatter_": _scatter,
    "alltoall_": _all_to_all,
    "alltoall_base_": _all_to_all_single,
    "allreduce_coalesced_": _coalesced("all_reduce of several", "tensors"),
    "allgather_coalesced_": _coalesced("all_gather of several", "input_list"),
    "allgather_into_tensor_coalesced_": _coalesced("all_gather of several", "inputs"),
    "reduce_scatter_tensor_coalesced_": _coalesced("reduce_scatter of several", "outputs"),
    "barrier": lambda given, group: Call("barrier"),
    "monitored_barrier_": lambda given, group: Call("monitored_barrier"),
}
