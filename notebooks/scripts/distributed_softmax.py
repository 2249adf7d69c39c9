"""The softmax of numbers that lie on several ranks, without bringing them together.

    torchrun --nproc-per-node 4 scripts/distributed_softmax.py

The maximum of all numbers is taken off first, so that no exponential overflows. Every rank then divides its own
exponentials by everybody's sum. Two all-reduces of one number each, however long the shards are.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/distributed_softmax.py &
    done; wait; rm -f $meet
"""

import os
import sys

import torch
import torch.distributed as dist


def softmax(x: torch.Tensor) -> torch.Tensor:
    """This rank's part of the softmax over all ranks' numbers; a rank may hold none."""
    largest = x.max() if x.numel() else torch.tensor(-torch.inf)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    powers = (x - largest).exp()
    total = powers.sum()
    dist.all_reduce(total)
    return powers / total


def main() -> None:
    """Rank r holds r numbers, a rank alone one; each is so large that its exponential overflows by itself."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    held = rank if world_size > 1 else 1
    x = 1000 + torch.arange(held) + rank / 2
    y = softmax(x)
    total = y.sum()
    dist.all_reduce(total)
    line = f"rank {rank} holds {x.tolist()}, softmax {y.tolist()}, sum over ranks {total:.6f}"
    lines = [""] * world_size if rank == 0 else None
    dist.gather_object(line, lines)
    print(*lines or [], sep="\n", end="\n" if lines else "")


if __name__ == "__main__":
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=world_size)
    main()
    dist.destroy_process_group()
