"""Commands on this host that end with the process that starts them, even if it is killed; their output is kept.

The counterpart of `workbook.tools.rank.child_command`, which runs each of them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PROGRAM = Path(__file__).resolve().parent / "rank" / "child_command.py"


@dataclass(frozen=True)
class Tied:
    """A command that was started, and the files that it writes to."""

    popen: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    @property
    def code(self) -> int | None:
        """The exit code, 128 + s after a signal s; None while it runs."""
        return self.popen.poll()

    @property
    def out(self) -> str:
        """The standard output up to now."""
        return _text(self.stdout)

    @property
    def err(self) -> str:
        """The standard error up to now."""
        return _text(self.stderr)

    def wait(self, seconds: float) -> bool:
        """Wait so many seconds at most; tell whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)
        return self.code is not None


@contextlib.contextmanager
def tied(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], folder: Path, cwd: Path | None = None
) -> Iterator[list[Tied]]:
    """Run commands side by side; all have ended when the `with` block has.

    Args:
        commands: each with its arguments, and its environment.
        folder: made for them, and removed with them, should this process be killed.
        cwd: where they run; None: where this process does.
    """
    started: list[Tied] = []
    with contextlib.ExitStack() as stack:
        stack.callback(end, started)
        for command, env in commands:
            out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(PROGRAM), str(folder), *command],
                env=env,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Stop is for the kernel
            )
            started.append(Tied(popen, out, err))
        yield started


def end(started: Sequence[Tied]) -> None:
    """End the commands and the processes that they have started: ask all, then wait for each."""
    for each in started:
        assert each.popen.stdin
        each.popen.stdin.close()
    for each in started:
        each.popen.wait()


def _text(file: IO[bytes]) -> str:
    fd = file.fileno()  # no seek: the command writes where its own position is, which is this one
    return os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace")
