"""The transformer as a chain of layers for stages 2 and 3 of ZeRO, and what becomes of a layer's gradient and weights.

    from workbook.tools.rank import layered

    layers = layered.in_layers(tiny.Transformer(layers=4, width=64))
    y = layered.computed(layers[1], weights, x)     # what layer 1 makes of x with these flat weights
    layered.off(layers, shards, right)              # how far the shards' gradients are from those of one process
    with layered.watched(linears) as seen: ...      # when each layer's weight is whole, with fully_shard

Only `off` communicates: the rest is the lesson's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.rank import tiny

__all__ = ["computed", "in_layers", "memory", "off", "watched"]


class Part(nn.Module):
    """Some modules of a model, and what they compute together."""

    def __init__(self, compute: Callable[..., Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.compute = compute
        self.parts = nn.ModuleList(modules)

    def forward(self, x):
        return self.compute(*self.parts, x)


def in_layers(model: tiny.Transformer) -> nn.Sequential:
    """Return the model as a chain: the embeddings, its transformer layers, and norm and output."""
    first = Part(lambda embedding, position, x: embedding(x) + position.weight, model.embedding, model.position)
    last = Part(lambda norm, output, x: output(norm(x[:, -1])), model.norm, model.output)
    return nn.Sequential(first, *model.blocks, last)


def computed(layer: nn.Module, weights: Tensor, x: Tensor) -> Tensor:
    """Return what a layer makes of x with these flat weights in place of its own; zeros at their end do no harm."""
    own, at = {}, 0
    for name, p in layer.named_parameters():
        own[name] = weights[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return torch.func.functional_call(layer, own, (x,))


def off(layers: Sequence[nn.Module], shards: Sequence[Tensor], right: Tensor) -> str:
    """Compare the gradients of all ranks' shards, one per layer, with `right`, the gradient of the whole model.

    All ranks call it, and get the same sentence. A layer's shards are equally long; zeros fill the last one.
    """
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    worst = right.new_zeros(())
    for shard, part in zip(shards, right.split(sizes), strict=True):
        assert shard.grad is not None
        mine = nn.functional.pad(part, (0, -len(part) % dist.get_world_size())).chunk(dist.get_world_size())
        worst = torch.maximum(worst, (shard.grad - mine[dist.get_rank()]).abs().max())
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return f"largest number {right.abs().max().item():.2g}, largest difference {worst.item():.0e}"


def memory(tensor: Tensor) -> str:
    """Say what a tensor is, and how many bytes its storage has: "Parameter of [192, 64], 0 bytes behind it"."""
    return f"{type(tensor).__name__} of {list(tensor.shape)}, {tensor.untyped_storage().size():,} bytes behind it"


@dataclass
class Seen:
    """What `watched` has noted: the weight that each layer computed with, and a line for every pass of a layer."""

    weights: dict[int, Tensor] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def note(self, i: int, when: str) -> None:
        sizes = {k: weight.untyped_storage().size() for k, weight in self.weights.items()}
        whole = [k for k, size in sizes.items() if size]
        self.told.append(f"layer {i}, {when}: {sizes[i]:,} bytes behind its weight; layers whole now: {whole}")

    def computing(self, i: int, linear: nn.Linear, _: object, out: Tensor) -> None:
        self.weights[i] = linear.weight  # the tensor that autograd saves
        self.note(i, "forward")
        out.register_hook(lambda _: self.note(i, "backward"))


@contextmanager
def watched(linears: Sequence[nn.Linear]) -> Iterator[Seen]:
    """Let hooks note, as these linear layers compute forward and backward, which of their weights are whole."""
    seen = Seen()
    hooks = [linear.register_forward_hook(partial(seen.computing, i)) for i, linear in enumerate(linears)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
