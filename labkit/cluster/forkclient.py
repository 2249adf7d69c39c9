"""Start a fork server and talk to it: one JSON object a line over the run directory's Unix socket."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from labkit.cluster.rundir import TAG
from labkit.floor.errors import LabError

# One computing thread a rank: several ranks share the cores, and their pools would fight over them.
# Gloo and NCCL would otherwise listen on another address of the host.
# NCCL's RAS would answer every user of the host at one port for all.
# torch's watchdog and monitor would end a rank that waits, or write files: the lab itself frees it, and it lives on.
# From 2.15 on torch has two backends for NCCL. The lab frees ranks by what the older one tells of its calls.
# Up to 2.10 torch records no calls unless it is told how many; 2.11 records so many.
# torch would warn of single sends and receives, which a lesson makes on purpose.
# A warning that is an error would end an engine while it starts: ipykernel and ipyparallel warn about each other.
# Python would leave out assertions: those of a learner's cells, and those by which functions are checked.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_RAS_ENABLE": "0",
    "TORCH_DIST_USE_NCCL2": "0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "PYTHONWARNINGS": "",
    "PYTHONOPTIMIZE": "",
}


LOG = "forkserver.log"  # beside the socket


def start_server(path: str, tag: str, reaper: subprocess.Popen[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start a fork server that listens on the Unix socket `path`; requests may be sent at once.

    One that was killed has left its socket there, which goes.
    With `reaper` it does that one's work when both this process and the reaper have ended.
    """
    with contextlib.ExitStack() as handles:
        listener = handles.enter_context(socket.socket(socket.AF_UNIX))
        Path(path).unlink(missing_ok=True)
        listener.bind(path)
        listener.listen()
        given = [listener.fileno()]
        if reaper is not None and hasattr(os, "pidfd_open"):
            given += [os.pidfd_open(pid) for pid in (os.getpid(), reaper.pid)]
            for fd in given[1:]:
                handles.callback(os.close, fd)
        with open(Path(path).parent / LOG, "ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "labkit.cluster.forkserver", *map(str, given)],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **ENVIRONMENT, TAG: tag},
                start_new_session=True,  # Jupyter's Stop signals the kernel's whole process group
            )


class ForkClient:
    """A connection to a fork server; safe to use from several threads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise LabError(f"The fork server does not answer ({error.strerror}). Call start() again.") from error
        self._reader = self._socket.makefile("rb")

    def send(self, do: str, **request: Any) -> None:
        """Send a request whose reply `receive` reads later: the server works meanwhile."""
        try:
            self._socket.sendall(json.dumps({"do": do, **request}).encode() + b"\n")
        except OSError as error:
            raise self._ended() from error

    def heard(self) -> bool:
        """Tell whether there is a reply to receive, or the server has ended."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def receive(self) -> dict[str, Any]:
        try:
            line = self._reader.readline()
        except OSError:
            line = b""
        if not line:
            raise self._ended()
        reply = json.loads(line)
        if "error" in reply:
            raise ForkServerError(reply["error"])
        return reply

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        with self._lock:
            self.send(do, **request)
            return self.receive()

    def _ended(self) -> LabError:
        return LabError(f"The fork server ended{_last_words(self._path)}. Call start() again.")

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


def _last_words(path: str) -> str:
    """Return what the server printed last, in brackets; "" where its log cannot be read."""
    try:
        lines = (Path(path).parent / LOG).read_text().strip().splitlines()
    except OSError:
        return ""
    return f" ({lines[-1]})" if lines else ""


class ForkServerError(Exception):
    """The server's own error, such as a failed import."""
