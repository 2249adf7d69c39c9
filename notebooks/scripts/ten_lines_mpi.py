"""The same ten lines in MPI, from Python with mpi4py: one data-parallel training step, then each call once.

    mpiexec -n 4 python scripts/ten_lines_mpi.py

It does what ten_lines_torch.py does, on the same numbers, and prints the same lines.
"""

import json

import mpi4py
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, n = comm.Get_rank(), comm.Get_size()


def tell(call, mine):
    """Print what every rank holds, on rank 0; None where nobody promises anything."""
    told = comm.gather(mine if mine is None else [float(x) for x in mine])
    if rank == 0:
        print(f"{call:15}", *map(json.dumps, told), flush=True)


if rank == 0:
    print(f"mpi4py {mpi4py.__version__}, {MPI.Get_library_version().splitlines()[0].strip(chr(0))}, {n} ranks")

# the ten lines
w = np.array([1.0, 2.0]) if rank == 0 else np.zeros(2)  # rank 0 alone has the weights
comm.Bcast(w, root=0)
x, y = np.array([rank + 1.0, 2.0]), 10.0  # a row for each rank
gradient = 2 * (w @ x - y) * x  # of (w · x − y)²
comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
w -= gradient / n / 16
# end

tell("step", w)

# each call once
mine, parts = np.array([rank + 1.0]), 10.0 * (rank + 1) + np.arange(n)

array = mine.copy()
comm.Bcast(array, root=0)
tell("broadcast", array)

total = np.zeros(1)
comm.Reduce(mine, total if rank == 0 else None, op=MPI.SUM, root=0)
tell("reduce", total if rank == 0 else None)

comm.Allreduce(mine, total, op=MPI.SUM)
tell("all_reduce", total)

gathered = np.zeros(n)
comm.Gather(mine, gathered if rank == 0 else None, root=0)
tell("gather", gathered if rank == 0 else None)

part = np.zeros(1)
comm.Scatter(parts if rank == 0 else None, part, root=0)
tell("scatter", part)

comm.Allgather(mine, gathered)
tell("all_gather", gathered)

comm.Reduce_scatter_block(parts, part, op=MPI.SUM)
tell("reduce_scatter", part)

exchanged = np.zeros(n)
comm.Alltoall(parts, exchanged)
tell("all_to_all", exchanged)

array = mine.copy()
if rank == 0:
    comm.Send(mine, dest=n - 1)
elif rank == n - 1:
    comm.Recv(array, source=0)
tell("send, recv", array)

array = mine.copy()
team = comm.Split(color=int(rank > 0), key=rank)  # everybody calls it, everybody is in a communicator then
if rank > 0:
    team.Bcast(array, root=0)  # a rank of the communicator: rank 1 of the world
tell("group", array)

request = comm.Iallreduce(mine, total, op=MPI.SUM)
request.Wait()
tell("async", total)

comm.Barrier()
