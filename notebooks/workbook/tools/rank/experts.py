"""The small transformer with a mixture of experts in place of each MLP: what lesson 13d does not write itself.

from workbook.tools.rank.experts import ExpertLayer, mlp

model.blocks = torch.nn.ModuleList(ExpertLayer(Alone()) for _ in model.blocks)
"""

from __future__ import annotations

import torch
from torch import nn

from labkit.rank import tiny

__all__ = ["ExpertLayer", "mlp"]


def mlp(width: int) -> nn.Sequential:
    """Make an expert: the MLP of a transformer layer."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class ExpertLayer(tiny.Block):
    """A transformer layer whose MLP is a mixture: it gets the tokens, and the tokens after a normalisation."""

    def __init__(self, mixture: nn.Module, width: int = 32, heads: int = 4) -> None:
        super().__init__(width, heads)
        del self.widen, self.narrow  # no MLP
        self.mixture = mixture

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).flatten(-2))
        return self.mixture(x, self.norm2(x)).view_as(x)
