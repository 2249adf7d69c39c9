"""One of MPI's ranks, for `workbook.tools.mpi`: all-reduces in shared memory, timed as `rank.clock` times. No torch.

`mpiexec -n 2 python -m workbook.tools.rank.mpi 5,6` reads its orders, a line each, from a file descriptor of its own
(rank 0 from 5), so that it sleeps between two turns: an MPI rank that waits for another one is busy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from workbook.tools.rank.mpi_world import joined


def main() -> None:
    """Do what the lines say until there are none; rank 0 answers with a line each."""
    MPI = joined()
    comm = MPI.COMM_WORLD
    orders = int(sys.argv[1].split(",")[comm.Get_rank()])
    with os.fdopen(orders) as lines:
        for line in lines:
            answer = turn(comm, MPI, **json.loads(line))
            if comm.Get_rank() == 0:
                print(json.dumps(answer), flush=True)


def turn(comm: Any, MPI: Any, nbytes: int, repeat: int, calls: int, lasts: float) -> dict[str, Any]:
    """Time `calls` calls `repeat` times; 0 calls: check the result first, and make as many as last so many seconds."""
    n, me = comm.Get_size(), comm.Get_rank()
    x, right = np.resize(np.arange(11, dtype=np.float32), nbytes // 4) + np.float32(me), True
    if not calls:
        wanted = n * (x - me) + n * (n - 1) / 2
        comm.Allreduce(MPI.IN_PLACE, x)
        right = comm.allreduce(bool((x == wanted).all()), MPI.LAND)
    x[:] = 0
    if not calls:
        once = comm.allreduce(min(_timed(comm, MPI, x, 1) for _ in range(3)), MPI.MAX)
        calls = max(1, int(lasts / once))
    mine = [_timed(comm, MPI, x, calls) for _ in range(repeat)]
    told = comm.allgather(mine)
    return {"right": right, "calls": calls, "samples": [list(ranks) for ranks in zip(*told, strict=True)]}


def _timed(comm: Any, MPI: Any, x: np.ndarray, calls: int) -> float:
    comm.Barrier()
    began = time.perf_counter()
    for _ in range(calls):
        comm.Allreduce(MPI.IN_PLACE, x)
    return (time.perf_counter() - began) / calls


if __name__ == "__main__":
    main()
