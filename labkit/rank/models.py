"""Let ranks that make different models for DistributedDataParallel find out before torch compares them.

Torch names no parameter, and raises on some ranks only: the others wait in a broadcast that they alone have entered.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Container, Mapping
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from labkit.floor.errors import MismatchError
from labkit.floor.words import alike, listed, ranks
from labkit.rank.board import gathered, look_up

REMEDY = "Give DistributedDataParallel the same model on every rank."
States = dict[str, str]  # what each parameter and buffer is, in the model's order


def comparing(verify: Callable[..., None], compare: Callable[[Any, States], None]) -> Callable[..., None]:
    """Wrap what DistributedDataParallel has its parameters verified by: `compare` gets its group and states first."""

    @functools.wraps(verify)
    def verified(group: Any, *args: Any, **kwargs: Any) -> None:
        # `__init__` alone, which calls this, knows the names; wrapped itself, its warnings would name labkit's line.
        held = sys._getframe(1).f_locals
        made = held["self"]
        buffers = held.get("init_sync_buffers", getattr(made, "broadcast_buffers", True))  # new in torch 2.13, older
        compare(group, states(made.module, made.parameters_to_ignore, buffers))
        verify(group, *args, **kwargs)

    return verified


def states(module: torch.nn.Module, apart: Container[str], buffers: bool) -> States:
    """Describe what the ranks of one model must have alike, but for the parameters and buffers kept `apart`."""
    found = {f"parameter {n}": _told(p) + ", frozen" * (not p.requires_grad) for n, p in module.named_parameters()}
    found |= {f"buffer {n}": _told(b) for n, b in module.named_buffers() if buffers}
    return {name: what for name, what in found.items() if name.partition(" ")[2] not in apart}


def _told(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def compare(store: dist.Store, key: str, me: int, members: list[int], mine: States) -> None:
    """Raise where a rank of the group that has come to this key has another model; wait for no rank."""
    keys = {r: f"labkit-model/{key}/{i}" for i, r in enumerate(members)}

    def up() -> dict[int, States]:
        return {r: json.loads(text) for r, text in look_up(store, keys).items()}

    # Of two ranks at least one sees the other, since each puts up its own before it reads.
    store.set(keys[members[me]], json.dumps(mine))
    if any(list(theirs.items()) != list(mine.items()) for theirs in up().values()):
        raise MismatchError(f"Ranks make different models: {disagreement(gathered(up, len(members)))}. {REMEDY}")


def disagreement(models: Mapping[int, States]) -> str:
    """Name the parameter or buffer in which the ranks' models first differ, or say that their order differs.

    >>> disagreement({0: {"parameter weight": "float32[3, 4]"}, 1: {"parameter weight": "float32[2, 4]"}})
    'parameter weight is float32[3, 4] on rank 0 and float32[2, 4] on rank 1'
    """
    for name in dict.fromkeys(chain.from_iterable(models.values())):
        told = alike({r: model.get(name, "missing") for r, model in models.items()})
        if len(told) > 1:
            return f"{name} is {_listed(told)}"
    firsts = (alike(dict(zip(models, names, strict=True))) for names in zip(*models.values(), strict=True))
    return f"first comes {_listed(next(told for told in firsts if len(told) > 1))}"


def _listed(told: Mapping[str, list[int]]) -> str:
    return listed([f"{what} on {ranks(rs)}" for what, rs in told.items()])
