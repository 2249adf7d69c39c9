"""One program and all processes that it starts: talk to it, weigh them, end every one of them.

Linux only: what belongs to a program is what carries its random tag in /proc/<pid>/environ.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.cluster import reaper

TAG = "BENCHMARK_PROGRAM"
MARK = "@ "  # begins a line that is meant for the benchmark; everything else is the program's own talk
ERROR = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt)\b")  # a traceback's last line; others may follow it


class Failed(Exception):
    """A program ended, or said nothing in time; the text says which, with its last words."""


class Program:
    """A program that prints `@ {json}` lines, reads commands from stdin, and has `limit` seconds to live.

    >>> with Program([sys.executable, "program.py"], scratch, limit=60) as program:
    ...     program.hear()["first"] - program.began      # both are CLOCK_MONOTONIC, the same in every process
    """

    def __init__(self, command: list[str], scratch: Path, limit: float) -> None:
        self.mark = f"{TAG}={secrets.token_hex(16)}"
        self.errors = scratch / "stderr"
        self.timed_out = False
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LABKIT_")}
        environment.update(
            dict([self.mark.split("=")]),
            OMP_NUM_THREADS="1",
            GLOO_SOCKET_IFNAME="lo",
            TMPDIR=str(scratch),
            XDG_RUNTIME_DIR=str(scratch),
            IPYTHONDIR=str(scratch / "ipython"),
        )
        try:
            with open(self.errors, "w") as errors, _undisturbed():
                self.began = time.monotonic()
                self.popen = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for the benchmark alone, which then ends all of this
                )
            self.timer = threading.Timer(limit, self._time_out)
            self.timer.daemon = True
            self.timer.start()
        except BaseException:  # nobody has entered yet who would end it
            kill(self.mark)
            raise

    def hear(self) -> Any:
        """The next thing that the program has to say."""
        assert self.popen.stdout
        for line in self.popen.stdout:
            if line.startswith(MARK):
                return json.loads(line[len(MARK) :])
        raise Failed(self._last_words())

    def rest(self) -> str:
        """All that the program has to say until it ends."""
        assert self.popen.stdout
        said = self.popen.stdout.read()
        if self.timed_out:
            raise Failed(self._last_words())
        return said

    def tell(self, command: str) -> None:
        """Send a command, one line."""
        assert self.popen.stdin
        try:
            self.popen.stdin.write(command + "\n")
            self.popen.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None

    def started(self) -> list[int]:
        """The pids of all processes that it started, itself left out."""
        return [pid for pid in tagged(self.mark) if pid != self.popen.pid]

    def memory(self) -> float:
        """Proportional set size of all that it started, in MiB: a page shared by k processes counts 1/k in each."""
        return sum(proportional(pid) for pid in self.started()) / 2**20

    def cpu(self) -> float:
        """CPU seconds that all it started have used so far."""
        return sum(cpu_seconds(pid) for pid in self.started())

    def _time_out(self) -> None:
        self.timed_out = True
        kill(self.mark)

    def _last_words(self) -> str:
        if self.timed_out:
            return "took too long"
        lines = self.errors.read_text().splitlines()
        said = [line for line in lines if ERROR.match(line)] or [line for line in lines if line.strip()]
        return f"ended with exit code {self.popen.wait()}" + (f": {said[-1].strip()}" if said else "")

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: Any) -> None:
        self.timer.cancel()
        kill(self.mark)
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            assert pipe
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits for the end of the block: halfway into a new process it would leave that process behind."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            raise KeyboardInterrupt


def tagged(mark: str) -> list[int]:
    """The pids of this user's processes whose environment holds `mark` ("NAME=value")."""
    held = reaper.tagged(mark.encode())
    for fd in held.values():
        os.close(fd)
    return list(held)


def kill(mark: str) -> None:
    """End every process with this mark; again until none is left, since one may have forked meanwhile."""
    for _ in range(200):
        if not reaper.send(mark.encode(), signal.SIGKILL):
            return
        time.sleep(0.02)


def proportional(pid: int, part: str = "Pss:") -> int:
    """A process's proportional set size in bytes, or a `part` of it such as "Pss_Anon:"; 0 once it is gone."""
    while True:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except ProcessLookupError:  # it became another program between the opening and the reading, or it ended
            if reaper.has_none(pid):
                return 0
        except OSError:
            return 0
        else:
            return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(part))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process; 0 once it is gone."""
    with contextlib.suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)  # its CPU clock, as clock_getcpuclockid would number it
    return 0.0
