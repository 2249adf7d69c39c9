"""Let threads wake late: Gloo's look up a hundred times a second, for nothing; what arrives wakes them anyway."""

import ctypes
import sys

PR_SET_TIMERSLACK = 29  # linux/prctl.h
GLOO_SLACK = 0.01  # seconds; a rank that leaves a group waits once so much longer for its thread


def set_timer_slack(seconds: float) -> None:
    """Let this thread, and those that it makes, sleep so much longer than they ask; 0 is as usual. Linux alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(int(1e9 * seconds)), 0, 0, 0)
