"""Commands on this host that end with the process which asks for them, even if it is killed; what they print is kept.

The counterpart of `labkit.rank.tied`, which runs each of them.
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

PROGRAM = Path(__file__).resolve().parent.parent / "rank" / "tied.py"


@dataclass(frozen=True)
class Tied:
    """A command that was started, and the files that it writes to."""

    popen: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    @property
    def code(self) -> int | None:
        """Its exit code, 128 + s after a signal s; None while it runs."""
        return self.popen.poll()

    @property
    def out(self) -> str:
        """What it has printed up to now."""
        return _text(self.stdout)

    @property
    def err(self) -> str:
        """What it has written to its standard error up to now."""
        return _text(self.stderr)

    def wait(self, seconds: float) -> bool:
        """Whether it ends within so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)
        return self.code is not None

    def end(self) -> None:
        """End it and whatever it has started, if it runs; wait for that."""
        assert self.popen.stdin
        self.popen.stdin.close()
        self.popen.wait()


@contextlib.contextmanager
def tied(command: Sequence[str], env: Mapping[str, str], folder: Path, cwd: Path | None = None) -> Iterator[Tied]:
    """Run a command; it has ended when the `with` block has.

    Args:
        command: with its arguments.
        env: its environment.
        folder: made for it, and removed with it, should this process be killed.
        cwd: where it runs; None: where this process does.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = Tied(
            subprocess.Popen(
                [sys.executable, "-I", "-S", str(PROGRAM), str(folder), *command],
                env=env,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Stop is for the kernel
            ),
            out,
            err,
        )
        try:
            yield started
        finally:
            started.end()


def _text(file: IO[bytes]) -> str:
    fd = file.fileno()  # no seek: the command writes where its own position is, which is this one
    return os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace")
