"""A program on a host, seen from outside: its process there, its signals, its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil

from tests.hosts.means import SEARCHED
from tests.live.processes import eventually


class Program(subprocess.Popen[str]):
    """`nsenter` and the one child that it waits for; signals go to that child, as if sent on its host."""

    def __init__(self, pid1: int, argv: list[str], cwd: str, env: dict[str, str], **options: Any) -> None:
        # By their paths: a test may want a PATH in which its program finds nothing.
        nsenter, change, setsid = (str(shutil.which(tool, path=SEARCHED)) for tool in ("nsenter", "env", "setsid"))
        enter = [nsenter, f"--target={pid1}", "--mount", "--net", "--pid", "--uts", "--ipc", "--wd", "--"]
        # A session of its own, as a login gives it: Jupyter's interrupt goes to a kernel's whole process group.
        super().__init__(
            [*enter, change, f"--chdir={cwd}", setsid, "--", *argv],
            env=env,
            text=True,
            start_new_session=True,
            **options,
        )

    @property
    def child(self) -> int:
        """The program's pid, as this machine counts."""
        if not hasattr(self, "_child"):
            found = eventually(lambda: self.poll() is not None or psutil.Process(self.pid).children())
            if not isinstance(found, list):
                raise ProcessLookupError(f"{self.args} has ended: {self.returncode}")
            self._child = found[0].pid
        return self._child

    @property
    def pid_there(self) -> int:
        """The program's pid, as its host counts."""
        return pid_there(self.child)

    def send_signal(self, number: int) -> None:
        """To the program alone."""
        if self.poll() is None:
            os.kill(self.child, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def signal_group(self, number: int) -> None:
        """To the program and what it started in its own process group."""
        if self.poll() is None:
            os.killpg(self.child, number)


def pid_there(pid: int) -> int:
    """What a process is called in the innermost pid namespace that it is in."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise AssertionError(f"no NSpid of {pid}")
