"""End everything that a run started, when told to or when the run's owner is gone: the reaper.

It is a process of its own, so that it outlives whatever kills the notebook's kernel. It watches the owner through
a pidfd; on the owner's death, or on SIGTERM, it ends every process of this user that carries the run's
random tag in its environment, then lets the run's MPS daemon quit, where there is one, and removes the run directory.
Where the owner is the process of another host, it wakes one that was stopped: no user is there to do so. It imports
nothing of
labkit and no package.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time

GRACE = 0.4  # seconds between asking a process to end and ending it
LAUNCHED_END = 3  # seconds in which srun or mpiexec end by themselves, once what they started on other hosts has
UNWINDING = 4  # seconds that they may take to end it, once they are told to; mpiexec tidies up
MOMENTS = 1000  # milliseconds that an exec may take
AWAKE = 1  # seconds between two looks whether the owner stands still
STILL = 3  # looks after which one that stands still is woken: it may be meant to, for a moment
MPS = "nvidia-cuda-mps-control"  # starts a daemon, and passes commands on to it
MPS_FOLDER = "mps"  # in the run directory: where the daemon is, or a link to it
DAEMON_ANSWERS = 5  # seconds in which the daemon answers a command, on a busy machine
LATE = 5  # more looks, a tenth of a second apart, after an owner that died rather than told us


def hold(pid, tag):
    """Return a pidfd of process `pid` if it runs on this host and its environment carries the tag, else None.

    The number may pass to another process at any moment, the pidfd never does: it is opened before the look at
    the environment, and what still runs after that look had the number all the while.
    """
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):  # no process has this number, or there are no pidfds here
        return None
    with contextlib.suppress(OSError):  # another user's, or gone
        if tag in environment(pid).split(b"\0") and not ended(fd, 0):
            return fd
    os.close(fd)
    return None


def environment(pid):
    """Return the environment that a process began with.

    While it becomes another program (exec) it shows none for a moment: what carried the tag before and will carry it
    again would be passed over. So that moment is waited for.
    """
    for _ in range(MOMENTS):
        with open(f"/proc/{pid}/environ", "rb") as f:
            found = f.read()
        if found or has_none(pid):
            return found
        time.sleep(0.001)
    return b""


def has_none(pid):
    """Tell whether a process's environment is empty; the kernel's threads and the dead have not even a program."""
    try:
        os.readlink(f"/proc/{pid}/exe")
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return True
    code, start, end = fields[23], fields[47], fields[48]  # proc(5)'s startcode, env_start and env_end
    return start == end != "0" and code != "0"  # a new program is given its environment first, then its code


def ended(fd, timeout):
    """Tell whether the process behind a pidfd ends within `timeout` seconds; a zombie has ended."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * timeout))


def tagged(tag):
    """Return pidfds, by pid, of all processes but this one that carry the tag; an empty tag names none."""
    if not tag:  # the owner died before it had told us; every environment contains an empty entry
        return {}
    held = {int(name): hold(int(name), tag) for name in os.listdir("/proc") if name.isdigit()}
    own = held.pop(os.getpid(), None)
    if own is not None:
        os.close(own)
    return {pid: fd for pid, fd in held.items() if fd is not None}


def send(tag, *signals):
    """Send signals to every process that carries the tag, and return how many there were."""
    held = tagged(tag)
    for fd in held.values():
        for sig in signals:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, sig)
        os.close(fd)
    return len(held)


def end_all(tag, grace=GRACE):
    """Ask, wait a moment, then insist; again until none is left, since a process may have forked meanwhile."""
    deadline = time.monotonic() + grace
    left = send(tag, signal.SIGCONT, signal.SIGTERM)  # a stopped process hears nothing before it goes on
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = send(tag)
    for _ in range(100):
        if not left:
            return
        left = send(tag, signal.SIGKILL)
        time.sleep(0.02)


def end_launched(tag):
    """End what ends by itself once the ranks have: commands that started them on other hosts, an MPS daemon.

    A command that is ended before them ends them without mercy, and what they were about to clean up stays.
    """
    deadline = time.monotonic() + LAUNCHED_END
    while send(tag) and time.monotonic() < deadline:
        time.sleep(0.02)
    end_all(tag, UNWINDING)


def ask_mps(folder, command):
    """Give the MPS daemon of this folder a command, and tell whether it has answered."""
    import subprocess  # most runs have no such daemon

    try:
        asked = subprocess.run(
            [MPS],
            input=command.encode() + b"\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder},
            timeout=DAEMON_ANSWERS,
            start_new_session=True,  # Stop is for the kernel
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def end_mps(folder, tag):
    """Let the MPS daemon of this folder quit, which it does when its last client has ended; end it where it does not.

    What it carries is the tag of what ends after the ranks. The folder may be a link to it.
    """
    real = os.path.realpath(folder)
    if os.path.isdir(real):
        ask_mps(real, "quit")
    end_launched(tag)
    shutil.rmtree(real, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(folder)


def owner_is_gone(owner, timeout):
    """Wait until the owner ends, at most `timeout` seconds, and tell whether it has."""
    try:
        fd = os.pidfd_open(owner)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):  # no pidfd here: we are its child, so our parent changes with its death
        time.sleep(min(timeout, 0.2))
        return os.getppid() != owner
    try:
        return ended(fd, timeout)
    finally:
        os.close(fd)


def stands_still(pid):
    """Tell whether a process was stopped by a signal (SIGSTOP): it will do nothing by itself."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as f:
        return f.read().rpartition(")")[2].split()[0] == "T"
    return False


def wake(owner):
    """Let a stopped owner go on, while it is our parent: a number that another process has is never signalled."""
    with contextlib.suppress(AttributeError, OSError):
        fd = os.pidfd_open(owner)
        if os.getppid() == owner:
            signal.pidfd_send_signal(fd, signal.SIGCONT)
        os.close(fd)


def until_gone(owner, wakes):
    """Wait until the owner ends; with `wakes`, it is woken whenever it stands still."""
    still = 0
    while not owner_is_gone(owner, AWAKE if wakes else 3600):
        still = still + 1 if wakes and stands_still(owner) else 0
        if still >= STILL:
            wake(owner)
            still = 0


class Told(Exception):
    """Raised by SIGTERM: a handler that only returns would let the wait go on."""


def told(*_):
    """Handle SIGTERM."""
    raise Told


def main():
    """Watch the owner named in the arguments, then end and remove everything of the run."""
    owner, rundir, wakes = int(sys.argv[1]), sys.argv[2], "wakes" in sys.argv[3:]
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
        until_gone(owner, wakes)
        unfinished = LATE  # what the owner had forked but not yet executed carries the tag a moment later
    except Told:
        unfinished = 0
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_all(tag)
    for _ in range(unfinished):
        time.sleep(0.1)
        end_all(tag)
    end_mps(os.path.join(rundir, MPS_FOLDER), tag.replace(b"LABKIT_RUN=", b"LABKIT_LAUNCHED=", 1))
    shutil.rmtree(rundir, ignore_errors=True)


if __name__ == "__main__":
    main()
