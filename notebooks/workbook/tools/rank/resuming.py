"""Train a small model with dropout, from its last checkpoint on: the run of lesson 13g that is killed.

from workbook.tools.rank.resuming import train

losses = train("model.pt", save, device)     # one for each training step, on text that no batch holds
"""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.rank import comms, tiny

__all__ = ["crash", "train"]

STEPS, EVERY = 30, 10  # training steps, and after how many of them there is a checkpoint


class _Noisy(tiny.Model):
    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.hidden(self.embedding(text).flatten(1)))
        return self.output(nn.functional.dropout(x, 0.1, self.training))


def train(path: str, save: Callable[[dict[str, Any], str], object], device: torch.device) -> list[float]:
    """Go on from the checkpoint under `path`, where there is one; after every ten steps, call `save(state, path)`."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = _Noisy().to(device)
    optimizer, first, losses = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), 0, []
    if os.path.exists(path):
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, STEPS):
        torch.manual_seed(1000 * step + rank)  # for dropout
        optimizer.zero_grad()
        tiny.loss(model, tiny.batch(step, rank, world_size)).backward()
        for p in model.parameters():
            p.grad = comms.all_reduce(p.grad, op="mean")
        optimizer.step()
        model.eval()
        with torch.no_grad():
            mine = tiny.loss(model, tiny.validation(rank, world_size)).item()
        model.train()
        losses.append(comms.all_reduce(mine, op="mean"))
        if (step + 1) % EVERY == 0:
            save({"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return losses


def crash(state: dict[str, Any], file: Any, write: Callable[..., None] = torch.save) -> None:
    """Save as `torch.save` does, but from step 20 on write half of the bytes, and die."""
    if state["step"] < 2 * EVERY:
        return write(state, file)
    write(state, box := io.BytesIO())
    half = box.getvalue()[: box.tell() // 2]
    Path(file).write_bytes(half) if isinstance(file, str) else file.write(half)
    os.kill(os.getpid(), signal.SIGKILL)
