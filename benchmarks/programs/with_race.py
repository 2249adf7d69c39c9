"""One race of all-reduces by `lab.race`, as lesson 06b runs it: `with_race.py ranks repeat sizes contestants`."""

import json
import sys

from labkit import start
from labkit.content import exercises

RANKS, REPEAT = map(int, sys.argv[1:3])
SIZES, CONTESTANTS = json.loads(sys.argv[3]), json.loads(sys.argv[4])
ROOMS = """
from workbook.tools.rank.shared import open_room

room, busy, hall = open_room(), open_room(), open_room(2**26)


def spin():
    busy.count += 1
    busy.flags[rank] = busy.count
    while min(busy.flags) < busy.count:
        pass


busy.meet = spin  # it never yields
"""
KERNELS = """
from workbook.tools.rank.symmetric import open_symmetric

memories = {}


def by_kernel(kernel, x, parts=1, block=4096):
    if x.dtype not in memories:
        memories[x.dtype] = open_symmetric(LARGEST, x.dtype)
    memory, out = memories[x.dtype], torch.empty_like(x)
    sums_in = {torch.int64: tl.int64, torch.float64: tl.float64}.get(x.dtype, tl.float32)
    programs = (-(-len(x) // (parts * block)),)
    kernel[programs](x, out, memory.buffers, memory.flags, len(x), rank, world_size, sums_in, block)
    return out
"""
WAITING = """
import time


def cores_work(call):
    worked = []
    for _ in range(REPEAT):
        dist.barrier()
        time.sleep(0.3 * (rank == 1))
        began = time.process_time()
        call(torch.ones(4))
        worked.append(time.process_time() - began)
    return worked


mine, gloos = cores_work(lambda x: shared_all_reduce(x, room)), cores_work(dist.all_reduce)
meeting, barrier = timed(room.meet, repeat=REPEAT).slowest, timed(dist.barrier, repeat=REPEAT).slowest
"""

with start(RANKS, "gloo", timeout=60) as lab:
    lab.run(ROOMS)
    for name in ("ring_all_reduce", "sum_slots", "shared_all_reduce"):
        exercise = exercises.find(name)
        lab.run(exercise.given + exercise.code)
    if any("by_kernel" in name for name in CONTESTANTS):
        for name in ("one_shot", "two_shot"):
            lab.run(exercises.find(name).answer.removeprefix("%%px\n"))
        lab.run(KERNELS.replace("LARGEST", str(max(*SIZES, 2**15))))
    raced = lab.race(*CONTESTANTS, sizes=SIZES, repeat=REPEAT)
    told = {f"{name}, {size}": lap.samples for (name, size), lap in raced.laps.items() if not lap.why}
    lab.run(WAITING.replace("REPEAT", str(REPEAT)))
    for name in ("mine", "gloos", "meeting", "barrier"):
        told[name] = lab.pull(name)[0]
    print("@ " + json.dumps({"samples": told, "out": raced.out}), flush=True)
