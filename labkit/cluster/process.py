"""One process of a run, held so that no signal ever reaches another."""

from __future__ import annotations

import contextlib
import os
import signal

from labkit.cluster.reaper import ended, hold, stands_still
from labkit.cluster.rundir import TAG


class Process:
    """A process of the run with this tag on this host, held by a pidfd for as long as this object lives.

    Whatever else has the number, a process of another host or one that came later, is never signalled. `held` is
    False where there was nothing to hold: it had ended, or runs elsewhere, or the system has no pidfds.
    """

    def __init__(self, pid: int, tag: str) -> None:
        self.pid = pid
        self._fd = hold(pid, f"{TAG}={tag}".encode())

    @property
    def held(self) -> bool:
        return self._fd is not None

    def runs(self) -> bool:
        """Whether it is held and has not ended; one that nobody has collected yet has ended."""
        return not self.wait(0)

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended, at most so long; whether it has."""
        return self._fd is None or bool(ended(self._fd, seconds))

    def send(self, sig: int) -> None:
        """Send it a signal; nothing where it has ended."""
        if self._fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, sig)

    def stands_still(self) -> bool:
        """Whether it was stopped by a signal (SIGSTOP): it will never answer by itself."""
        return stands_still(self.pid) and self.runs()

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
