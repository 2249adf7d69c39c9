"""One rank of a trial of NCCL: the same all-reduce under several settings, each in a process group of its own.

Run as `python -m workbook.tools.rank.nccl_trial` by `workbook.tools.nccl`. NCCL reads NCCL_ALGO and NCCL_PROTO
whenever it makes a communicator (src/graph/tuning.cc), and torch makes a group's at its first operation: a new group is
enough.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from labkit.rank import torch_internals
from labkit.rank.clock import stopwatch

REPEAT = 5


def main() -> None:
    """Take the order from the command line, and print each setting's result as JSON."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    gpu = order["backend"] == "nccl"
    if gpu and not torch.cuda.is_available():
        print(json.dumps({"missing": f"torch {torch.__version__} has no CUDA"}))
        return
    if gpu:
        torch.cuda.set_device(order["device"])
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo",
        init_method=f"file://{order['store']}",
        rank=order["rank"],
        world_size=order["ranks"],
        timeout=timedelta(seconds=order["timeout"]),
    )
    meet = dist.new_group(backend="gloo")  # barriers of NCCL's own would stand in its log, too
    results = [trial(order, k, setting, meet) for k, setting in enumerate(order["settings"])]
    print(json.dumps({"results": results}))
    dist.barrier(group=meet)
    dist.destroy_process_group()


def trial(order: dict[str, Any], k: int, setting: dict[str, str], meet: dist.ProcessGroup) -> dict[str, Any]:
    """Run setting k; return its bytes, the seconds of each repetition (the GPU's own), and whether every sum was right.

    Beside them stand the seconds that NCCL itself forecasts, from the communicator that was timed: None with Gloo.
    Each setting has a size of its own, so that its lines can be told apart in the log.
    """
    gpu = order["backend"] == "nccl"
    for name in ("NCCL_ALGO", "NCCL_PROTO"):
        os.environ.pop(name, None)
    os.environ.update(setting)
    group = dist.new_group(backend=order["backend"])
    x = torch.empty(order["nbytes"] // 4 + k, device="cuda" if gpu else "cpu")
    seconds, right = [], True
    for _ in range(REPEAT + 1):
        x.fill_(order["rank"] + 1)
        if gpu:
            torch.cuda.synchronize()
        dist.barrier(group=meet)
        seconds.append(stopwatch(lambda: dist.all_reduce(x, group=group), 1, gpu)[1])
        right = right and bool((x == order["ranks"] * (order["ranks"] + 1) / 2).all())
    forecast = torch_internals.forecast(lambda: dist.all_reduce(x, group=group), group, x.device)
    dist.destroy_process_group(group)
    return {"nbytes": x.numel() * 4, "seconds": seconds[1:], "right": right, "forecast": forecast}


if __name__ == "__main__":
    main()
