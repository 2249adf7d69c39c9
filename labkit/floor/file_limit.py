"""Keep file descriptors for the lab, in a process that has opened as many files as it may, or closed its own."""

from __future__ import annotations

import errno
import os

from labkit.floor.errors import LabError

NEEDED = 64  # for sockets to other processes, and a library's files
STANDARD = (0, 1, 2)  # input, output and errors: what is opened next takes the number of one that was closed


def spare(who: str, instead: str = "") -> None:
    """Let this process open some more files, by its own soft limit where that is reached.

    Raises `LabError` where it cannot: `who` it is, and what to do `instead`.
    """
    put_back()
    while not _openable():
        import resource  # Windows has none

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == hard:
            raise LabError(f"{who} has {soft} files open, and no more may be{instead}")
        more = soft + NEEDED if hard == resource.RLIM_INFINITY else min(soft + NEEDED, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))


def put_back() -> None:
    """Open the standard descriptors that were closed, on nothing: else C code would write into a socket."""
    for fd in STANDARD:
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)


def _openable() -> bool:
    """Tell whether so many more files can be open."""
    held: list[int] = []
    try:
        held.extend(os.dup(STANDARD[0]) for _ in range(NEEDED))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return False
    finally:
        for fd in held:
            os.close(fd)
    return True
