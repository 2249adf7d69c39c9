"""Count what a rank holds of a model between two operations, by kind; see `labkit.rank.memory` for peaks."""

from __future__ import annotations

from typing import Any

import torch

from labkit.floor.errors import LabError
from labkit.rank.memory import storages
from labkit.rank.nested import tensors
from labkit.rank.torch_internals import held_by_fully_shard, storage_id

KINDS = ("weights", "gradients", "optimizer")


def footprint(model: Any, optimizer: Any = None, **more: Any) -> dict[str, int]:
    """Count the bytes that this rank really holds: weights, gradients, the optimizer's state, and buffers if any.

    >>> model = torch.nn.Linear(100, 10, bias=False)  # 1,000 parameters of 4 bytes
    >>> model(torch.ones(1, 100)).sum().backward()
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> optimizer.step()  # makes two numbers for each parameter, and a counter of 4 bytes for each tensor
    >>> footprint(model, optimizer)
    {'weights': 4000, 'gradients': 4000, 'optimizer': 8004}
    >>> flat = torch.zeros(1000)
    >>> footprint(model, optimizer, copies=[flat, flat[:500]])["copies"]  # one memory, counted once
    4000

    What is counted is memory as it was allocated, each piece once: a view counts as all of what it looks into, in the
    first kind of the answer that has it, and what was freed counts nothing. `model` is a module, or tensors in a list
    or dict; `optimizer` one of torch's, or tensors likewise. With `fully_shard` and `ZeroRedundancyOptimizer` it is
    this rank's part. What the optimizer updates and the model lacks is weights, unless you name it: `shard=flat`.

    It does not see what C++ keeps: activations, and the buckets of `DistributedDataParallel`, which are as large as
    the gradients, unless `gradient_as_bucket_view=True` makes the gradients views of them.

    Raises `LabError` for a model, an optimizer or a kind of any other type.
    """
    weights = _weights(model)
    updated = [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
    sharded = list(held_by_fully_shard(model)) if isinstance(model, torch.nn.Module) else []
    named = {kind: _tensors(kind, value) for kind, value in more.items()}
    leaves = [*weights, *updated, *tensors(named)]
    parts: list[tuple[str, Any]] = [
        ("weights", [*weights, *(t for kind, t in sharded if kind == "weights")]),
        ("gradients", [*(t.grad for t in leaves if t.is_leaf), *(t for kind, t in sharded if kind == "gradients")]),
        ("optimizer", _state(optimizer)),
        ("buffers", list(model.buffers()) if isinstance(model, torch.nn.Module) else []),
        *named.items(),
        ("weights", updated),
    ]
    held = dict.fromkeys(KINDS, 0)
    seen: set[int] = set()
    for kind, value in parts:
        found = {storage_id(s): s.nbytes() for s in storages(value, gradients=False) if storage_id(s) not in seen}
        seen |= found.keys()
        if found or kind in more:
            held[kind] = held.get(kind, 0) + sum(found.values())
    return held


def _weights(model: Any) -> list[torch.Tensor]:
    if isinstance(model, torch.nn.Module):
        return list(model.parameters())
    found = list(tensors(model))
    if not found:
        raise LabError(
            f"footprint() got a {type(model).__name__} where the model belongs. Give a module, or tensors in a list."
        )
    return found


def _tensors(kind: str, value: Any) -> Any:
    """Return what a learner has given a name, where it can hold tensors."""
    if value is not None and not isinstance(value, (torch.Tensor, torch.nn.Module, dict, list, tuple)):
        raise LabError(f"{kind}: a {type(value).__name__} holds no tensors. Give a tensor, or a list or dict of them.")
    return value


def _state(optimizer: Any) -> list[Any]:
    """List the tensors that an optimizer keeps; ZeroRedundancyOptimizer keeps its own part's in an optimizer inside."""
    if optimizer is None or isinstance(optimizer, (dict, list, tuple)):
        return [optimizer]
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "state"):
        raise LabError(
            f"footprint() got a {type(optimizer).__name__} where the optimizer belongs. Give one of torch.optim, "
            "or what it keeps, as tensors in a list or dict."
        )
    kept: list[Any] = [dict(optimizer.state)]
    kept += [{name: v for name, v in group.items() if name != "params"} for group in optimizer.param_groups]
    inner = getattr(optimizer, "optim", None)
    return kept if inner is None else [*kept, *_state(inner)]
