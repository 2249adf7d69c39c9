"""The same cell with and without the guard, turn by turn on the same ranks: `with_guard.py ranks rounds`."""

import json
import sys

from labkit import start

RANKS, ROUNDS = map(int, sys.argv[1:3])
CELL = """
import time
from torch.nn.parallel import DistributedDataParallel

small, large = torch.zeros(1), torch.zeros(2**20)
text = tiny.batch(0, rank, world_size)
model = DistributedDataParallel(tiny.Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

def step():
    optimizer.zero_grad()
    tiny.loss(model, text).backward()
    optimizer.step()

CASES = {
    "all_reduce of 4 B": (lambda: dist.all_reduce(small), 200),
    "all_reduce of 4 MiB": (lambda: dist.all_reduce(large), 10),
    "a training step of DDP": (step, 20),
}

def took(name):
    call, times = CASES[name]
    for _ in range(3):
        call()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(times):
        call()
    return 1e6 * (time.perf_counter() - began) / times
"""
NAMES = ("all_reduce of 4 B", "all_reduce of 4 MiB", "a training step of DDP")

with start(RANKS, "gloo", timeout=60) as lab:
    lab.run(CELL)
    told = {name: {"with": [], "without": []} for name in NAMES}
    for turn in range(ROUNDS):
        for guarded in (turn % 2 == 0, turn % 2 == 1):
            lab.guard = guarded
            for name in NAMES:
                lab.run(f"mine = took({name!r})")
                told[name]["with" if guarded else "without"].append([max(lab.pull("mine"))])
    print("@ " + json.dumps(told), flush=True)
