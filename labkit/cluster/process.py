"""One process of a run, held so that no signal ever reaches another; how it ended, and where its threads are."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from labkit.cluster.reaper import ended, hold, stands_still
from labkit.cluster.rundir import TAG
from labkit.floor import time_limits

STACKS = signal.SIGUSR1  # asks an engine to write the stacks of its threads to its log
STACKS_END = "in _run_module_as_main"  # what is written last: how the main thread of `python -m` began
MUCH = 1 << 16  # characters of a log


def end_of(code: int | None) -> str:
    """Say how a process ended: "SIGKILL", "exit code 1"; `code` as subprocess has it, None where it is not known."""
    if code is None:
        return "its process ended"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


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
        """Tell whether it is held and has not ended; a zombie has ended."""
        return not self.wait(0)

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended, at most so long, and tell whether it has."""
        return self._fd is None or bool(ended(self._fd, seconds))

    def send(self, sig: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, sig)

    def stands_still(self) -> bool:
        """Tell whether it was stopped by a signal (SIGSTOP): it will never answer by itself."""
        return stands_still(self.pid) and self.runs()

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


def stacks(logs: Mapping[Process, Path]) -> dict[int, str]:
    """Let engines that run write the stacks of their threads to their logs, and return the logs by pid."""
    asked = {process: log for process, log in logs.items() if process.runs()}
    for process in asked:
        process.send(STACKS)
    wrote = {}
    deadline = time.monotonic() + time_limits.STACKS_WRITTEN
    for process, log in asked.items():
        while STACKS_END not in (text := log.read_text(errors="replace")[-MUCH:]) and time.monotonic() < deadline:
            time.sleep(0.01)
        wrote[process.pid] = text
    return wrote
