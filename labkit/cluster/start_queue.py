"""Let labs that are started together on one machine start a few at a time, in the order in which they came.

A lab that wants to start keeps a name among the machine's abstract Unix sockets, which all users see in /proc/net/unix,
and which Linux takes away when its process ends, however it ends. No process listens there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from labkit.floor import time_limits, words

NAMES = "labkit-start-"
EACH_CORE = 2  # a start also waits: with one a core the cores would rest, and with ten all labs are up late


@contextlib.contextmanager
def turn(say: Callable[[str], None], at_once: int | None = None) -> Iterator[None]:
    """Wait until fewer than `at_once` labs of this machine that came before are starting; then be one of them.

    >>> with turn(print):
    ...     pass     # start a lab
    """
    if sys.platform != "linux":
        yield
        return
    at_once = at_once or EACH_CORE * len(os.sched_getaffinity(0))
    with _name() as mine:
        before, said, moved = _waiting(mine), 0, time.monotonic()
        while len(before) >= at_once and time.monotonic() - moved < time_limits.TURN_MOVES:
            if len(before) != said:
                said, moved = len(before), time.monotonic()
                say(f"{words.count(said, 'lab')} came before this one, and this machine starts {at_once} at a time …")
            time.sleep(time_limits.TURN_LOOK)
            before &= _waiting(mine)
        yield


@contextlib.contextmanager
def _name() -> Iterator[str]:
    """Keep a name that says when it was taken."""
    name = f"{NAMES}{time.monotonic_ns():020}-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(f"\0{name}")
        yield name


def _waiting(mine: str) -> set[str]:
    """Return the names that were taken before this one, and are still kept."""
    try:
        names = {line.rpartition("@")[2] for line in Path("/proc/net/unix").read_text().splitlines()}
    except OSError:
        return set()
    return {name for name in names if NAMES <= name < mine and name.startswith(NAMES)}
