"""The transformer as a chain of layers, and a layer computed with other weights than its own: stages 2 and 3 of ZeRO.

    from workbook.tools.rank import layered

    layers = layered.in_layers(tiny.Transformer(layers=4, width=64))
    y = layered.computed(layers[1], weights, x)     # what layer 1 makes of x with these flat weights

Nothing here communicates: that is the lesson's part.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from labkit.rank import tiny

__all__ = ["computed", "in_layers"]


class Part(nn.Module):
    """Some modules of a model, and what they compute together."""

    def __init__(self, compute: Callable[..., torch.Tensor], *modules: nn.Module) -> None:
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


def computed(layer: nn.Module, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return what a layer makes of x with these flat weights in place of its own; zeros at their end do no harm."""
    own, at = {}, 0
    for name, p in layer.named_parameters():
        own[name] = weights[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return torch.func.functional_call(layer, own, (x,))
