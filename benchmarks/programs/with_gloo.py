"""Under torchrun: torch's collectives on Gloo, a ring by hand, and copying memory on all ranks at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import loop
import torch
import torch.distributed as dist
from ring import ring_all_reduce

from labkit.rank.torch_aliases import all_gather_single, reduce_scatter_single

dist.init_process_group("gloo")
n, rank = dist.get_world_size(), dist.get_rank()


def slowest(seconds: list[float]) -> list[float]:
    """The maximum over ranks."""
    worst = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.tolist()


def calls(nbytes: int) -> dict[str, Callable[[], Any]]:
    """Every operation on a buffer of so many bytes: zeros, of which sums stay finite."""
    x, y, mine = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4), torch.zeros(nbytes // 4 // n)
    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "all_reduce, a ring in Python": lambda: ring_all_reduce(x, y),
        "broadcast": lambda: dist.broadcast(x, 0),
        "all_gather": lambda: all_gather_single(y, mine),
        "reduce_scatter": lambda: reduce_scatter_single(mine, x),
        "all_to_all": lambda: dist.all_to_all_single(y, x),
        "copy": lambda: y.copy_(x),
    }


def check() -> None:
    """The ring by hand is an all-reduce, also where the chunks are uneven."""
    for size in (1, 10, 4097):
        x = torch.arange(size) * 1.0 + rank
        wanted = n * torch.arange(size) + n * (n - 1) / 2
        ring_all_reduce(x, torch.empty_like(x))
        assert x.equal(wanted), (x, wanted)


check()
results = {
    f"{op}, {size}": taken
    for size, nbytes in loop.SIZES.items()
    for op, taken in loop.samples(calls(nbytes), dist.barrier, slowest).items()
}
if rank == 0:
    sys.stdout.write(f"@ {json.dumps(results)}\n")
dist.barrier()
dist.destroy_process_group()
