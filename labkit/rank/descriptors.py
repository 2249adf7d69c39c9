"""File descriptors for the lab's own work on a rank that has opened as many files as it may."""

from __future__ import annotations

import os

from labkit.errors import LabError

NEEDED = 64  # for sockets to other ranks, and a library's files


def spare() -> None:
    """Let this rank open some more files: it raises its own soft limit where that is reached. LabError where it cannot.

    Without them it would not join the others, which would wait for it in vain.
    """
    if _openable():
        return
    import resource  # Windows has none

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = soft + NEEDED if hard == resource.RLIM_INFINITY else min(soft + NEEDED, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
    if not _openable():
        raise LabError(f"this rank has {soft} files open, and no more may be: close some")


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
