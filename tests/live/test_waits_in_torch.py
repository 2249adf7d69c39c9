"""Waits that no function of the learner's cell shows: in torch's own code, in C++ below it, in a thread of the cell.

Each ends as any hang does: named, drawn, freed, variables kept. A rank that computes is never taken for one that waits.
"""

from __future__ import annotations

import pytest

from labkit import StuckError

pytestmark = pytest.mark.usefixtures("training")

DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
FUNCTIONAL = "import warnings, torch.distributed._functional_collectives as funcol\nwarnings.simplefilter('ignore')\n"
MESH = (
    "from torch.distributed.device_mesh import init_device_mesh\n"
    "from torch.distributed.tensor import Shard, distribute_tensor\n"
    "mesh = init_device_mesh('cpu', (3,))\n"
)
STEP = "net(torch.ones(2, 4)).sum().backward()"
TORCH = {
    "one batch more, by DDP": (
        f"{DDP}net = DDP(torch.nn.Linear(4, 2))\nfor _ in range(1 + (rank == 0)):\n    {STEP}",
        "ranks 1, 2 are missing: they finished the cell, while rank 0 waits in DDP's forward pass (line 4)",
    ),
    "DDP made on some ranks": (
        f"{DDP}if rank < 2: net = DDP(torch.nn.Linear(2, 2))",
        "rank 2 is missing: it finished the cell, while ranks 0, 1 wait in DDP's constructor (line 2)",
    ),
    "no_sync on some ranks": (
        f"{DDP}import contextlib\nnet = DDP(torch.nn.Linear(4, 2))\nfor _ in range(2):\n"
        f"    with net.no_sync() if rank == 1 else contextlib.nullcontext(): {STEP}",
        "rank 1 is missing: it finished the cell, while ranks 0, 2 wait in backward (line 5)",
    ),
    "a collective in one branch of what is compiled": (
        f"{FUNCTIONAL}def f(x, talks):\n    return funcol.all_reduce(x, 'sum', [0, 1, 2]) * 2 if talks else x\n"
        "compiled = torch.compile(f, backend='eager')\ncompiled(torch.ones(2), rank != 1)",
        "rank 1 is missing: it finished the cell, while ranks 0, 2 wait in all_reduce (line 3 of f, called in line 6)",
    ),
    "different microbatches in a pipeline": (
        "from torch.distributed.pipelining import PipelineStage, ScheduleGPipe\n"
        "stage = PipelineStage(torch.nn.Linear(4, 4), rank, 3, torch.device('cpu'))\n"
        "schedule = ScheduleGPipe(stage, n_microbatches=2 if rank == 2 else 4)\n"
        "_ = schedule.step(torch.ones(8, 4)) if rank == 0 else schedule.step()",
        "rank 2 is missing: it finished the cell, while rank 1 waits for the handle of isend (line 4)",
    ),
    "a DTensor's full_tensor on one rank": (
        f"{MESH}d = distribute_tensor(torch.arange(6.), mesh, [Shard(0)])\nif rank == 0: d.full_tensor()",
        "ranks 1, 2 are missing: they finished the cell, while rank 0 waits in full_tensor (line 5)",
    ),
    "one batch more, by FSDP": (
        f"{MESH}from torch.distributed.fsdp import fully_shard\nnet = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)\n"
        f"for _ in range(1 + (rank == 0)):\n    {STEP}",
        "ranks 1, 2 are missing: they finished the cell, while rank 0 waits in all_gather_single (line 7)",
    ),
    "a functional collective's result": (
        f"{FUNCTIONAL}y = funcol.all_reduce(torch.ones(2), 'sum', [0, 1, 2]) if rank else 0\ny + 1",
        "rank 0 is missing: it finished the cell, while ranks 1, 2 wait in all_reduce (line 4)",
    ),
    "a method of the group": (
        "if rank: dist.group.WORLD.allreduce([torch.ones(2)]).wait()",
        "rank 0 is missing: it finished the cell, while ranks 1, 2 wait in all_reduce (line 1)",
    ),
    "a function of torch's in C++": (
        "if rank: dist._broadcast_coalesced(dist.group.WORLD, [torch.ones(3)], 1000, 0)",
        "rank 0 is missing: it finished the cell, while ranks 1, 2 wait in broadcast (line 1)",
    ),
}
THREADS = {
    "a thread that is joined": (
        "import threading\ndef talk(): dist.all_reduce(torch.ones(2))\n"
        "t = threading.Thread(target=talk)\nif rank:\n    t.start(); t.join()",
        "rank 0 is missing: it finished the cell, while ranks 1, 2 wait in all_reduce (line 2)",
    ),
    "a pool's thread, with nothing of the cell's in it": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(1) as pool:\n"
        "    if rank: pool.submit(dist.barrier).result()",
        "rank 0 is missing: it finished the cell, while ranks 1, 2 wait in barrier (line 3)",
    ),
    "a thread whose queue is read": (
        "import queue, threading\nq = queue.Queue()\n"
        "def receive():\n    dist.recv(y := torch.zeros(3), 1)\n    q.put(y)\n"
        "if rank == 0:\n    threading.Thread(target=receive, daemon=True).start()\n    q.get()",
        "rank 1 is missing: it finished the cell, while rank 0 waits in recv (line 4)",
    ),
    "a thread in DDP": (
        f"{DDP}import threading\ndef train():\n    net = DDP(torch.nn.Linear(4, 2))\n"
        f"    for _ in range(1 + (rank == 0)): {STEP}\nt = threading.Thread(target=train)\nt.start(); t.join()",
        "ranks 1, 2 are missing: they finished the cell, while rank 0 waits in DDP's forward pass (line 5)",
    ),
    "a thread that runs asyncio, and its thread": (
        "import asyncio, threading\nasync def both(): await asyncio.to_thread(dist.all_reduce, torch.ones(3))\n"
        "t = threading.Thread(target=lambda: asyncio.run(both()))\nif rank:\n    t.start(); t.join()",
        "rank 0 is missing: it finished the cell, while ranks 1, 2 wait in all_reduce (line 5)",
    ),
}


@pytest.fixture(autouse=True)
def _variables(lab):
    lab.run("kept = 100 + rank")


@pytest.mark.parametrize(("code", "says"), [pytest.param(*case, id=what) for what, case in (TORCH | THREADS).items()])
def test_a_wait_below_the_cell_is_named_and_freed(lab, capsys, code, says):
    with pytest.raises(StuckError) as caught:
        lab.run(code)
    assert str(caught.value).startswith(says)
    assert any("all variables are kept" in note for note in caught.value.notes)
    assert "Traceback" not in capsys.readouterr().err
    assert lab.last.waits().arrows, "the picture shows who waits for whom"
    assert lab.run("y = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), kept)") == [f"3 {100 + r}\n" for r in range(3)]
