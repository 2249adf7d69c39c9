"""The small language model that the workbook trains: it guesses the next character from the last eight.

    torch.manual_seed(0)
    model = tiny.Model().to(device)
    loss = tiny.loss(model, tiny.batch(step, rank, world_size))
    loss.backward()

`tiny.Transformer()` takes the same batches and gives the same scores, with as many layers as you ask for.

The text is what Python itself says about its topics (`help("topics")`), in 36 characters; a little of it differs
between versions of Python, and so do the losses. Nothing here communicates: that is the learner's part.
"""

from __future__ import annotations

import functools

import torch
from torch import nn

__all__ = ["CHARACTERS", "CONTEXT", "Batch", "Block", "Model", "Transformer", "batch", "loss", "sample", "validation"]

CHARACTERS = " abcdefghijklmnopqrstuvwxyz.,:;'\"()_"  # a character's number is its place here
CONTEXT = 8  # characters that the model sees
HELD_OUT = 0.1  # the part of the text, at its end, that no batch is taken from

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs, int64 [rows, CONTEXT], and targets, int64 [rows]; on the CPU


class Model(nn.Module):
    """Scores for the next character: int64 [rows, 8] to float32 [rows, 36]. 12,444 parameters in 5 tensors."""

    def __init__(self, hidden=120):
        super().__init__()
        self.embedding = nn.Embedding(36, 8)  # 36 characters, 8 numbers for each
        self.hidden = nn.Linear(8 * 8, hidden)  # the last 8 characters
        self.output = nn.Linear(hidden, 36)

    def forward(self, text):
        x = self.embedding(text).flatten(1)
        return self.output(torch.tanh(self.hidden(x)))


class Block(nn.Module):
    """One transformer layer: float32 [rows, positions, width] to the same shape, each position seeing those before."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)  # queries, keys and values, of all heads
        self.project = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).flatten(-2))
        return x + self.narrow(nn.functional.gelu(self.widen(self.norm2(x))))


class Transformer(nn.Module):
    """Scores for the next character, as `Model` gives them: int64 [rows, 8] to float32 [rows, 36].

    With 2 layers of width 32 it has 28,068 parameters in 30 tensors; with 4 of width 256, 3,180,068 in 54.
    """

    def __init__(self, layers=2, width=32, heads=4):
        super().__init__()
        self.embedding = nn.Embedding(36, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, 36)

    def forward(self, text):
        x = self.embedding(text) + self.position.weight
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x[:, -1]))  # what the last position has seen


def batch(step: int, rank: int = 0, world_size: int = 1, size: int = 240) -> Batch:
    """Return a rank's share of the batch of this step: about `size / world_size` rows, by default all of them.

    >>> inputs, targets = batch(step=0, rank=1, world_size=4)
    >>> inputs.shape, targets.shape
    (torch.Size([60, 8]), torch.Size([60]))

    The batch has a row from each of `size` equal parts of the text. Rank r gets the r-th of `world_size` runs of rows,
    so each rank reads a region of the text of its own, and the shares in the order of the ranks are the whole batch.
    Shares are equal where `world_size` divides `size`; else the first ranks get a row more.
    """
    part = int(len(_text()) * (1 - HELD_OUT)) // size
    chance = torch.Generator().manual_seed(step)
    starts = torch.arange(size) * part + torch.randint(part - CONTEXT, (size,), generator=chance)
    return _rows(starts, rank, world_size)


def validation(rank: int = 0, world_size: int = 1, size: int = 960) -> Batch:
    """Return a rank's share of text that no batch holds, always the same rows; by default all.

    >>> validation()[0].shape, validation(rank=3, world_size=4)[0].shape
    (torch.Size([960, 8]), torch.Size([240, 8]))
    """
    first = int(len(_text()) * (1 - HELD_OUT))
    part = (len(_text()) - first) // size
    return _rows(first + torch.arange(size) * part, rank, world_size)


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean cross-entropy of the model's guesses, a scalar on its device.

    A model that knows nothing has a loss of log 36.
    The mean is over rows, so the mean of equal shares' losses is the loss of the whole batch; likewise the gradients.
    """
    device = next(model.parameters()).device
    inputs, targets = (part.to(device) for part in batch)
    return nn.functional.cross_entropy(model(inputs), targets)


@torch.no_grad()
def sample(model: nn.Module, prompt: str = "the ", n: int = 40, seed: int = 0, temperature: float = 0.5) -> str:
    """Return the prompt and `n` more characters, drawn by the model's scores; equal models with equal seeds agree.

    Scores are divided by the temperature: the lower it is, the more often the likeliest character comes.
    """
    device = next(model.parameters()).device
    chance = torch.Generator().manual_seed(seed)
    text = _numbers(prompt.rjust(CONTEXT))
    for _ in range(n):
        scores = model(torch.tensor([text[-CONTEXT:]], device=device))[0].cpu() / temperature
        text.append(int(torch.multinomial(scores.softmax(0), 1, generator=chance)))
    return prompt + "".join(CHARACTERS[number] for number in text[-n:]) if n else prompt


def _rows(starts: torch.Tensor, rank: int, world_size: int) -> Batch:
    mine = starts.tensor_split(world_size)[rank]
    windows = _text()[mine[:, None] + torch.arange(CONTEXT + 1)]
    return windows[:, :-1].contiguous(), windows[:, -1].contiguous()


@functools.cache
def _text() -> torch.Tensor:
    """Return all topics in the order of their names, as numbers; a run of unknown characters counts as one space."""
    from pydoc_data.topics import topics  # 0.5 MB, which no start should wait for

    text = "\n".join(topics[name] for name in sorted(topics)).lower()
    known = "".join(c if c in CHARACTERS else " " for c in text)
    return torch.tensor(_numbers(" ".join(known.split())))


def _numbers(text: str) -> list[int]:
    """Return the numbers of characters; an unknown one counts as a space."""
    return [max(0, CHARACTERS.find(c)) for c in text.lower()]
