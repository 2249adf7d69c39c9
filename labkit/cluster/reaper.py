"""The reaper ends everything that a run started, when it is told to or when the run's owner is gone.

A process of its own, so that it outlives whatever kills the notebook's kernel. It watches the owner through
a pidfd; on the owner's death, or on SIGTERM, it ends every process of this user that carries the run's
random tag in its environment, then removes the run directory. It imports nothing of labkit and no package.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time

GRACE = 0.4  # seconds between asking a process to end and ending it
LATE = 5  # more looks, a tenth of a second apart, after an owner that died rather than told us


def tagged(tag):
    """The pids of all processes, except this one, whose environment carries the tag; an empty tag names none."""
    me = os.getpid()
    found: list[int] = []
    if not tag:  # the owner died before it had told us; every environment contains an empty entry
        return found
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == me:
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as f:
                if tag in f.read().split(b"\0"):
                    found.append(int(name))
        except OSError:  # another user's, or gone meanwhile
            continue
    return found


def send(pids, sig):
    """Send a signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, sig)


def end_all(tag):
    """Ask, wait a moment, then insist; again until none is left, since a process may have forked meanwhile."""
    deadline = time.monotonic() + GRACE
    send(tagged(tag), signal.SIGCONT)  # a stopped process cannot hear anything else
    send(tagged(tag), signal.SIGTERM)
    while tagged(tag) and time.monotonic() < deadline:
        time.sleep(0.02)
    for _ in range(100):
        left = tagged(tag)
        if not left:
            return
        send(left, signal.SIGKILL)
        time.sleep(0.02)


def owner_is_gone(owner, timeout):
    """Wait until the owner ends, at most `timeout` seconds; True once it has."""
    try:
        fd = os.pidfd_open(owner)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):  # no pidfd here: we are its child, so our parent changes with its death
        time.sleep(min(timeout, 0.2))
        return os.getppid() != owner
    try:
        return bool(select.select([fd], [], [], timeout)[0])
    finally:
        os.close(fd)


class Told(Exception):
    """Raised by SIGTERM: a handler that only returns would let the wait go on."""


def told(*_):
    """Handle SIGTERM."""
    raise Told


def main():
    """Watch the owner named in the arguments, then end and remove everything of the run."""
    owner, rundir = int(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tag = sys.stdin.buffer.readline().strip()  # read, not inherited: this process must not carry it
    if not tag:
        return  # the owner died before it had told us, and before there was anything
    try:
        os.mkdir(rundir, 0o700)  # here, so that there is never a directory without its reaper
    except FileExistsError:
        pass  # this reaper takes the place of one that was killed
    except OSError as error:
        print(error.strerror, flush=True)
        return
    try:
        signal.signal(signal.SIGTERM, told)
        with contextlib.suppress(BrokenPipeError):
            os.write(1, b"ready\n")
        while not owner_is_gone(owner, 3600):
            pass
        unfinished = LATE  # what the owner had forked but not yet executed carries the tag a moment later
    except Told:
        unfinished = 0
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_all(tag)
    for _ in range(unfinished):
        time.sleep(0.1)
        end_all(tag)
    shutil.rmtree(rundir, ignore_errors=True)


if __name__ == "__main__":
    main()
