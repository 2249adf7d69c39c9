"""labkit's clocks against a bare loop, turn by turn on the same ranks: `with_clock.py ranks rounds repeat cases`."""

import json
import sys

from labkit import start

RANKS, ROUNDS, REPEAT = map(int, sys.argv[1:4])
CASES = json.loads(sys.argv[4])  # [op, bytes], …
CELL = """
import random
import time
from labkit.rank import recorder
from workbook.tools.rank import sweep

def bare(call, calls, repeat):
    with recorder.paused():  # torch's own functions, in their own places
        assert not any(hasattr(f, "recorded") for f in (dist.barrier, dist.all_reduce, dist.broadcast, dist.Work.wait))
        for _ in range(3):
            call()
        took = []
        for _ in range(repeat):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(calls):
                call()
            took.append((time.perf_counter() - began) / calls)
        dist.barrier()
        slowest = torch.tensor(took, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.tolist()

def compared(op, size, rounds, repeat):
    x = torch.empty(size // 4).fill_(0)
    call = {"all_reduce": lambda: dist.all_reduce(x), "broadcast": lambda: dist.broadcast(x, 0)}[op]
    calls = timed(call, warmup=10, repeat=1).calls
    ways = {
        "timed": lambda: timed(call, repeat=repeat, calls=calls).slowest,
        "sweep": lambda: sweep.row(op, size // 4, "float32", repeat, calls)[0].slowest,
        "bare": lambda: bare(call, calls, repeat),
        "again": lambda: bare(call, calls, repeat),
    }
    names, told = list(ways), {name: [] for name in ways}
    shuffled = random.Random(size)  # the same order on all ranks, and no way always behind the same one
    for _ in range(rounds):
        for name in shuffled.sample(names, len(names)):
            told[name] += [1e6 * seconds for seconds in ways[name]()]
    return {name: [samples] for name, samples in told.items()}
"""

with start(RANKS, "gloo", timeout=60) as lab:
    lab.run(CELL)
    for op, size in CASES:
        lab.run(f"told = compared({op!r}, {size}, {ROUNDS}, {REPEAT})")
        print("@ " + json.dumps(lab.pull("told")[0]), flush=True)
