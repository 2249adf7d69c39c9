"""Tell when something happened: seconds on a clock that is never set, and how far apart two machines' clocks are.

The clock on the wall jumps: a laptop that slept, NTP, an administrator. The processes of a machine share one that does
not, on Linux CLOCK_MONOTONIC, and its moments are compared as they are. Another machine's has another beginning: only
there does the wall, as it stood when the moment was told, say how far apart they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from time import perf_counter as now  # by name: a cell that replaces time.perf_counter does not replace this one
from typing import Any

from labkit.floor import pid_namespace

__all__ = ["apart", "clock", "now", "wall"]


CLOSE = 2e-5  # seconds between two moments that one look at the wall lies in
LOOKS = 20


def wall() -> float:
    """Return what makes a timestamp of this process seconds since 1970, as the clock on the wall stands now.

    Between the two clocks the process may have to wait for a processor: of several looks the closest counts.
    """
    found, within, before = 0.0, math.inf, now()
    for _ in range(LOOKS):
        seen, after = time.time(), now()
        if after - before < within:
            found, within = seen - (before + after) / 2, after - before
        if within < CLOSE:
            break
        before = after
    return found


def clock() -> tuple[str, float]:
    """Return what goes with a timestamp that another process is told: the name of its clock, and `wall`."""
    return pid_namespace.here(), wall()


def apart(clock: Sequence[Any], other: Sequence[Any]) -> float:
    """Return what makes a timestamp of the one clock one of the other.

    >>> apart(("here", 100.0), ("here", 3700.0)), apart(("there", 100.0), ("here", 90.0))
    (0.0, 10.0)
    """
    return 0.0 if clock[0] == other[0] else float(clock[1] - other[1])
