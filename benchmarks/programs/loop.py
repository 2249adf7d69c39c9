"""One way to time calls on all ranks, whichever library they are of."""

from __future__ import annotations

import time
from collections.abc import Callable

SIZES = {"64 B": 64, "8 KiB": 2**13, "256 KiB": 2**18, "4 MiB": 2**22, "64 MiB": 2**26}
LONG = 0.012  # seconds that one repetition lasts: the clock and the way out of a barrier no longer count
REPEAT = 15
Call = Callable[[], object]


def samples(calls: dict[str, Call], barrier: Call, slowest: Callable[[list[float]], list[float]]) -> dict[str, list]:
    """Seconds a call, by the slowest rank, in each of REPEAT repetitions of back-to-back calls.

    All calls take turns, repetition by repetition, so that a slow moment of the machine hits each. Barriers stand
    between repetitions, none within. `slowest` takes the maximum over ranks, entry by entry.
    """
    times: dict[str, int] = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        (once,) = slowest([min(_timed(call, barrier, 1) for _ in range(3))])
        times[name] = max(1, min(2000, int(LONG / once)))
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEAT):
        for name, call in calls.items():
            taken[name].append(_timed(call, barrier, times[name]))
    return {name: slowest(mine) for name, mine in taken.items()}


def _timed(call: Call, barrier: Call, times: int) -> float:
    barrier()
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times
