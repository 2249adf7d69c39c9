"""labkit's clocks against a bare loop, turn by turn on the same ranks: `with_clock.py ranks rounds cases`."""

import json
import sys

from labkit import start

RANKS, ROUNDS = map(int, sys.argv[1:3])
CASES = json.loads(sys.argv[3])  # [op, bytes], …
CELL = """
import random
import time
from labkit.rank import sweep

def plain(function):  # torch's own, without labkit's recorder around it
    return function.__wrapped__ if hasattr(function, "recorded") else function

barrier, all_reduce, broadcast = plain(dist.barrier), plain(dist.all_reduce), plain(dist.broadcast)

def bare(call, calls):
    for _ in range(3):
        call()
    barrier()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    took = (time.perf_counter() - began) / calls
    barrier()
    slowest = torch.tensor(took, dtype=torch.float64)
    all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()

def compared(op, size, rounds):
    x = torch.empty(size // 4).fill_(0)
    ours = {"all_reduce": lambda: dist.all_reduce(x), "broadcast": lambda: dist.broadcast(x, 0)}[op]
    its = {"all_reduce": lambda: all_reduce(x), "broadcast": lambda: broadcast(x, 0)}[op]
    calls = timed(ours, warmup=10, repeat=1).calls
    ways = {
        "timed": lambda: timed(ours, repeat=1, calls=calls).median,
        "bare": lambda: bare(its, calls),
        "again": lambda: bare(its, calls),
        "sweep": lambda: sweep.row(op, size // 4, "float32", 1, calls)[0].median,
    }
    names, told = list(ways), {name: [] for name in ways}
    shuffled = random.Random(size)  # the same order on all ranks, and no way always behind the same one
    for _ in range(rounds):
        for name in shuffled.sample(names, len(names)):
            told[name].append([1e6 * ways[name]()])
    return told
"""

with start(RANKS, "gloo", timeout=60) as lab:
    lab.run(CELL)
    for op, size in CASES:
        lab.run(f"told = compared({op!r}, {size}, {ROUNDS})")
        print("@ " + json.dumps(lab.pull("told")[0]), flush=True)
