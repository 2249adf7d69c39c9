"""File descriptors for the lab's own work, in a process that has opened as many files as it may."""

from __future__ import annotations

import os

from labkit.errors import LabError

NEEDED = 64  # for sockets to other processes, and a library's files


def spare(who: str, instead: str = "") -> None:
    """Let this process open some more files: it raises its own soft limit where that is reached.

    Where it cannot, there is a LabError about `who` it is, and `instead` says what to do.
    """
    while not _openable():
        import resource  # Windows has none

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == hard:
            raise LabError(f"{who} has {soft} files open, and no more may be{instead}")
        more = soft + NEEDED if hard == resource.RLIM_INFINITY else min(soft + NEEDED, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))


def _openable() -> bool:
    """Whether so many more files can be open."""
    held: list[int] = []
    try:
        held.extend(os.dup(0) for _ in range(NEEDED))
    except OSError:
        return False
    finally:
        for fd in held:
            os.close(fd)
    return True
