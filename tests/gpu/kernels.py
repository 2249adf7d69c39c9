"""Lesson 06c's kernels on real ranks: what they store, and what they take beside NCCL and torch's own kernels.

The interpreter runs the same on CPU ranks. Where the GPUs give no symmetric memory, all of it is skipped with the
reason that torch tells.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.content import exercises
from tests.gpu.conftest import NotRun
from tests.gpu.lane import CPU, SYNC, Lane, N
from workbook.lesson06c import BLOCK

OPEN = """
from workbook.tools.rank.symmetric import open_symmetric
try:
    memory, why = open_symmetric({size}, torch.{dtype}), ""
except Exception as error:
    memory, why = None, f"{{type(error).__name__}}: {{error}}"
"""
TORCHS = """
import torch.distributed._symmetric_memory as symm_mem
try:
    mine, why = symm_mem.empty({size}, dtype=torch.float32, device=device), ""
    symm_mem.rendezvous(mine, dist.group.WORLD)
except RuntimeError as error:
    why = f"RuntimeError: {{error}}".splitlines()[0]
"""
NONE_HERE = "LabError: These GPUs give no symmetric memory", "RuntimeError: ", "LabError: This lesson writes kernels"
SUMS_IN = {"int64": "tl.int64", "float64": "tl.float64"}  # else in float32
GATHERS, NORMS = "gather_by_puts", "sum_and_norm"
KERNELS = {  # the types of their numbers
    "one_shot": ("float32", "bfloat16", "int64", "float64"),
    "two_shot": ("float32", "bfloat16", "int64", "float64"),
    GATHERS: ("float32", "bfloat16", "int64"),
    NORMS: ("float32",),
}
SIZES = [1, 37] if CPU else [1, 37, 403]  # places, or the width of three rows; the interpreter is slow
X = """
x = (torch.arange({size}, device=device) % 5 + rank + 1).to(torch.{dtype})
y = torch.full(({out},), -1, dtype=x.dtype, device=device)
weight = 1 + torch.arange(float({width}), device=device) / 4
"""
PLACE = "y, memory.buffers, memory.flags, {size}, rank, world_size"


def _source(name: str) -> str:
    """The workbook's solution as a cell has it."""
    return exercises.find(name).answer.removeprefix("%%px\n")


def _opened(lane: Lane, code: str) -> None:
    """Open memory on all ranks; NotRun where the GPUs give none."""
    who = lane.who
    who.px(code, "")
    whys = set(ast.literal_eval(who.cell('lab.pull("why")', "").result)) - {""}
    for why in sorted(whys):
        if why.startswith(NONE_HERE):
            raise NotRun(why)
    assert not whys, "; ".join(sorted(whys))


def _launch(name: str, size: int, sums_in: str) -> str:
    """The launch of a kernel on x of so many places, or of rows that are so wide."""
    if name == NORMS:
        block = 1 << (size - 1).bit_length()
        return f"{name}[(3,)](x, weight, {PLACE.format(size=size)}, {block})"
    share = -(-size // N) if name == "two_shot" else size
    last = f"{BLOCK}" if name == GATHERS else f"{sums_in}, {BLOCK}"
    return f"{name}[({-(-share // BLOCK)},)](x, {PLACE.format(size=size)}, {last})"


def _wanted(name: str, calls: list[list[np.ndarray]]) -> list[list[Any]]:
    """What every rank must end with after each launch, given all ranks' x of each."""
    means = exercises.find(name).means
    return [[np.asarray(rank[0]).ravel().tolist() for rank in means([(x,) for x in xs])] for xs in calls]


def right(name: str) -> Callable[[Lane], float]:
    """What a kernel stores on every rank: of each type, at three sizes, twice in the same memory."""

    def run(lane: Lane) -> float:
        who, began = lane.who, time.monotonic()
        for dtype in KERNELS[name]:
            rows = 3 if name == NORMS else 1
            _opened(lane, OPEN.format(size=(N if name == GATHERS else rows) * max(SIZES), dtype=dtype))
            for size in SIZES:
                places = rows * size
                given = X.format(size=places, out=(N if name == GATHERS else 1) * places, width=size, dtype=dtype)
                launch = _launch(name, size, SUMS_IN.get(dtype, "tl.float32"))
                twice = f"{launch}\nfirst = y.tolist()\nx += 1\n{launch}\ny = [first, y.tolist()]"
                who.px(f"{_source(name)}\n{given}\n{twice}", "")
                got = ast.literal_eval(who.cell('print(lab.pull("y"))', "").stdout)
                once = [np.array([i % 5 + r + 1.0 for i in range(places)]) for r in range(N)]
                calls = [[x + call for x in once] for call in (0, 1)]
                if name == NORMS:
                    calls = [[x.reshape(3, size) for x in xs] for xs in calls]
                for call, want in enumerate(_wanted(name, calls)):
                    for r in range(N):
                        same = np.allclose(got[r][call], want[r], 1e-5 if name == NORMS else 0, 0)
                        assert same, f"{dtype}, {size}: rank {r} has {got[r][call][:9]} instead of {want[r][:9]}"
        return time.monotonic() - began

    return run


# -- times ----------------------------------------------------------------------------------------------------------

TIMED = ((2**16, "64 KiB"), (2**20, "1 MiB"))
MINE = ("one_shot", "two_shot")
TORCHS_OWN = {
    "torch's one-shot": "y = torch.ops.symm_mem.one_shot_all_reduce(mine, 'sum', dist.group.WORLD.group_name)",
    "torch's two-shot": "y = torch.ops.symm_mem.two_shot_all_reduce_(mine, 'sum', dist.group.WORLD.group_name)",
}
# A program waits for those of its number, so all ranks' programs must run at once: few, of more numbers each.
FEW = """
share, kernel = {share}, {name}
processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8
block = triton.next_power_of_2(-(-share // max(1, min(32, processors // world_size))))
programs = (-(-share // block),)
"""
MY_CALL = f"kernel[programs](x, {PLACE}, tl.float32, block, num_warps=max(4, min(16, block // 256)))"
TIME = """
def call():
    global y
    {call}
call()
{sync}
"""
TAKEN = """
took = timed(call, repeat=1, calls={calls}).median
{again}
call()
dist.all_reduce(x)
right = torch.equal(x, y)
"""


def timed(name: str, size: int) -> Callable[[Lane], float]:
    """Seconds of an all-reduce of so many bytes, the mean of ten in a row on the slowest rank."""

    def run(lane: Lane) -> float:
        who, places = lane.who, size // 4
        given = X.format(size=places, out=places, width=1, dtype="float32")
        if name in MINE:
            _opened(lane, OPEN.format(size=places, dtype="float32"))
            share = -(-places // N) if name == "two_shot" else places
            given = f"{_source(name)}\n{given}{FEW.format(share=share, name=name)}"
            call, again = MY_CALL.format(size=places), ""
        else:
            _opened(lane, TORCHS.format(size=places))
            given, call, again = f"{given}mine.copy_(x)", TORCHS_OWN[name], "mine.copy_(x)"
        who.px(given + TIME.format(call=call, sync=SYNC), "")  # compiles, on each rank in its own time
        who.px(TAKEN.format(calls=1 if CPU else 10, again=again), "")
        took, same = zip(*ast.literal_eval(who.cell('lab.pull("[took, right]")', "").result), strict=True)
        assert all(same), f"the sum is wrong on a rank: {same}"
        return max(took)

    return run
