"""Choose the private directory of a run for keys, sockets, logs and rendezvous files; start its reaper."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster.reaper import MPS_FOLDER
from labkit.cluster.reaper import __file__ as REAPER
from labkit.floor.errors import LabError

TAG = "LABKIT_RUN"  # in the environment of every process of a run: what the reaper looks for
LAUNCHED = "LABKIT_LAUNCHED"  # with the same value, in that of what ends after the ranks: commands, an MPS daemon
NEEDED = 32 << 20  # bytes: logs and rendezvous files stay far below
LEAST = 64 << 10  # bytes: less counts as a full disk
SOCKET_PATH_LIMIT = 100  # a Unix socket's path may hold 107 bytes


@dataclass(frozen=True)
class RunDir:
    """Where one run keeps its files (mode 0700) and the random tag that its processes carry."""

    path: Path
    tag: str

    @property
    def socket(self) -> str:
        return str(self.path / "fork.sock")

    @property
    def sockets(self) -> str:
        """How the names of the controller's Unix sockets begin: a colon and a number follow."""
        return str(self.path / "zmq")

    @property
    def mps(self) -> str:
        """Where the run's MPS daemon has its sockets, or a link to it."""
        return str(self.path / MPS_FOLDER)

    @property
    def address(self) -> str:
        return str(self.path / "address.json")

    def full(self) -> bool:
        """Tell whether the disk is full by now."""
        return shutil.disk_usage(self.path.parent).free < LEAST

    def store(self) -> str:
        """Return a new path for a process group's FileStore: a store is never used twice."""
        return str(self.path / f"store-{secrets.token_hex(6)}")


def choose_rundir() -> RunDir:
    """Choose a place where there is room and a name that cannot be guessed; the reaper makes the directory."""
    try:
        path = Path(_parent(), f"labkit-{secrets.token_hex(6)}")
    except OSError as error:
        raise LabError(
            f"There is no directory for temporary files ({error}). "
            "Free some room, or set TMPDIR to a directory that you may write to, and start again."
        ) from error
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT - len("/fork.sock"):
        raise LabError(f"The path {path} is too long for a socket. Set TMPDIR to a shorter one, such as /tmp.")
    return RunDir(path, secrets.token_hex(16))


def reaper_command(owner: int, path: Path) -> list[str]:
    """Return the command that ends and removes what belongs to a run, once process `owner` has ended."""
    return [sys.executable, "-I", "-S", REAPER, str(owner), str(path)]


def start_reaper(run: RunDir, wakes: bool = False) -> subprocess.Popen[bytes]:
    """Start the process that makes the run directory and cleans up after this one; wait until it watches.

    With `wakes` it also lets this process go on when it was stopped (SIGSTOP).
    """
    reaper = subprocess.Popen(
        [*reaper_command(os.getpid(), run.path), *["wakes"] * wakes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert reaper.stdin is not None
    assert reaper.stdout is not None
    reaper.stdin.write(f"{TAG}={run.tag}\n".encode())
    reaper.stdin.close()
    said = reaper.stdout.readline().decode().strip()
    reaper.stdout.close()
    if said != "ready":
        reaper.wait()
        raise LabError(
            f"No run directory can be made at {run.path} ({said}). "
            "Set TMPDIR to a directory that you may write to, and start again."
        )
    return reaper


def _parent() -> str:
    """Return the first directory for temporary files with enough room."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    parents = [runtime] if runtime and os.access(runtime, os.W_OK) else []
    parents.append(tempfile.gettempdir())
    free = {parent: shutil.disk_usage(parent).free for parent in parents}
    for parent in parents:
        if free[parent] >= NEEDED:
            return parent
    raise LabError(
        f"The disk under {parents[-1]} has {free[parents[-1]] >> 20} MiB left and a lab needs {NEEDED >> 20} MiB. "
        "Free some room there, or set TMPDIR to a directory on another disk, and start again."
    )
