"""Each call in the words of eight systems, and the traps between them: plain data.

The columns torch, mpi4py, tensorflow and deepspeed are run by the programs in `notebooks/scripts/ten_lines_*.py`. The
others were read: MPI's C names in the header of mpich 5.0.2, NCCL in `nccl.h.in` of 2.30.7 (and of 2.27.7 and 2.28.3
for what is new), RCCL in its `nccl.h.in` in ROCm/rocm-systems, Horovod in the source of its tag v0.28.1.
Imports labkit's errors only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from labkit.floor.errors import LabError


@dataclass(frozen=True)
class Tongue:
    """A system with a column in the phrasebook.

    Args:
        name: a column of the phrasebook.
        title: the name in sentences.
        program: the system of `tools.elsewhere.ten_lines` whose program runs these calls; "" where they were read only.
        read: where they were read, if they were not run.
    """

    name: str
    title: str
    program: str = ""
    read: str = ""


TONGUES = {
    t.name: t
    for t in (
        Tongue("torch", "torch.distributed", "torch"),
        Tongue("mpi", "MPI in C", read="the header of mpich 5.0.2"),
        Tongue("mpi4py", "mpi4py", "mpi"),
        Tongue("nccl", "NCCL", read="nccl.h of NCCL 2.30.7"),
        Tongue("rccl", "RCCL", read="nccl.h of RCCL, in ROCm/rocm-systems"),
        Tongue("horovod", "Horovod", read="the source of version 0.28.1, which does not build with torch 2.13"),
        Tongue("tensorflow", "TensorFlow", "tensorflow"),
        Tongue("deepspeed", "deepspeed.comm", "deepspeed"),
    )
}

# A call by its name in theory.ten_lines, and under it each system's phrase; a system without a line has no such call.
# RCCL has NCCL's names, and DeepSpeed torch's where it has no line. `dist` is torch.distributed or deepspeed.comm,
# `comm` a communicator, `hvd` horovod.torch.
_CALLS = """\
start
    torch       dist.init_process_group(backend)
    mpi         MPI_Init(&argc, &argv)
    mpi4py      from mpi4py import MPI
    nccl        ncclCommInitRank(&comm, n, id, rank)
    horovod     hvd.init()
    tensorflow  tf.distribute.MultiWorkerMirroredStrategy()
    deepspeed   deepspeed.init_distributed(backend)
rank, size
    torch       dist.get_rank(), dist.get_world_size()
    mpi         MPI_Comm_rank(comm, &r), MPI_Comm_size(comm, &n)
    mpi4py      comm.Get_rank(), comm.Get_size()
    nccl        ncclCommUserRank(comm, &r), ncclCommCount(comm, &n)
    horovod     hvd.rank(), hvd.size()
    tensorflow  os.environ["TF_CONFIG"]
broadcast
    torch       dist.broadcast(x, src=0)
    mpi         MPI_Bcast(x, count, type, 0, comm)
    mpi4py      comm.Bcast(x, root=0)
    nccl        ncclBroadcast(send, recv, count, type, 0, comm, stream)
    horovod     hvd.broadcast_(x, root_rank=0)
    tensorflow  tf.raw_ops.CollectiveBcastSendV2, …RecvV2
reduce
    torch       dist.reduce(x, dst=0)
    mpi         MPI_Reduce(send, recv, count, type, MPI_SUM, 0, comm)
    mpi4py      comm.Reduce(send, recv, op=MPI.SUM, root=0)
    nccl        ncclReduce(send, recv, count, type, ncclSum, 0, comm, stream)
all_reduce
    torch       dist.all_reduce(x)
    mpi         MPI_Allreduce(send, recv, count, type, MPI_SUM, comm)
    mpi4py      comm.Allreduce(send, recv, op=MPI.SUM)
    nccl        ncclAllReduce(send, recv, count, type, ncclSum, comm, stream)
    horovod     hvd.allreduce_(x, op=hvd.Sum)
    tensorflow  tf.raw_ops.CollectiveReduceV2
gather
    torch       dist.gather(x, xs, dst=0)
    mpi         MPI_Gather(send, count, type, recv, count, type, 0, comm)
    mpi4py      comm.Gather(send, recv, root=0)
    nccl        ncclGather(send, recv, count, type, 0, comm, stream)
scatter
    torch       dist.scatter(x, xs, src=0)
    mpi         MPI_Scatter(send, count, type, recv, count, type, 0, comm)
    mpi4py      comm.Scatter(send, recv, root=0)
    nccl        ncclScatter(send, recv, count, type, 0, comm, stream)
all_gather
    torch       dist.all_gather(xs, x)
    mpi         MPI_Allgather(send, count, type, recv, count, type, comm)
    mpi4py      comm.Allgather(send, recv)
    nccl        ncclAllGather(send, recv, sendcount, type, comm, stream)
    horovod     hvd.allgather(x)
    tensorflow  tf.raw_ops.CollectiveGatherV2
reduce_scatter
    torch       dist.reduce_scatter(x, xs)
    mpi         MPI_Reduce_scatter_block(send, recv, recvcount, type, MPI_SUM, comm)
    mpi4py      comm.Reduce_scatter_block(send, recv, op=MPI.SUM)
    nccl        ncclReduceScatter(send, recv, recvcount, type, ncclSum, comm, stream)
    horovod     hvd.reducescatter(x, op=hvd.Sum)
    tensorflow  tf.raw_ops.CollectiveReduceScatterV2
all_to_all
    torch       dist.all_to_all_single(y, x)
    mpi         MPI_Alltoall(send, count, type, recv, count, type, comm)
    mpi4py      comm.Alltoall(send, recv)
    nccl        ncclAlltoAll(send, recv, count, type, comm, stream)
    horovod     hvd.alltoall(x, splits)
    tensorflow  tf.raw_ops.CollectiveAllToAllV2
send, recv
    torch       dist.send(x, dst), dist.recv(x, src)
    mpi         MPI_Send(x, count, type, dest, tag, comm), MPI_Recv(…, &status)
    mpi4py      comm.Send(x, dest), comm.Recv(x, source)
    nccl        ncclSend(x, count, type, peer, comm, stream), ncclRecv(…)
barrier
    torch       dist.barrier()
    mpi         MPI_Barrier(comm)
    mpi4py      comm.Barrier()
    horovod     hvd.barrier()
group
    torch       dist.new_group(ranks), then group=
    mpi         MPI_Comm_split(comm, color, key, &team)
    mpi4py      comm.Split(color, key)
    nccl        ncclCommSplit(comm, color, key, &team, config)
    horovod     hvd.add_process_set(ranks), then process_set=
    tensorflow  tf.raw_ops.CollectiveBcastSendV2(…, group_key=2)
async
    torch       dist.all_reduce(x, async_op=True), work.wait()
    mpi         MPI_Iallreduce(…, &request), MPI_Wait(&request, &status)
    mpi4py      comm.Iallreduce(send, recv), request.Wait()
    nccl        every call: it is enqueued on the stream
    horovod     hvd.allreduce_async_(x), hvd.synchronize(handle)
"""

# Where a word for word translation goes wrong: the columns that it is about, and what is true, in Markdown.
_TRAPS = """\
mpi, mpi4py, nccl, rccl: **Root.** A root is a rank of the communicator. torch's `src` and `dst` are ranks of the
    world, also in a group; `group_src` and `group_dst` count within it.
mpi, mpi4py, nccl, rccl: **Order in a group.** `key` orders the ranks of a split; ties keep their order.
    `dist.new_group([3, 2])` sorts its ranks: 2 is member 0.
mpi, mpi4py: **Who makes a group.** Every rank calls `MPI_Comm_split` once, and every rank is in one of its parts.
    `dist.new_group` makes one group per call, and every rank of the world makes all of them, in the same order.
mpi, mpi4py: **In place.** The same array as input and output is an error; say `MPI.IN_PLACE` instead of the input.
    torch works in place.
mpi4py: **Lower case.** `comm.allreduce(x)`, `comm.bcast(x)` and so on pickle any object and return the result: like
    torch's object collectives. Lists are added with `+`, which joins them.
nccl, rccl: **Counts** are elements, not bytes, and of **one rank's part**: `recvcount` of a reduce-scatter and
    `sendcount` of an all-gather are a rank's share; the other buffer is n times as long. MPI counts likewise.
mpi, mpi4py: **Uneven parts** have calls of their own: `Allgatherv`, `Alltoallv`, `Reduce_scatter` with counts and
    displacements. In torch, pad, or give `all_to_all_single` its split sizes.
nccl, rccl: **In place** means that the pointers agree: `send == recv`; in a reduce-scatter `recv == send + rank *
    recvcount`, in an all-gather `send == recv + rank * sendcount`.
nccl, rccl: **Several sends at once**, or a send and a receive that need each other, go between `ncclGroupStart()`
    and `ncclGroupEnd()`. There is no barrier: torch's is a small all-reduce.
nccl: **New in 2.28:** `ncclAlltoAll`, `ncclGather` and `ncclScatter`. In 2.27 they were groups of `ncclSend` and
    `ncclRecv`.
rccl: **The names are NCCL's**, and torch's build for AMD calls the backend `nccl`, too. RCCL's older
    `ncclAllToAll`, with a capital T, is deprecated; `ncclAlltoAllv` is RCCL's alone.
horovod: **The mean is the default**, of `allreduce` and of `reducescatter`. `op=hvd.Sum` adds. A call without `_`
    at its end leaves its input alone and returns the result.
horovod: **Names, not order.** Tensors meet by the name of the operation; without one, by a number that counts the
    calls. `allgather` takes different first dimensions, `alltoall` takes `splits`.
tensorflow: **Keys.** Calls meet by `group_key` and `instance_key`. A worker that has counted one call fewer waits
    for ever. A variable that is created under the strategy is broadcast from worker 0.
tensorflow: **On CPUs there is no reduce-scatter**, and its failure ends all collectives of the program.
    `strategy.reduce` and `strategy.gather` give the result to every worker.
deepspeed: **Names and arguments are torch's**, of an older torch: it calls `all_gather_into_tensor`, for which
    torch 2.13 warns. With its communication logger on, every call is synchronised with the GPU, so nothing
    overlaps.
"""


def _calls() -> dict[str, dict[str, str]]:
    """Return the phrase of each system for each call, "" where it has none."""
    found: dict[str, dict[str, str]] = {}
    for block in re.split(r"\n(?=\S)", _CALLS.strip()):
        call, *lines = block.splitlines()
        said: dict[str, str] = dict(line.split(maxsplit=1) for line in lines)
        said |= {"rccl": said.get("nccl", ""), "deepspeed": said.get("deepspeed", said["torch"])}
        found[call] = {name: said.get(name, "") for name in TONGUES}
    return found


def _traps() -> list[tuple[list[str], str]]:
    """Return each trap as the names of its columns and its text."""
    blocks = (" ".join(block.split()) for block in re.split(r"\n(?=\S)", _TRAPS.strip()))
    return [(names.split(", "), text) for names, _, text in (block.partition(": ") for block in blocks)]


CALLS, TRAPS = _calls(), _traps()


def find(name: str) -> Tongue:
    """Return the system of this name. Raises `LabError`, which lists the names, where there is none."""
    if name in TONGUES:
        return TONGUES[name]
    raise LabError(f"The phrasebook does not speak {name!r}. Choose among {', '.join(TONGUES)}.")
