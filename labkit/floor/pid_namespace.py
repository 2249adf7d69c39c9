"""Which machine this is, as far as process numbers go; it imports nothing."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path


def here() -> str:
    """Where a process number means the same process as it does here: the machine since it was booted, the pid namespace
    (a container has its own), and the host's name.

    Two ranks whose numbers are equal are the same process only where this is equal, too.
    """
    try:
        booted = _booted()
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not Linux, or no /proc
        return socket.gethostname()
    return f"{booted} {space} {socket.gethostname()}"


@functools.cache
def _booted() -> str:
    """What the kernel calls this start of the machine; OSError where there is no /proc."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
