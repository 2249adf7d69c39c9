"""An all-reduce by hand: the textbook's ring of reduce-scatter and all-gather, from point to point."""

from __future__ import annotations

import torch
import torch.distributed as dist


def ring_all_reduce(x: torch.Tensor, room: torch.Tensor) -> None:
    """Sum x over all ranks, in place; `room` is as long as x and holds what arrives."""
    n, rank = dist.get_world_size(), dist.get_rank()
    chunks, rooms = x.tensor_split(n), room.tensor_split(n)
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(2 * (n - 1)):
        out, into = (rank - step) % n, (rank - step - 1) % n
        adding = step < n - 1
        target = rooms[into] if adding else chunks[into]
        exchange = [dist.P2POp(dist.isend, chunks[out], right), dist.P2POp(dist.irecv, target, left)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        if adding:
            chunks[into].add_(target)
