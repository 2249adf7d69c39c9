"""The same ten lines in DeepSpeed: one data-parallel training step by its engine, with ZeRO, then each call once.

It does what ten_lines_torch.py does, on the same numbers, and prints the same lines. Lesson 15e starts it, a process a
rank, with DS_ACCELERATOR=cpu where there is no GPU; DeepSpeed builds an operator of its own on the first run, for
which it needs g++ and ninja.
"""

import json
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("TORCH_EXTENSIONS_DIR", os.path.join(sys.prefix, "torch_extensions"))  # what it builds

import deepspeed  # after its settings
import deepspeed.comm as dist
import torch

if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
torch.distributed.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), **place)
deepspeed.init_distributed("gloo")  # takes the group that is there
rank, n = dist.get_rank(), dist.get_world_size()


def tell(call, mine):
    """Print what every rank holds, on rank 0; None where nobody promises anything."""
    told = [None] * n
    torch.distributed.all_gather_object(told, mine if mine is None else [float(x) for x in mine])
    if rank == 0:
        print(f"{call:15}", *map(json.dumps, told), flush=True)


if rank == 0:
    print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}, {n} ranks")

# the ten lines
model = torch.nn.Linear(2, 1, bias=False)
model.weight.data = torch.tensor([[1.0, 2.0]]) if rank == 0 else torch.zeros(1, 2)  # rank 0 alone has the weights
optimizer = torch.optim.SGD(model.parameters(), lr=1 / 16)
settings = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True}
settings["zero_optimization"] = {"stage": 2}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)  # broadcasts from rank 0
x, y = torch.tensor([rank + 1.0, 2.0]), 10.0  # a row for each rank
engine.backward((engine(x) - y).square().sum())  # averages the gradients
engine.step()
# end

tell("step", model.weight.detach().flatten())

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
    dist.broadcast(tensor, src=1, group=team)  # a rank of the world
tell("group", tensor)

tensor = mine.clone()
work = dist.all_reduce(tensor, async_op=True)
work.wait()
tell("async", tensor)

dist.barrier()
del team, work  # what they hold would outlive the group
torch.distributed.destroy_process_group()
