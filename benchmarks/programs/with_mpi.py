"""Under mpiexec: MPI's collectives through shared memory, on numpy buffers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import loop
import numpy as np

os.environ["UCX_TLS"] = "self,sm"  # shared memory alone: else each rank listens on the host's own address
from mpi4py import MPI

comm = MPI.COMM_WORLD
n, rank = comm.Get_size(), comm.Get_rank()


def slowest(seconds: list[float]) -> list[float]:
    """The maximum over ranks."""
    return [max(column) for column in zip(*comm.allgather(seconds), strict=True)]


def calls(nbytes: int) -> dict[str, Callable[[], Any]]:
    """Every operation on a buffer of so many bytes: zeros, written so that each page of them is memory of its own."""
    x, y, mine = (np.full(k, 0, np.float32) for k in (nbytes // 4, nbytes // 4, nbytes // 4 // n))
    return {
        "all_reduce": lambda: comm.Allreduce(MPI.IN_PLACE, x),
        "broadcast": lambda: comm.Bcast(x),
        "all_gather": lambda: comm.Allgather(mine, y),
        "reduce_scatter": lambda: comm.Reduce_scatter_block(x, mine),
        "all_to_all": lambda: comm.Alltoall(x, y),
    }


x = np.arange(4097, dtype=np.float32) + rank
comm.Allreduce(MPI.IN_PLACE, x)
assert (x == n * np.arange(4097) + n * (n - 1) / 2).all()
results = {
    f"{op}, {size}": taken
    for size, nbytes in loop.SIZES.items()
    for op, taken in loop.samples(calls(nbytes), comm.Barrier, slowest).items()
}
if rank == 0:
    sys.stdout.write(f"@ {json.dumps(results)}\n")
    sys.stdout.flush()
