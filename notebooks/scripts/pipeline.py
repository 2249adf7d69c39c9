"""One transformer trained as a pipeline: GPipe, 1F1B, interleaved stages, zero bubble, and PyTorch's own schedules.

    torchrun --nproc-per-node 4 scripts/pipeline.py

Prints the losses of four training steps for each way, and the most micro-batches whose activations rank 0 kept at once:
those of lessons 12 and 12b. Every way has the losses of one process.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/pipeline.py &
    done; wait; rm -f $meet
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules as torchs

from labkit.rank import tiny
from workbook.tools import pipeline

STEPS, LR, LAYERS, WIDTH = 4, 0.3, 10, 32


class Embed(nn.ModuleList):
    """The embeddings of characters and of positions."""

    def forward(self, text):
        return self[0](text) + self[1].weight


class Score(nn.ModuleList):
    """The norm and the output, for the last position."""

    def forward(self, x):
        return self[1](self[0](x[:, -1]))


def fresh() -> list[nn.Module]:
    """The model as a list of parts, with the same weights on every rank."""
    torch.manual_seed(0)
    model = tiny.Transformer(LAYERS, WIDTH)
    return [Embed([model.embedding, model.position]), *model.blocks, Score([model.norm, model.output])]


class Stage(nn.Sequential):
    """The parts of stage number `place`, and the ranks that hold the stages before and after it."""

    def __init__(self, place: int, places: int):
        first, *layers, last = fresh()
        mine = [layers[i] for i in torch.arange(LAYERS).tensor_split(places)[place]]
        super().__init__(*[first] * (place == 0), *mine, *[last] * (place == places - 1))
        n = dist.get_world_size()
        self.before = None if place == 0 else (place - 1) % n
        self.after = None if place == places - 1 else (place + 1) % n
        self.later: list = []  # what the second half of a backward pass has to do, where it is split


def my_stages(chunks: int = 1) -> list[Stage]:
    """This rank's stages: chunk c is stage c · world size + rank."""
    rank, n = dist.get_rank(), dist.get_world_size()
    return [Stage(c * n + rank, chunks * n) for c in range(chunks)]


# -- one micro-batch, forward and back --------------------------------------------------------------------------------


class Sender:
    """Sends that do not block; the activations travel with tag 0, the gradients with tag 1."""

    def __init__(self):
        self.works = []

    def __call__(self, tensor, dst, tag):
        self.works.append((dist.isend(tensor, dst, tag=tag), tensor))

    def wait(self):
        """Until all of them have been received."""
        for work, _ in self.works:
            work.wait()
        self.works.clear()


def forward(stage, batch, parts, send):
    """Take one of so many micro-batches through a stage; what went in, and what came out or its part of the loss."""
    x, targets = batch
    if stage.before is not None:
        x = torch.empty(len(targets), tiny.CONTEXT, WIDTH)
        dist.recv(x, src=stage.before, tag=0)
        x.requires_grad_()
    y = stage(x)
    if stage.after is not None:
        send(y.detach(), stage.after, tag=0)
    else:
        y = nn.functional.cross_entropy(y, targets) / parts
    return x, y


def backward(stage, x, y, send):
    """Take it back: receive the gradient of what came out, send the gradient of what went in."""
    dy = None
    if stage.after is not None:
        dy = torch.empty_like(y)
        dist.recv(dy, src=stage.after, tag=1)
    y.backward(dy)
    if stage.before is not None:
        send(x.grad, stage.before, tag=1)


class LaterLinear(torch.autograd.Function):
    """A linear layer whose backward pass leaves the gradients of weight and bias for later."""

    @staticmethod
    def forward(ctx, x, weight, bias, later):
        ctx.save_for_backward(x)
        ctx.parameters, ctx.later = (weight, bias), later
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        weight, bias = ctx.parameters

        @torch.no_grad()  # outside of the backward pass autograd would note it
        def weights():
            rows = dy.reshape(-1, dy.shape[-1])
            for p, slope in ((weight, rows.T @ x.reshape(-1, x.shape[-1])), (bias, rows.sum(0))):
                p.grad = slope if p.grad is None else p.grad + slope

        ctx.later.append(weights)
        return dy @ weight, None, None, None


def split(stage: Stage) -> Stage:
    """Let the stage's linear layers put the gradients of their weights off."""
    for linear in (part for part in stage.modules() if isinstance(part, nn.Linear)):
        linear.forward = lambda x, it=linear: LaterLinear.apply(x, it.weight, it.bias, stage.later)
    return stage


# -- a training step by a list of operations --------------------------------------------------------------------------


def run(order, stages, batches):
    """Run this rank's operations in their order; its parts of the loss, and the most that was kept at once."""
    send, kept, waiting, losses, most = Sender(), {}, {}, [], 0
    for kind, m, chunk in order:
        stage = stages[chunk]
        if kind == "F":
            kept[m, chunk] = forward(stage, batches[m], len(batches), send)
            if stage.after is None:
                losses.append(kept[m, chunk][1].item())
            most = max(most, len({*kept, *waiting}))
        elif kind == "B":
            backward(stage, *kept.pop((m, chunk)), send)
            if stage.later:
                waiting[m, chunk] = list(stage.later)
                stage.later.clear()
        else:
            for work in waiting.pop((m, chunk)):
                work()
    send.wait()
    return sum(losses), most / len(stages)


def train(name, stages, step_of):
    """Train, each step by `step_of(batches)`, which returns this rank's loss and what it kept; print the losses."""
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.parameters()], lr=LR)
    losses, most = [], 0
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, kept = step_of(step)
        optimizer.step()
        losses.append(total(loss))
        most = max(most, kept)
    say(name, losses, most)


def total(loss: float) -> float:
    """The sum of all ranks' losses: one rank has it, the others 0."""
    both = torch.tensor(loss, dtype=torch.float64)
    dist.all_reduce(both)
    return both.item()


def say(name: str, losses: list[float], most: float) -> None:
    """One line, from rank 0; where nobody counted what was kept, nothing is said of it."""
    if dist.get_rank() == 0:
        kept = f" · {most:g} kept" if most else ""
        print(f"{name}: {' '.join(f'{loss:.5f}' for loss in losses)}{kept}", flush=True)


def micro_batches(step: int, parts: int) -> list:
    """The batch of a step in so many parts."""
    return [tiny.batch(step, m, parts) for m in range(parts)]


def by_hand(schedule: pipeline.Schedule) -> None:
    """Train in the order of a schedule."""
    stages = my_stages(schedule.chunks)
    if schedule.split:
        stages = [split(stage) for stage in stages]
    order = schedule.orders[dist.get_rank()]
    train(schedule.name, stages, lambda step: run(order, stages, micro_batches(step, schedule.micro)))


def by_torch(name: str, parts: int, chunks: int = 1) -> None:
    """Train by one of PyTorch's schedules."""
    rank, n = dist.get_rank(), dist.get_world_size()
    modules = my_stages(chunks)
    stages = [
        pipelining.PipelineStage(stage, c * n + rank, chunks * n, torch.device("cpu"))
        for c, stage in enumerate(modules)
    ]
    schedule = getattr(torchs, name)(stages if chunks > 1 else stages[0], parts, loss_fn=nn.functional.cross_entropy)

    def step_of(step):
        inputs, targets = tiny.batch(step)
        losses = []
        schedule.step(*[inputs] * (rank == 0), target=targets, losses=losses)
        return sum(loss.item() for loss in losses) / parts, 0

    train(name, modules, step_of)


def alone() -> None:
    """Whole batches on every rank."""
    model = nn.Sequential(*fresh())

    def step_of(step):
        loss = tiny.loss(model, tiny.batch(step))
        loss.backward()
        return loss.item() * (dist.get_rank() == 0), 0

    train("one process", [model], step_of)


def main() -> None:
    """Every way, one after the other."""
    n = dist.get_world_size()
    parts = 2 * n  # interleaving takes a multiple of the ranks; 240 rows divide for 2, 3 and 4 ranks
    alone()
    for schedule in (pipeline.gpipe, pipeline.one_f_one_b, pipeline.interleaved, pipeline.zero_bubble):
        by_hand(schedule(n, parts))
    by_torch("ScheduleGPipe", parts)
    by_torch("Schedule1F1B", parts)
    by_torch("ScheduleInterleaved1F1B", parts, chunks=2)
    by_torch("ScheduleInterleavedZeroBubble", parts, chunks=2)


if __name__ == "__main__":
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=world_size)
    main()
    dist.destroy_process_group()
    # Gloo's threads may outlive the group. One that wants Python's lock while Python takes itself apart would abort the
    # process (before Python 3.14): so there is nothing to take apart.
    sys.stdout.flush()
    os._exit(0)
