"""The small transformer for one long text, whose attention is a function to choose: what lesson 13e reads with.

from workbook.tools.rank.long_text import Reader, full

model = Reader(1024, full).double()
model.loss(torch.arange(256))     # of the guesses after these positions
"""

from __future__ import annotations

from collections.abc import Callable
from pydoc_data.topics import topics

import torch
from torch import nn

from labkit.rank import tiny

__all__ = ["Reader", "full", "scores_of"]

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # [heads, positions, size] each


def full(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend causally, as one process does."""
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def scores_of(q: torch.Tensor, k: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
    """Return the scores of these queries for these keys, -inf where a query must not see a key."""
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~sees, -torch.inf)


class _Layer(tiny.Block):
    def __init__(self, attend: Attend) -> None:
        super().__init__(48, heads=12)
        self.attend = attend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(0, 1) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.project(self.attend(q, k, v).transpose(0, 1).flatten(-2))
        return x + self.narrow(nn.functional.gelu(self.widen(self.norm2(x))))


class Reader(tiny.Transformer):
    """A transformer of two layers of width 48 that reads a text of so many characters, with this attention."""

    text: torch.Tensor

    def __init__(self, length: int, attend: Attend) -> None:
        super().__init__(width=48)
        self.position = nn.Embedding(length, 48)
        self.blocks = nn.ModuleList(_Layer(attend) for _ in range(2))
        words = " ".join(topics[name] for name in sorted(topics)).lower().split()
        text = [max(0, tiny.CHARACTERS.find(c)) for c in " ".join(words)[: length + 1]]
        self.register_buffer("text", torch.tensor(text), persistent=False)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        x = self.embedding(self.text[positions]) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))  # a guess after each position

    def loss(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the guesses after these positions."""
        return nn.functional.cross_entropy(self(positions), self.text[positions + 1])
