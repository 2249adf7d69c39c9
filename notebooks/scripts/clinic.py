"""Faults of lesson 14 without labkit: torchrun --standalone --nproc-per-node 4 scripts/clinic.py validate FOLDER

Each rank prints what it ends with. In FOLDER it leaves where it was after four seconds (stack_0, stack_1, …) and its
flight recorder (trace_0, trace_1, …), for torchfrtrace. TORCH_DISTRIBUTED_DEBUG=DETAIL makes PyTorch compare the calls.
"""

import faulthandler
import pickle
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d


def validate() -> torch.Tensor:
    """Rank 0 validates, and tells everybody from inside its branch."""
    for _ in range(2):
        total = torch.ones(2)
        dist.all_reduce(total)
        if rank == 0:
            dist.broadcast(total, src=0)
    return total


def lengths() -> torch.Tensor:
    """Bring fewer rows on the last rank."""
    losses = torch.ones(2 if rank == world_size - 1 else 4)
    dist.all_reduce(losses)
    return losses


def dtypes() -> torch.Tensor:
    """Bring a number from numpy on the last rank."""
    loss = torch.ones(4, dtype=torch.float64 if rank == world_size - 1 else torch.float32)
    dist.all_reduce(loss)
    return loss


def flight_recorder() -> bytes:
    """What this rank called, for torchfrtrace, which looks for the group under its name: Gloo leaves the name out."""
    told = pickle.loads(c10d._dump_fr_trace(True, True, False))
    for group in {entry["process_group"][0] for entry in told["entries"]} - told["pg_config"].keys():
        told["pg_config"][group] = {**told["pg_config"].get("", {}), "name": group, "desc": "default_pg"}
    told["pg_config"].pop("", None)
    return pickle.dumps(told)


dist.init_process_group("gloo", timeout=timedelta(seconds=6))
rank, world_size = dist.get_rank(), dist.get_world_size()
fault, folder = {"validate": validate, "lengths": lengths, "dtypes": dtypes}[sys.argv[1]], Path(sys.argv[2])
with open(folder / f"stack_{rank}", "w") as stack:
    faulthandler.dump_traceback_later(4, file=stack)
    try:
        result = str(fault().tolist())
    except RuntimeError as error:
        result = f"RuntimeError: {error}".replace("\n", " ")
    faulthandler.cancel_dump_traceback_later()
print(f"rank {rank}: {result}", flush=True)
(folder / f"trace_{rank}").write_bytes(flight_recorder())
