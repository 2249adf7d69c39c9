"""Tell from /proc what Gloo's threads do in this process, which torch does not say, and let them wake late.

A thread of Gloo lets go of a collective's tensors some time after the collective is done: for that it needs a
processor, and Python's lock. A thread that has nothing to do waits for work without a time limit; all its other waits
(for bytes, for Python's lock) have one. Those look up a hundred times a second, for nothing: what arrives wakes them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time
from collections.abc import Sequence

from labkit.floor import time_limits

TASKS = "/proc/self/task"
FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())  # the call in which a thread waits for another one
ON_CONDITION, KIND = 9, 0x7F  # FUTEX_WAIT_BITSET, as against the wait for a mutex; what of its argument says that
PR_SET_TIMERSLACK = 29  # linux/prctl.h
SLACK = 0.01  # seconds; a rank that leaves a group waits once so much longer for its thread


def threads(its: Sequence[str] = ("pt_gloo",)) -> list[str]:
    """List the threads that carry out Gloo's collectives, or whose names begin with `its`; none without /proc."""
    found = os.listdir(TASKS) if os.path.isdir(TASKS) else []
    return [thread for thread in found if _told(thread, "comm").startswith(tuple(its))]


def at_work() -> int | None:
    """Count the threads that carry out a collective, or have not let go of its tensors; None where it is unknown."""
    # Unknown on other systems than Linux, on other processors, and where Linux may not tell.
    if FUTEX is None or not os.path.exists("/proc/self/syscall"):
        return None
    try:
        return sum(not _waits_for_work(thread) for thread in threads())
    except OSError:
        return None


def holds_up(thread: str) -> bool:
    """Tell whether a thread waits in C++ for a collective: one is under way, and no thread is known to compute."""
    if not at_work() or not waits_for_thread(thread):
        return False
    # Python's own threads do not count: C++ lets none of them compute.
    its_own = {str(known.native_id) for known in threading.enumerate()}
    return all(map(sleeps, set(os.listdir(TASKS)) - its_own - set(threads(("pt_gloo", "gloo_tcp", "ZMQbg")))))


def waits_for_thread(thread: str) -> bool:
    """Tell whether a thread waits until another one of this process lets it go on; False where unknown."""
    try:
        return sleeps(thread) and _told(thread, "syscall").split()[:1] == [FUTEX]
    except OSError:
        return False


def sleeps(thread: str) -> bool:
    """Tell whether a thread waits for something; False where it has ended, or where that cannot be known."""
    try:
        return _told(thread, "stat").rpartition(")")[2].split()[:1] == ["S"]
    except OSError:  # no descriptor is left to ask with
        return False


def rests(thread: str) -> bool:
    """Tell whether a thread waits for something else than Python's own lock, which this one holds while it looks."""
    if not sleeps(thread):
        return False
    time.sleep(time_limits.LOCK_PASSED_ON)
    return sleeps(thread)


def all_sleep() -> bool:
    """Tell whether none of Gloo's threads has anything to do: one that only waits for a processor has."""
    return all(map(sleeps, threads(("pt_gloo", "gloo_tcp"))))


def _waits_for_work(thread: str) -> bool:
    told = _told(thread, "syscall").split()  # a call's number and what it was given; "running"
    if not told or told[0] != FUTEX:
        return not told
    _, kind, _, limit, *_ = (int(argument, 16) for argument in told[1:])
    return kind & KIND == ON_CONDITION and limit == 0


def _told(thread: str, what: str) -> str:
    """Read what Linux says of a thread; of one that has just ended, nothing."""
    try:
        with open(f"{TASKS}/{thread}/{what}") as f:
            return f.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def set_timer_slack(seconds: float) -> None:
    """Let this thread, and those that it makes, sleep so much longer than they ask; 0 is as usual. Linux alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(int(1e9 * seconds)), 0, 0, 0)
