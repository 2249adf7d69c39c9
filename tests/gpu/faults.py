"""What goes wrong on ranks: each fault ends as it must, and then right results follow, with the variables kept.

A fault returns the seconds that count: after the limit where ranks wait, else of the whole cell, or after Stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from chaos_cells import CELL, STOPPED, STUCK

from tests.gpu.lane import CPU, LIMIT, SIDE, SYNC, Lane, N

X = "x = torch.ones(4, device=device)\n"
RIGHT = f"{X}x += rank\ndist.all_reduce(x)\nassert x.tolist() == [10.0] * 4, x"
WAYS = {  # how rank 2 is missed
    "in the call": "dist.all_reduce(x)",
    "in synchronize": "dist.all_reduce(x); torch.cuda.synchronize()",
    "in .item()": "dist.all_reduce(x); x[0].item()",
    "in print": "dist.all_reduce(x); print(x)",
}
MISFITS = {
    "length": "torch.ones(4 if rank else 8, device=device)",
    "dtype": "torch.ones(4, dtype=torch.float64 if rank else torch.float32, device=device)",
    "op": "torch.ones(4, device=device), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM",
}


def _suffer(lane: Lane, code: str, *ends: str, says: str = "", dies: Iterable[int] = (), guard: bool = True) -> float:
    """Seconds of a cell that ends as one of these errors and says this; only ranks that may die lose variables."""
    who = lane.who
    if who.anew:
        who.right()  # from now on there is something to keep
    who.may_die(*dies)
    if not guard:
        who.cell("lab.guard = False", "")
    began = time.monotonic()
    cell = who.px(X + code, *ends)
    took = time.monotonic() - began
    if not guard:
        who.cell("lab.guard = True", "")
    assert says in cell.error + cell.traceback, f"it does not say {says!r}: {cell.error}"
    who.px(RIGHT, "")
    who.right()
    return took


def absent(way: str) -> Callable[[Lane], float]:
    """Rank 2 skips a call in which the others wait, wherever they do."""
    return lambda lane: _suffer(lane, f"if rank != 2:\n    {way}", STUCK, says="rank 2") - LIMIT


def endless(lane: Lane) -> float:
    """Rank 1 computes for ever, and the others wait for it."""
    return _suffer(lane, f"while rank == 1: pass\ndist.all_reduce(x)\n{SYNC}", STUCK, says="rank 1") - LIMIT


def misfit(given: str) -> Callable[[Lane], float]:
    """Calls that do not fit, with nobody to compare them: whatever comes of it, it ends."""
    dies = range(N) if CPU else ()  # Gloo ends processes
    code = f"dist.all_reduce({given})\n{SYNC}"
    return lambda lane: _suffer(lane, code, STUCK, CELL, "", dies=dies, guard=False) - LIMIT


def killed(lane: Lane) -> float:
    """Rank 1 is killed, and the others wait for it."""
    code = f"import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(x)\n{SYNC}"
    return _suffer(lane, code, CELL, STUCK, says="rank 1 died", dies=[1])


def asserted(lane: Lane) -> float:
    """An index is out of bounds in a kernel: the rank's context is lost, under MPS that of all."""
    bad = "torch.zeros(2, device=device)[torch.tensor([5], device=device)]"
    code = f"if rank == 1:\n    {bad}\n    {SYNC}\ndist.all_reduce(x)\n{SYNC}"
    return _suffer(lane, code, CELL, STUCK, says="device-side assert", dies=range(N) if lane.mode == SIDE else [1])


def stopped(lane: Lane) -> float:
    """Stop is pressed while ranks all-reduce without end."""
    who, pressed = lane.who, 0.0

    def press() -> None:
        nonlocal pressed
        pressed = time.monotonic()
        who.stop_button()

    if who.anew:
        who.right()
    who.during(f"{X}while True: dist.all_reduce(x)", press, *STOPPED)
    took = time.monotonic() - pressed
    who.px(RIGHT, "")
    who.right()
    return took
