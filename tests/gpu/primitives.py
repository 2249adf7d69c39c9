"""Every primitive as code for the ranks that leaves its result in `y`, and what each rank must then have."""

from __future__ import annotations

import ast
import functools
import time
from collections.abc import Callable
from typing import Any

from labkit.theory import collectives
from labkit.theory.values import combine, split
from tests.gpu.lane import SYNC, Lane, N

SIZES = [8, 4096]  # elements
GIVEN = """
x = (torch.arange({size}, device=device) % 5 + rank + 1).float()
parts = [part.clone() for part in x.chunk(world_size)]
ROOT, left, right, half = 1, (rank - 1) % world_size, (rank + 1) % world_size, rank // 2
def empty(n): return torch.full((n,), -1, dtype=x.dtype, device=device)
"""
AS_LISTS = """
def as_list(v):
    return v.tolist() if isinstance(v, torch.Tensor) else list(map(as_list, v)) if isinstance(v, list) else v
y = as_list(y)
"""
Wants = Callable[[list[Any]], list[Any]]


def _cut(xs: list[Any]) -> list[Any]:
    return [split(x, N) for x in xs]


def _in(groups: list[list[int]]) -> Wants:
    """What each rank has after an all-reduce in each of these groups."""
    mine = {r: group for group in groups for r in group}
    return lambda xs: [combine([xs[q] for q in mine[r]]) for r in range(N)]


def _everywhere(value: Any) -> Wants:
    return lambda xs: [value] * N


HALVES, EVERY_SECOND = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
SUM = collectives.all_reduce
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
OBJECTS = [{"rank": r} for r in range(N)]
BACKWARD = """
model = {wrapped}(torch.nn.Linear(3, 2, bias=False, device=device))
model(torch.full((2, 3), rank + 1.0, device=device)).sum().backward()
"""

PRIMITIVES: dict[str, tuple[str, Wants]] = {
    "broadcast": ("dist.broadcast(x, ROOT)\ny = x", lambda xs: collectives.broadcast(xs, 1)),
    **{
        f"reduce {op}": (
            f"dist.reduce(x, ROOT, dist.ReduceOp.{op})\ny = x if rank == ROOT else None",
            functools.partial(collectives.reduce, root=1, op=op),
        )
        for op in OPS
    },
    **{
        f"all_reduce {op}": (
            f"dist.all_reduce(x, dist.ReduceOp.{op})\ny = x",
            functools.partial(collectives.all_reduce, op=op),
        )
        for op in OPS
    },
    "all_reduce PREMUL_SUM": (
        "dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))\ny = x",
        lambda xs: collectives.all_reduce([0.5 * x for x in xs]),
    ),
    "all_reduce of int64": ("x = x.long()\ndist.all_reduce(x)\ny = x", SUM),
    "all_reduce of bfloat16": ("x = x.bfloat16()\ndist.all_reduce(x)\ny = x", SUM),
    "all_reduce, async": ("dist.all_reduce(x, async_op=True).wait()\ny = x", SUM),
    "gather": (
        "y = [empty(len(x)) for _ in range(world_size)] if rank == ROOT else None\ndist.gather(x, y, ROOT)",
        lambda xs: collectives.gather(xs, 1),
    ),
    "scatter": (
        "y = empty(len(x) // world_size)\ndist.scatter(y, parts if rank == ROOT else None, ROOT)",
        lambda xs: collectives.scatter(_cut(xs), 1),
    ),
    "all_gather": ("y = [empty(len(x)) for _ in range(world_size)]\ndist.all_gather(y, x)", collectives.all_gather),
    "all_gather_into_tensor": (
        "y = empty(world_size * len(x))\ndist.all_gather_into_tensor(y, x)\ny = list(y.chunk(world_size))",
        collectives.all_gather,
    ),
    "reduce_scatter": (
        "y = empty(len(x) // world_size)\ndist.reduce_scatter(y, parts)",
        lambda xs: collectives.reduce_scatter(_cut(xs)),
    ),
    "reduce_scatter_tensor": (
        "y = empty(len(x) // world_size)\ndist.reduce_scatter_tensor(y, x)",
        lambda xs: collectives.reduce_scatter(_cut(xs)),
    ),
    "all_to_all": (
        "y = [empty(len(part)) for part in parts]\ndist.all_to_all(y, parts)",
        lambda xs: collectives.all_to_all(_cut(xs)),
    ),
    "all_to_all_single": (
        "y = empty(len(x))\ndist.all_to_all_single(y, x)\ny = list(y.chunk(world_size))",
        lambda xs: collectives.all_to_all(_cut(xs)),
    ),
    "all_to_all_single, uneven": (
        "to = [1, 2, 3, len(x) - 6]\ny = empty(world_size * to[rank])\n"
        "dist.all_to_all_single(y, x, [to[rank]] * world_size, to)",
        lambda xs: collectives.all_to_all(xs, [[1, 2, 3, len(xs[0]) - 6]] * N),
    ),
    "barrier": (  # rank 3 comes late; the clock is the machine's
        "import time\nif rank == 3: time.sleep(0.1)\ncame = time.monotonic()\ndist.barrier()\n"
        f"{SYNC}\nwent, y = time.monotonic(), [None] * world_size\ndist.all_gather_object(y, (came, went))\n"
        "y = min(went for _, went in y) >= max(came for came, _ in y)",
        _everywhere(True),
    ),
    "all_gather_object": (
        'y = [None] * world_size\ndist.all_gather_object(y, {"rank": rank})',
        _everywhere(OBJECTS),
    ),
    "gather_object": (
        'y = [None] * world_size if rank == ROOT else None\ndist.gather_object({"rank": rank}, y, ROOT)',
        lambda xs: [OBJECTS if r == 1 else None for r in range(N)],
    ),
    "broadcast_object_list": (
        'y = [{"rank": rank}]\ndist.broadcast_object_list(y, ROOT)',
        _everywhere([{"rank": 1}]),
    ),
    "scatter_object_list": (
        f"y = [None]\ndist.scatter_object_list(y, {OBJECTS} if rank == ROOT else None, ROOT)",
        lambda xs: [[each] for each in OBJECTS],
    ),
    "send and recv": (
        "if rank == 0: dist.send(x, 1)\nif rank == 1: dist.recv(x, 0)\ny = x if rank == 1 else None",
        lambda xs: collectives.send_recv(xs, 0, 1),
    ),
    "send_object_list and recv_object_list": (
        'y = [None]\nif rank == 0: dist.send_object_list([{"rank": rank}], 1)\n'
        "if rank == 1: dist.recv_object_list(y, 0)",
        lambda xs: [[OBJECTS[0] if r == 1 else None] for r in range(N)],
    ),
    "batch_isend_irecv": (
        "y = empty(len(x))\nops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]\n"
        "for work in dist.batch_isend_irecv(ops): work.wait()",
        lambda xs: [xs[r - 1] for r in range(N)],
    ),
    "new_group": (
        f"groups = [dist.new_group(ranks) for ranks in {HALVES}]\ndist.all_reduce(x, group=groups[half])\ny = x",
        _in(HALVES),
    ),
    "new_group, use_local_synchronization": (
        f"mine = dist.new_group({HALVES}[half], use_local_synchronization=True)\ndist.all_reduce(x, group=mine)\ny = x",
        _in(HALVES),
    ),
    "split_group": (
        f"mine = dist.split_group(split_ranks={HALVES})\ndist.all_reduce(x, group=mine)\ny = x",
        _in(HALVES),
    ),
    "device mesh": (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        'mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("outer", "inner"))\n'
        'dist.all_reduce(x, group=mesh["outer"].get_group())\ny = x',
        _in(EVERY_SECOND),
    ),
    # Each rank's gradient is 2 (r + 1), so their mean is 5.
    "DDP": (
        "from torch.nn.parallel import DistributedDataParallel\n"
        f"{BACKWARD.format(wrapped='DistributedDataParallel')}y = model.module.weight.grad",
        _everywhere([[5.0] * 3] * 2),
    ),
    "FSDP2": (
        "from torch.distributed.fsdp import fully_shard\n"
        f"{BACKWARD.format(wrapped='fully_shard')}y = model.weight.grad.full_tensor()",
        _everywhere([[5.0] * 3] * 2),
    ),
}  # fmt: skip
NOT_ON_GLOO = {"all_reduce PREMUL_SUM": "Gloo has no PREMUL_SUM", "split_group": "Gloo cannot split a group"}


def primitive(code: str, wants: Wants) -> Callable[[Lane], float]:
    """The values on every rank, at two sizes."""

    def run(lane: Lane) -> float:
        who, began = lane.who, time.monotonic()
        for size in SIZES:
            who.px(GIVEN.format(size=size) + code + AS_LISTS, "")
            got = ast.literal_eval(who.cell('print(lab.pull("y"))', "").stdout)
            want = wants([[i % 5 + r + 1 for i in range(size)] for r in range(N)])
            for r in range(N):
                assert got[r] == want[r], f"rank {r} has {str(got[r])[:80]} instead of {str(want[r])[:80]}"
        return time.monotonic() - began

    return run
