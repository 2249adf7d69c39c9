"""Faults of lessons 14 and 14b without labkit: python scripts/clinic.py validate FOLDER

Starts itself four times, as torchrun would, and tells what each rank ended with. torchrun's own store listens on all
network interfaces; these ranks meet in a new file, and nothing but loopback listens.

In FOLDER each rank leaves its result (said_0, said_1, …), where it was after four seconds (stack_0, stack_1, …) and
its flight recorder (trace_0, trace_1, …), for torchfrtrace. TORCH_DISTRIBUTED_DEBUG=DETAIL makes PyTorch compare the
calls.
"""

import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import tempfile
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


def bad_batch() -> torch.Tensor:
    """Find a nan on rank 2, which raises where the others go on."""
    gradient = torch.full((2,), float("nan") if rank == 2 else 1.0)
    if not gradient.isfinite().all():
        raise ValueError("a bad batch")
    dist.all_reduce(gradient)
    return gradient


def flight_recorder() -> bytes:
    """What this rank called, for torchfrtrace, which looks for the group under its name: Gloo leaves the name out."""
    told = pickle.loads(c10d._dump_fr_trace(True, True, False))
    for group in {entry["process_group"][0] for entry in told["entries"]} - told["pg_config"].keys():
        told["pg_config"][group] = {**told["pg_config"].get("", {}), "name": group, "desc": "default_pg"}
    told["pg_config"].pop("", None)
    return pickle.dumps(told)


def launch(n: int) -> None:
    """Run n ranks of this program, and print what they have left or how they died, in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("said", "stack", "trace"):  # of a run before
        for old in folder.glob(f"{kind}_*"):
            old.unlink()
    with tempfile.TemporaryDirectory() as place:
        shared = {**os.environ, "WORLD_SIZE": str(n), "INIT_METHOD": f"file://{place}/meet"}
        ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**shared, "RANK": str(r)}) for r in range(n)]
        codes = [process.wait() for process in ranks]
    for r, code in enumerate(codes):
        if code < 0:
            print(f"rank {r}: died of {signal.Signals(-code).name}")
        elif (said := folder / f"said_{r}").exists():
            print(said.read_text())
        else:
            print(f"rank {r}: ended before it could say anything (exit code {code})")


folder = Path(sys.argv[2])
if "RANK" not in os.environ:
    sys.exit(launch(4))

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
dist.init_process_group(
    "gloo", os.environ["INIT_METHOD"], rank=rank, world_size=world_size, timeout=timedelta(seconds=6)
)
with open(folder / f"stack_{rank}", "w") as stack:
    try:
        dist.barrier()  # a rank that fails and leaves while others are still connecting would be another fault
        faulthandler.dump_traceback_later(4, file=stack)
        faults = {"validate": validate, "lengths": lengths, "dtypes": dtypes, "bad_batch": bad_batch}
        result = str(faults[sys.argv[1]]().tolist())
    except (RuntimeError, ValueError) as error:
        result = f"{type(error).__name__}: {error}".replace("\n", " ")
    faulthandler.cancel_dump_traceback_later()
(folder / f"said_{rank}").write_text(f"rank {rank}: {result}")
(folder / f"trace_{rank}").write_bytes(flight_recorder())
dist.destroy_process_group()
# What has failed may keep the group's threads. One that wants Python's lock while Python takes itself apart would abort
# the process (before Python 3.14): there is nothing to take apart.
os._exit(0)
