"""The faults of the chaos soak in what torch builds on collectives, and in how Python calls them: each is one cell."""

from __future__ import annotations

from random import Random

from chaos_cells import CELL, FAULTS, STUCK, cell, fault
from chaos_lab import Learner

DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
MESH = "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh\n"
DTENSOR = f"{MESH}from torch.distributed.tensor import Shard, distribute_tensor\n"

# {r} is a random rank, which is named in the error.
CELLS = {
    "DDP with one batch more": (
        STUCK,
        f"{DDP}net = DDP(torch.nn.Linear(4, 2))\n"
        "for _ in range(2 if rank == {r} else 1): net(torch.ones(2, 4)).sum().backward()",
    ),
    "DDP made on some ranks only": (STUCK, f"{DDP}if rank != {{r}}: net = DDP(torch.nn.Linear(4, 2))"),
    "DDP with unlike models": (CELL, f"{DDP}net = DDP(torch.nn.Linear(4, 3 if rank == {{r}} else 2))"),
    "DDP without no_sync on a rank": (
        STUCK,
        f"{DDP}from contextlib import nullcontext\nnet = DDP(torch.nn.Linear(4, 2))\n"
        "with nullcontext() if rank == {r} else net.no_sync():\n    net(torch.ones(2, 4)).sum().backward()",
    ),
    "FSDP2 with a forward pass less": (
        STUCK,
        f"{MESH}from torch.distributed.fsdp import fully_shard\n"
        "net = fully_shard(torch.nn.Linear(6, 6), mesh=init_device_mesh('cpu', (world_size,)))\n"
        "if rank != {r}: net(torch.ones(2, 6))",
    ),
    "a whole DTensor on a rank only": (
        STUCK,
        f"{DTENSOR}net = distribute_tensor(torch.arange(6.0), init_device_mesh('cpu', (world_size,)), [Shard(0)])\n"
        "if rank == {r}: net.full_tensor().sum()",
    ),
    "a pipeline with fewer microbatches on a rank": (
        STUCK,
        "from torch.distributed.pipelining import PipelineStage, ScheduleGPipe\n"
        "net = PipelineStage(torch.nn.Linear(4, 4), rank, world_size, device)\n"
        "net = ScheduleGPipe(net, n_microbatches=2 if rank == {r} else 4)\n"
        "net.step(*[torch.ones(8, 4)] * (rank == 0))",
    ),
    "a collective in a thread on some ranks": (
        STUCK,
        "import threading\nif rank != {r}:\n"
        "    work = threading.Thread(target=dist.all_reduce, args=(torch.ones(1),))\n    work.start()\n    work.join()",
    ),
    "an asynchronous call on some ranks only": (
        STUCK,
        "if rank != {r}: work = dist.all_reduce(torch.ones(1), async_op=True)",
    ),
    "a peer that does not exist": (
        CELL,
        "if rank == {r}: dist.{first}(torch.ones(1), world_size)\ndist.barrier()",
    ),
    "await before a collective on some ranks": (
        STUCK,
        "import asyncio\nawait asyncio.sleep(0.1)\nif rank != {r}: dist.all_reduce(torch.ones(1))",
    ),
    "a collective in a DataLoader's worker": (
        CELL,
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Worker(Dataset):\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i): dist.all_reduce(torch.ones(1)); return i\n"
        "if rank == {r}: list(DataLoader(Worker(), num_workers=1))",
    ),
}
FAULTS |= {name: cell(ends, code, named="rank {r}") for name, (ends, code) in CELLS.items()}
FAULTS["DTensors of crossed meshes"] = cell(
    STUCK,
    f"{DTENSOR}net = [\n"
    "    distribute_tensor(torch.arange(6.0), DeviceMesh.from_group(dist.new_group(), 'cpu'), [Shard(0)])\n"
    "    for _ in range(2)\n"
    "]\n"
    "for net in net if rank == {r} else net[::-1]: net.full_tensor().sum()",
    named="different groups",
)


@fault("a refused call that is caught, and then another")
def _(learner: Learner, draw: Random) -> None:
    r = draw.randrange(learner.n)
    refused = f"try: dist.all_reduce(torch.ones(2 if rank == {r} else 1))\nexcept Exception: pass"
    learner.px(
        f"{refused}\n{draw.choice(['dist.barrier()', 'dist.all_reduce(torch.ones(1))'])}", f"{CELL}Ranks disagree"
    )


@fault("await, and a right call")
def _(learner: Learner, draw: Random) -> None:
    said = learner.px("import asyncio\nawait asyncio.sleep(0.1)\ndist.barrier()\nprint('awaited')", "").stdout
    assert "awaited" in said, said


@fault("a collective in a forked child")
def _(learner: Learner, draw: Random) -> None:
    """It is refused there, and its rank lives on."""
    r = draw.randrange(learner.n)
    fork = "import multiprocessing\nwork = multiprocessing.get_context('fork').Process(target=dist.barrier)"
    learner.px(
        f"if rank == {r}:\n    {fork.replace(chr(10), chr(10) + '    ')}\n    work.start()\n    work.join(60)", ""
    )
    assert learner.cell(f"lab.pull('rank == {r} and work.exitcode')[{r}]", "").result == "1"
