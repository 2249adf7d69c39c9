"""The transformer of lesson 13, whole or with its layers in parts: what lesson 13b begins with.

    from workbook.tools.rank.in_parts import fresh, in_parts, train, wrong

    alone, model = fresh(device), in_parts(fresh(device), copy_in, sum_out)
    train(alone)
    train(model)
    wrong(model, alone)  # by how much each gradient differs: {"blocks.0.qkv.weight": 1e-16, …}

`kept` weighs what autograd keeps of a layer. Nothing here communicates but `before` and `after`, which are given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.rank import tiny

__all__ = ["Columns", "Rows", "fresh", "in_parts", "kept", "train", "wrong"]


def fresh(device: torch.device) -> tiny.Transformer:
    """Return the model, with the same weights on every rank, whenever it is called; in float64."""
    torch.manual_seed(0)
    return tiny.Transformer(layers=2, width=48, heads=12).to(device).double()


class Columns(nn.Module):
    """This rank's outputs of a linear layer; `meet` is where the ranks meet, here before the columns."""

    def __init__(self, weight, bias, meet):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.detach().clone()), nn.Parameter(bias.detach().clone())
        self.meet = meet

    def forward(self, x):
        return nn.functional.linear(self.meet(x), self.weight, self.bias)


class Rows(Columns):
    """The sum over the ranks of what each one's inputs give, and the bias once; the ranks meet after the rows."""

    def forward(self, x):
        return self.meet(nn.functional.linear(x, self.weight)) + self.bias


def in_parts(
    model: tiny.Transformer, before: Callable | None, after: Callable | None, columns: type[Columns] = Columns
) -> tiny.Transformer:
    """Leave this rank's part of each transformer layer in the model: whole heads, and some of the hidden numbers."""
    n, rank = dist.get_world_size(), dist.get_rank()
    blocks: Any = model.blocks
    for block in blocks:
        width, hidden = block.narrow.weight.shape
        heads = torch.arange(width).view(block.heads, -1).tensor_split(n)[rank]
        block.heads, mine = len(heads), heads.flatten()
        rows = torch.cat([mine, mine + width, mine + 2 * width])  # queries, keys, values
        block.qkv = columns(block.qkv.weight[rows], block.qkv.bias[rows], before)
        block.project = Rows(block.project.weight[:, mine], block.project.bias, after)
        mine = torch.arange(hidden).tensor_split(n)[rank]
        block.widen = columns(block.widen.weight[mine], block.widen.bias[mine], before)
        block.narrow = Rows(block.narrow.weight[:, mine], block.narrow.bias, after)
    return model


def train(model: nn.Module, finish: Callable = lambda model: None) -> None:
    """Take three training steps on whole batches and print the losses; `finish` runs after each backward pass."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, foreach=False)  # plain tensors beside DTensors
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        losses.append(tiny.loss(model, tiny.batch(step)))
        losses[-1].backward()
        finish(model)
        optimizer.step()
    print("losses:", [round(loss.item(), 6) for loss in losses])


def wrong(model: nn.Module, one: tiny.Transformer) -> dict[str, float]:
    """Return by how much each of the model's gradients differs from its part of that in one process."""
    want = copy.deepcopy(one)
    for p, its in zip(want.parameters(), one.parameters(), strict=True):
        assert its.grad is not None
        p.data = its.grad
    found = {}
    for (name, p), its in zip(model.named_parameters(), in_parts(want, None, None).parameters(), strict=True):
        assert p.grad is not None
        found[name] = (p.grad - its).abs().max().item()
    return found


def kept(block: tiny.Block, x: torch.Tensor) -> dict[str, int]:
    """Return the bytes of activations that autograd keeps for the layer's backward pass, by who keeps them first.

    "norms" and "columns" keep their inputs; "in between" is what attention, gelu and the rows keep.
    """
    found, inside = {p.untyped_storage().data_ptr(): ("weights", 0) for p in block.parameters()}, ["in between"]
    for name, kind in {"norm1": "norms", "norm2": "norms", "qkv": "columns", "widen": "columns"}.items():
        block.get_submodule(name).register_forward_pre_hook(lambda *_, kind=kind: inside.append(kind))
        block.get_submodule(name).register_forward_hook(lambda *_: inside.pop() and None)

    def keep(t: torch.Tensor) -> torch.Tensor:
        found.setdefault(t.untyped_storage().data_ptr(), (inside[-1], t.untyped_storage().nbytes()))
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        _ = block(x)
    return {kind: sum(n for its, n in found.values() if its == kind) for kind in ("norms", "columns", "in between")}
