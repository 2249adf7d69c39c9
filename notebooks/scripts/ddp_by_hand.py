"""Data-parallel training by hand, beside DistributedDataParallel and one process: the same losses.

    torchrun --nproc-per-node 4 scripts/ddp_by_hand.py

Rank 0 prints the mean loss of every fifth batch, one line a way of training, and how far the last gradients are from
those of one process that reads all rows itself. Where DeepSpeed is installed, its engine trains as well.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/ddp_by_hand.py &
    done; wait; rm -f $meet
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions keep the group that they find as their default
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit.rank import tiny  # the model and its text: torch and Python's own documentation

STEPS, LR = 20, 0.5
DTYPE = torch.float64  # so that equal means equal to 12 digits


def data_parallel(model: nn.Module) -> None:
    """Give all ranks rank 0's model, and let every backward() average the gradients."""
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)

    def average(p: torch.Tensor) -> None:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)


def overlapped(buckets: Sequence[Sequence[nn.Parameter]]) -> Callable[[], None]:
    """Let each bucket leave as soon as it may; return finish(), which waits for all of them."""
    bucket_of = {p: k for k, bucket in enumerate(buckets) for p in bucket}
    missing = [len(bucket) for bucket in buckets]  # gradients that are still to come
    left = []  # of each bucket that has left: its gradients in one tensor, and the handle

    def ready(p: nn.Parameter) -> None:
        missing[bucket_of[p]] -= 1
        while len(left) < len(buckets) and missing[len(left)] == 0:  # in the order of their numbers, on every rank
            flat = torch.cat([q.grad.flatten() for q in buckets[len(left)]])
            left.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish() -> None:
        for bucket, (flat, work) in zip(buckets, left, strict=True):
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad.copy_(part.view_as(p) / dist.get_world_size())
        missing[:] = [len(bucket) for bucket in buckets]
        left.clear()

    for p in bucket_of:
        p.register_post_accumulate_grad_hook(ready)
    return finish


def fresh(seed: int) -> nn.Module:
    """A new model, the same one for the same seed."""
    torch.manual_seed(seed)
    return tiny.Model().to(DTYPE)


def train(
    model: nn.Module, rank: int, world_size: int, after: Callable[[], None] = lambda: None
) -> tuple[list[float], torch.Tensor]:
    """Train on this rank's shares; every fifth batch's mean loss over all ranks, and the last gradients."""
    losses = []
    for step in range(STEPS):
        model.zero_grad()
        loss = tiny.loss(model, tiny.batch(step, rank, world_size))
        loss.backward()
        after()
        with torch.no_grad():
            for p in model.parameters():
                p -= LR * p.grad
        if step % 5 == 4:
            losses.append(mean(loss.detach(), world_size))
    return losses, torch.cat([p.grad.flatten() for p in model.parameters()])


def mean(loss: torch.Tensor, world_size: int) -> float:
    """The mean of equal shares' losses; of one process, its own."""
    if world_size > 1:
        dist.all_reduce(loss)
    return loss.item() / world_size


def with_deepspeed(rank: int, world_size: int) -> list[float]:
    """The same training by DeepSpeed's engine, in float32."""
    import deepspeed

    torch.manual_seed(0)
    model = tiny.Model()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        config={"train_batch_size": 240, "train_micro_batch_size_per_gpu": 240 // world_size},
    )
    losses = []
    for step in range(STEPS):
        loss = tiny.loss(engine, tiny.batch(step, rank, world_size))
        engine.backward(loss)
        engine.step()
        if step % 5 == 4:
            losses.append(mean(loss.detach(), world_size))
    return losses


def main() -> None:
    """Train in every way; rank 0 prints."""
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def line(way: str, losses: Sequence[float], note: str = "") -> None:
        if rank == 0:
            print(f"{way:20}", *(f"{loss:.6f}" for loss in losses), note)

    losses, wanted = train(fresh(0), 0, 1)
    line("one process", losses)

    def against(gradients: torch.Tensor) -> str:
        off = ((gradients - wanted).abs().max() / wanted.abs().max()).item()
        assert off < 1e-10, off
        return "gradients agree to 1e-10"

    by_hooks = fresh(rank)  # the ranks begin with different models, and get rank 0's
    data_parallel(by_hooks)
    losses, gradients = train(by_hooks, rank, world_size)
    line("hooks", losses, against(gradients))

    in_buckets = fresh(0)
    layers = [in_buckets.output, in_buckets.hidden, in_buckets.embedding]  # the last gradient comes last
    finish = overlapped([list(layer.parameters()) for layer in layers])
    losses, gradients = train(in_buckets, rank, world_size, finish)
    line("buckets, overlapped", losses, against(gradients))

    losses, gradients = train(DistributedDataParallel(fresh(rank)), rank, world_size)
    line("DDP", losses, against(gradients))

    if importlib.util.find_spec("deepspeed"):
        line("DeepSpeed, float32", with_deepspeed(rank, world_size))


if __name__ == "__main__":
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=world_size)
    main()
    dist.destroy_process_group()
