"""The stages of lessons 12 and 12b: a model of ten layers as a chain of parts, and what runs a list of operations.

    from workbook.tools.rank.stages import fresh, my_stage, run_step

    alone, stage = torch.nn.Sequential(*fresh(device)), my_stage(device)
    run_step(stage_forward, stage_backward, run_ops, [("F", 0), ("B", 0)], [stage], parts=1)
    off(stage, alone)  # the largest difference of a gradient from that of one process

What sends and receives is given: the learner's functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.rank import tiny
from labkit.rank.spans import span

__all__ = ["Part", "Stage", "difference", "fresh", "my_stage", "off", "run_step", "stand_in"]

LAYERS = 10


class Part(nn.ModuleList):
    """Modules of the model, and what they compute together."""

    compute: Callable[..., torch.Tensor]

    def forward(self, x):
        return self.compute(x, *self)


def fresh(device: torch.device) -> list[nn.Module]:
    """Return the model as twelve parts, with the same weights whenever it is called: embeddings, ten layers, output."""
    torch.manual_seed(0)
    model = tiny.Transformer(layers=LAYERS).to(device)
    first, last = Part([model.embedding, model.position]), Part([model.norm, model.output])
    first.compute = lambda text, embedding, position: embedding(text) + position.weight
    last.compute = lambda x, norm, output: output(norm(x[:, -1]))
    return [first, *model.blocks, last]


class Stage(nn.Sequential):
    """Neighbouring parts of the model, and the ranks `before` and `after` this stage, or None where it is an end."""

    def __init__(self, parts: Sequence[nn.Module], place: int | None = None, places: int | None = None):
        super().__init__(*parts)
        rank, n = dist.get_rank(), dist.get_world_size()
        place, places = rank if place is None else place, places or n
        self.before = None if place == 0 else (place - 1) % n
        self.after = None if place == places - 1 else (place + 1) % n
        self.losses: list[float] = []
        self.numbers: list[int] = []  # of its parts in the model

    def room(self, rows: int) -> torch.Tensor:
        """Return an empty tensor for what comes in: 32 numbers for each of 8 characters."""
        return torch.empty(rows, tiny.CONTEXT, 32, device=next(self.parameters()).device)

    def loss(self, y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a micro-batch, and note it."""
        loss = nn.functional.cross_entropy(y, targets)
        self.losses.append(loss.item())
        return loss


def my_stage(device: torch.device, chunk: int = 0, chunks: int = 1) -> Stage:
    """Return stage number `chunk` of this rank's `chunks`, of a new model: its layers, and an end where it is one."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model, place, places = fresh(device), chunk * n + rank, chunks * n
    layers = [1 + i for i in torch.arange(LAYERS).tensor_split(places)[place].tolist()]
    numbers = [0] * (place == 0) + layers + [LAYERS + 1] * (place == places - 1)
    stage = Stage([model[i] for i in numbers], place, places)
    stage.numbers = numbers
    return stage


def off(stage: Stage, alone: nn.Sequential, step: int = 0, size: int = 240) -> float:
    """Return the largest difference of the stage's gradients from those of one process, for the batch of this step."""
    right = torch.autograd.grad(tiny.loss(alone, tiny.batch(step, size=size)), list(alone.parameters()))
    each = dict(zip(alone.parameters(), right, strict=True))
    mine = [each[p] for number in stage.numbers for p in alone[number].parameters()]
    gradients = [p.grad for p in stage.parameters() if p.grad is not None]
    return max((found - its).abs().max().item() for found, its in zip(gradients, mine, strict=True))


def difference(stages: Sequence[Stage], alone: nn.Sequential, size: int = 240) -> str:
    """Return the largest difference of a gradient from one process on any rank, for the first batch: "3e-08"."""
    worst = torch.tensor(max(off(stage, alone, size=size) for stage in stages))
    worst = worst.to(next(stages[0].parameters()).device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return f"{worst.item():.0e}"


def stand_in(stage: Stage, forward: float, backward: float) -> Stage:
    """Let every pass through the stage take so many seconds longer, and leave the core free for them."""

    def went_forward(_stage, _x, y):
        time.sleep(forward)
        if y.requires_grad:  # torch 2.11 asks for shapes first
            y.register_hook(lambda _: time.sleep(backward))

    stage.register_forward_hook(went_forward)
    x = torch.ones(1, requires_grad=True)
    (2 * x).backward(torch.ones(1))  # the first one that is given a gradient imports for seconds
    return stage


def run_step(
    forward: Callable,
    backward: Callable,
    run_ops: Callable,
    ops: Sequence[Any],
    stages: Sequence[Stage],
    parts: int,
    step: int = 0,
    size: int = 240,
    wrap: Callable[[Callable], Callable] = lambda run: run,
) -> int:
    """Run my operations on a batch in so many parts; return the most micro-batches that were kept at once.

    `("F", m)` calls `forward` for micro-batch m and keeps what it returns, `("B", m)` hands that to `backward`. Where a
    rank has several stages, its chunks, an operation says which: `("F", m, c)`.
    """
    device = next(stages[0].parameters()).device
    batches = [[part.to(device) for part in tiny.batch(step, m, parts, size)] for m in range(parts)]
    kept: dict[tuple[int, int], Any] = {}
    noted = []

    def run(op: tuple, send: Callable) -> None:
        kind, m, chunk = (*op, 0)[:3]
        name = f"{m}{'ab'[chunk]}" if len(stages) > 1 else m
        with span(f"{'forward' if kind == 'F' else 'backward'} {name}"):
            if kind == "F":
                kept[m, chunk] = forward(stages[chunk], batches[m], parts, send)
            else:
                backward(stages[chunk], *kept.pop((m, chunk)), send)
        noted.append(len(kept))

    for stage in stages:
        stage.zero_grad()
        stage.losses.clear()
    dist.barrier()  # all begin together
    run_ops(ops, wrap(run))
    return max(noted)
