"""The same ten lines in torch.distributed: one data-parallel training step, then each call once.

    torchrun --nproc-per-node 4 scripts/ten_lines_torch.py

Rank 0 prints a line a call: what each rank holds after it, in the order of the ranks. The programs ten_lines_mpi.py,
ten_lines_tensorflow.py and ten_lines_deepspeed.py do the same, on the same numbers, in other systems' words.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/ten_lines_torch.py &
    done; wait; rm -f $meet
"""

import json
import os
import sys

import torch
import torch.distributed as dist

if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), **place)
rank, n = dist.get_rank(), dist.get_world_size()


def tell(call, mine):
    """Print what every rank holds, on rank 0; None where nobody promises anything."""
    told = [None] * n
    dist.all_gather_object(told, mine if mine is None else [float(x) for x in mine])
    if rank == 0:
        print(f"{call:15}", *map(json.dumps, told), flush=True)


if rank == 0:
    print(f"torch {torch.__version__}, {n} ranks")

# the ten lines
w = torch.tensor([1.0, 2.0]) if rank == 0 else torch.zeros(2)  # rank 0 alone has the weights
dist.broadcast(w, src=0)
x, y = torch.tensor([rank + 1.0, 2.0]), 10.0  # a row for each rank
gradient = 2 * (w @ x - y) * x  # of (w · x − y)²
dist.all_reduce(gradient)
w -= gradient / n / 16
# end

tell("step", w)

# each call once
mine, parts = torch.tensor([rank + 1.0]), 10.0 * (rank + 1) + torch.arange(n)

tensor = mine.clone()
dist.broadcast(tensor, src=0)
tell("broadcast", tensor)

tensor = mine.clone()
dist.reduce(tensor, dst=0)
tell("reduce", tensor if rank == 0 else None)

tensor = mine.clone()
dist.all_reduce(tensor)
tell("all_reduce", tensor)

gathered = [torch.zeros(1) for _ in range(n)]
dist.gather(mine, gathered if rank == 0 else None, dst=0)
tell("gather", torch.cat(gathered) if rank == 0 else None)

part = torch.zeros(1)
dist.scatter(part, list(parts.chunk(n)) if rank == 0 else None, src=0)
tell("scatter", part)

dist.all_gather(gathered, mine)
tell("all_gather", torch.cat(gathered))

dist.reduce_scatter(part, list(parts.chunk(n)))
tell("reduce_scatter", part)

exchanged = torch.zeros(n)
dist.all_to_all_single(exchanged, parts)
tell("all_to_all", exchanged)

tensor = mine.clone()
if rank == 0:
    dist.send(mine, dst=n - 1)
elif rank == n - 1:
    dist.recv(tensor, src=0)
tell("send, recv", tensor)

tensor = mine.clone()
team = dist.new_group(range(1, n))  # everybody makes the group, its members use it
if rank > 0:
    dist.broadcast(tensor, src=1, group=team)  # a rank of the world; group_src=0 names the same one
tell("group", tensor)

tensor = mine.clone()
work = dist.all_reduce(tensor, async_op=True)
work.wait()
tell("async", tensor)

dist.barrier()
del team, work  # what they hold would outlive the group
dist.destroy_process_group()
