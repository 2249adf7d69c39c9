"""Tell where process numbers mean the same processes. Imports nothing of labkit."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path


def here() -> str:
    """Name the machine since it was booted, the PID namespace (a container has its own), and the host.

    Two ranks whose process numbers are equal are the same process only where this is equal, too.
    """
    try:
        booted = _booted()
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not Linux, or no /proc
        return socket.gethostname()
    return f"{booted} {space} {socket.gethostname()}"


@functools.cache
def _booted() -> str:
    """Return the kernel's name for this start of the machine; OSError where there is no /proc."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
