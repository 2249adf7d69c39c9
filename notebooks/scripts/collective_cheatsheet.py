"""Every primitive once: what each rank brings to the call, and what the call leaves it with; – is nothing.

    torchrun --nproc-per-node 4 scripts/collective_cheatsheet.py

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/collective_cheatsheet.py &
    done; wait; rm -f $meet
"""

import os
import sys
import time

import torch
import torch.distributed as dist

if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=n)
is_root, one, parts = rank == 0, torch.tensor([rank + 1]), list(torch.arange(n).add(10 * (rank + 1)).split(1))


def show(name, before, after):
    """Rank 0 prints what every rank had before and after, in rank order."""
    held = [str([v.item() for v in x] if isinstance(x, list) else x if isinstance(x, str) else x.tolist())
            if x is not None else "–" for x in (before, after)]  # fmt: skip
    rows = [held] * n if is_root else None
    dist.gather_object(held, rows)
    print(*[f"{name:15} rank {r}: {b} → {a}" for r, (b, a) in enumerate(rows or [])], sep="\n", end="\n" * is_root)


room, rooms = torch.zeros(1, dtype=torch.int64), [torch.zeros(1, dtype=torch.int64) for _ in range(n)]
if n > 1:
    dist.send(one, dst=1) if rank == 0 else dist.recv(room, src=0) if rank == 1 else None
    show("send, recv", one if rank == 0 else None, one if rank == 0 else room if rank == 1 else None)
dist.broadcast(x := one.clone(), src=0)
show("broadcast", one, x)
dist.scatter(room, parts if is_root else None, src=0)
show("scatter", parts if is_root else None, room)
dist.gather(one, rooms if is_root else None, dst=0)
show("gather", one, rooms if is_root else None)
dist.reduce(x := one.clone(), dst=0)
show("reduce", one, x if is_root else None)  # nothing is promised off the root
dist.all_reduce(x := one.clone())
show("all_reduce", one, x)
dist.all_gather(rooms, one)
show("all_gather", one, rooms)
dist.reduce_scatter(room, parts)
show("reduce_scatter", parts, room)
dist.all_to_all_single(swapped := torch.empty(n, dtype=torch.int64), torch.cat(parts))
show("all_to_all", parts, swapped)
came = time.monotonic()
dist.barrier()
show("barrier", f"came at {came:.4f} s", f"left at {time.monotonic():.4f} s")
dist.destroy_process_group()
