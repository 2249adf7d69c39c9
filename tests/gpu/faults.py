"""What goes wrong on ranks: each fault ends as it must, and then a right result follows, with the variables kept.

A fault returns the seconds that count: from the limit to the end of the cell where ranks wait, else those of the cell.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from chaos_cells import CELL, STOPPED, STUCK

from tests.gpu.lane import CPU, LIMIT, SIDE, SYNC, Lane, N

X = "x = torch.ones(4, device=device)\n"
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


def _right(lane: Lane) -> None:
    """See that an all-reduce and random calls are right, and that ranks which were not harmed kept their variables."""
    lane.who.px(f"{X}x += rank\ndist.all_reduce(x)\nassert x.tolist() == [10.0] * 4, x", "")
    lane.who.right()


def absent(way: str) -> Callable[[Lane], float]:
    def run(lane: Lane) -> float:
        began = time.monotonic()
        cell = lane.who.px(f"{X}if rank != 2:\n    {way}", STUCK)
        after = time.monotonic() - began - LIMIT
        assert "rank 2" in cell.error, f"it does not say who is missing: {cell.error}"
        _right(lane)
        return after

    return run


def endless(lane: Lane) -> float:
    """A rank that loops for ever, and for which the others wait."""
    began = time.monotonic()
    cell = lane.who.px(f"{X}while rank == 1: pass\ndist.all_reduce(x)\n{SYNC}", STUCK)
    after = time.monotonic() - began - LIMIT
    assert "rank 1" in cell.error, f"it does not say who is missing: {cell.error}"
    _right(lane)
    return after


def misfit(given: str) -> Callable[[Lane], float]:
    """A call that does not fit, with nobody to compare: whatever it does, it ends."""

    def run(lane: Lane) -> float:
        who = lane.who
        who.cell("lab.guard = False", "")
        if CPU:  # Gloo ends processes
            who.may_die(*range(N))
        began = time.monotonic()
        who.px(f"dist.all_reduce({given})\n{SYNC}", STUCK, CELL, "")
        after = time.monotonic() - began - LIMIT
        who.cell("lab.guard = True", "")
        _right(lane)
        return after

    return run


def killed(lane: Lane) -> float:
    who = lane.who
    who.may_die(1)
    began = time.monotonic()
    code = f"import os, signal\n{X}if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(x)\n{SYNC}"
    cell = who.px(code, CELL, STUCK)
    took = time.monotonic() - began
    assert "rank 1 died" in cell.error + cell.traceback, f"it does not say who has died: {cell.error}"
    _right(lane)
    return took


def asserted(lane: Lane) -> float:
    """An index that is out of bounds in a kernel: the rank's context is lost, under MPS that of all."""
    who = lane.who
    who.may_die(*(range(N) if lane.mode == SIDE else [1]))
    began = time.monotonic()
    bad = "torch.zeros(2, device=device)[torch.tensor([5], device=device)]"
    cell = who.px(f"{X}if rank == 1:\n    {bad}\n    {SYNC}\ndist.all_reduce(x)\n{SYNC}", CELL, STUCK)
    took = time.monotonic() - began
    assert "device-side assert" in cell.error + cell.traceback, f"it does not say why: {cell.error}"
    _right(lane)
    return took


def stopped(lane: Lane) -> float:
    """Stop, while ranks all-reduce without end; the seconds count from the press."""
    pressed = 0.0

    def press() -> None:
        nonlocal pressed
        pressed = time.monotonic()
        lane.who.stop_button()

    lane.who.during("x = torch.zeros(4, device=device)\nwhile True: dist.all_reduce(x)", press, *STOPPED)
    took = time.monotonic() - pressed
    _right(lane)
    return took
