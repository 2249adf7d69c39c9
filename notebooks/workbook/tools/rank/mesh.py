"""A copy of the small transformer, cut over its team of ranks in two ways, and a reader of batches: the capstone's.

from workbook.tools.rank.mesh import Reader, Stage, cut_by_heads, pipe_pass, whole_pass

model = cut_by_heads(model, team)                  # within its layers, as lesson 13 does it
loss = whole_pass(model, team, text, wanted)
model = Stage(model, team)                         # between its layers, as lesson 12 does it
loss = pipe_pass(model, team, text, wanted)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from labkit.rank import comms, tiny

__all__ = ["Reader", "Stage", "cut_by_heads", "pipe_pass", "whole_pass"]


class Reader:
    """Read batches in which a tenth of the characters is blanked out, by a random generator for each share."""

    def __init__(self) -> None:
        self.step, self.noise = 0, torch.Generator()

    def read(self, place: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets of share number `place` of `size` of the next batch."""
        if self.step == 0:
            self.noise.manual_seed(place)
        text, wanted = tiny.batch(self.step, place, size, size=96)
        self.step += 1
        kept = torch.rand(text.shape, generator=self.noise) > 0.1
        return text * kept, wanted

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold of it."""
        return {"step": self.step, "noise": self.noise.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what a checkpoint holds."""
        self.step = state["step"]
        self.noise.set_state(state["noise"])


class _Over(torch.autograd.Function):
    """Megatron's f, which adds up over the team on the way back, and g, which does so on the way forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, team: Any, way: str) -> torch.Tensor:
        ctx.team, ctx.way = team, way
        return comms.all_reduce(x, group=team) if way == "forward" else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return comms.all_reduce(dx, group=ctx.team) if ctx.way == "back" else dx, None, None


def _part(t: torch.Tensor, team: Any, runs: int = 1) -> torch.nn.Parameter:
    """Return this rank's share of the rows; queries, keys and values are three runs of rows."""
    size, place = dist.get_world_size(team), dist.get_rank(team)
    return torch.nn.Parameter(torch.cat([run.chunk(size)[place] for run in t.detach().chunk(runs)]))


def cut_by_heads(model: Any, team: Any) -> Any:
    """Leave this rank its share of every layer's columns: f before qkv and widen, g after project and narrow."""
    for block in model.blocks:
        block.heads //= dist.get_world_size(team)
        for linear, runs in ((block.qkv, 3), (block.widen, 1)):
            linear.weight, linear.bias = _part(linear.weight, team, runs), _part(linear.bias, team, runs)
            linear.register_forward_pre_hook(lambda _, x: _Over.apply(*x, team, "back"))
        for linear in (block.project, block.narrow):
            linear.weight = torch.nn.Parameter(_part(linear.weight.T, team).detach().T.contiguous())
            linear.after, linear.bias = linear.bias, None  # added once, after the sum
            linear.register_forward_hook(lambda its, _, y: _Over.apply(y, team, "forward") + its.after)
    return model


def whole_pass(model: Any, team: Any, text: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Go forward and back through a model of which this rank has a part of every layer; return the mean loss."""
    loss = tiny.loss(model, (text, wanted))
    loss.backward()
    return loss.detach()


class Stage(torch.nn.Module):
    """This rank's layers of a copy that is cut between its layers."""

    def __init__(self, model: Any, team: Any) -> None:
        super().__init__()
        size, place = dist.get_world_size(team), dist.get_rank(team)
        self.blocks = model.blocks[len(model.blocks) * place // size : len(model.blocks) * (place + 1) // size]
        self.embedding: Any = model.embedding if place == 0 else None
        self.position: Any = model.position if place == 0 else None
        self.output = torch.nn.Sequential(model.norm, model.output) if place == size - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) + self.position.weight if self.embedding else x
        for block in self.blocks:
            x = block(x)
        return self.output(x[:, -1]) if self.output else x


def _forward_all(
    stage: Stage, team: Any, place: int, text: torch.Tensor, wanted: torch.Tensor, pieces: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield what came in and what went out, for each micro-batch."""
    for x, target in zip(text.chunk(pieces), wanted.chunk(pieces), strict=True):
        if not stage.embedding:
            x = stage.blocks[0].norm1.weight.new_empty(len(x), tiny.CONTEXT, 32)
            dist.recv(x, group=team, group_src=place - 1)
            x.requires_grad_()
        out = stage(x)
        if stage.output:
            out = torch.nn.functional.cross_entropy(out, target) / pieces
        else:
            dist.send(out.detach(), group=team, group_dst=place + 1)
        yield x, out


def pipe_pass(stage: Stage, team: Any, text: torch.Tensor, wanted: torch.Tensor, pieces: int = 4) -> torch.Tensor:
    """Take all micro-batches forward through the stages, then all of them back; return the mean loss on each rank."""
    device = next(stage.parameters()).device
    place, loss, text, wanted = dist.get_rank(team), torch.zeros((), device=device), text.to(device), wanted.to(device)
    for x, out in list(_forward_all(stage, team, place, text, wanted, pieces)):
        slope = torch.ones_like(out)
        if stage.output:
            loss += out.detach()
        else:
            dist.recv(slope, group=team, group_src=place + 1)
        out.backward(slope)
        if not stage.embedding:
            assert x.grad is not None
            dist.send(x.grad, group=team, group_dst=place - 1)
    dist.broadcast(loss, group=team, group_src=dist.get_world_size(team) - 1)
    return loss
