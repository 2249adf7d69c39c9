"""The mean of numbers that lie on several ranks, some of which hold more than others.

    torchrun --nproc-per-node 4 scripts/distributed_mean.py

A mean of the ranks' means is wrong as soon as one rank holds more numbers than another. What adds up is a sum and a
count: one all-reduce of both, then a division. For gradients, the count is the samples that a rank's share has.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/distributed_mean.py &
    done; wait; rm -f $meet
"""

import os
import sys

import torch
import torch.distributed as dist


def mean(x: torch.Tensor) -> torch.Tensor:
    """The mean of all ranks' numbers, on every rank; a rank may hold none."""
    total = torch.stack([x.sum(), torch.tensor(float(x.numel()))])
    dist.all_reduce(total)
    return total[0] / total[1]


def mean_of_means(x: torch.Tensor) -> torch.Tensor:
    """What a mean of the ranks' means gives: every rank counts the same, however little it holds."""
    own = x.mean()
    dist.all_reduce(own)
    return own / dist.get_world_size()


def main() -> None:
    """Rank r holds r + 1 numbers; rank 0 prints what every rank holds and gets."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    first = rank * (rank + 1) // 2
    x = torch.arange(first, first + rank + 1).float()
    line = f"rank {rank} holds {x.tolist()}, mean {mean(x):.6f}, mean of means {mean_of_means(x):.6f}"
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
