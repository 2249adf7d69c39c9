"""A notebook on a host: a real IPython kernel there, driven from here as tests/live/notebook.py drives one.

The kernel's Unix sockets lie in its host's own /tmp, which is reached through /proc from outside.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys

from jupyter_client.blocking import BlockingKernelClient

from tests.hosts.hosts import Hosts
from tests.live.notebook import ENOUGH, Notebook
from tests.live.processes import eventually

ASKED = 2.5  # seconds that Jupyter gives a kernel to end by itself, and once more after SIGTERM


class HostNotebook(Notebook):
    """A kernel on a host and the cells run in it; the kernel is killed with the end of the `with` block."""

    def __init__(self, hosts: Hosts, name: str = "head", **environment: str) -> None:
        self._hosts, self._name, self._environment = hosts, name, environment
        self._start()

    def _start(self) -> None:
        folder = f"/tmp/kernel-{secrets.token_hex(4)}"
        place = self._hosts.path(self._name, folder)
        place.mkdir()
        ports = {f"{channel}_port": i for i, channel in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1)}
        said = {"transport": "ipc", "ip": f"{folder}/k", "key": secrets.token_hex(16), **ports}
        said["signature_scheme"] = "hmac-sha256"
        (place / "kernel.json").write_text(json.dumps(said))
        self.program = self._hosts.popen(
            self._name,
            [sys.executable, "-m", "ipykernel_launcher", "-f", f"{folder}/kernel.json"],
            self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._place_there = place
        # Before it answers, the client would take the silence of a kernel that is coming up for its death.
        bound = eventually(
            lambda: self.program.poll() is not None or len(list(place.glob("k-*"))) == len(ports), ENOUGH
        )
        assert bound, "the kernel does not come up"
        assert self.program.poll() is None, f"the kernel ended with {self.program.returncode}"
        self.client = BlockingKernelClient()
        self.client.load_connection_info({**said, "ip": f"{place}/k", "key": said["key"].encode()})
        self.client.start_channels(hb=False)  # a busy machine beats late
        self.client.wait_for_ready(timeout=ENOUGH)

    @property
    def pid(self) -> int:
        """The kernel's pid on its host."""
        return self.program.pid_there

    def interrupt(self) -> None:
        self.program.signal_group(signal.SIGINT)

    def restart(self) -> None:
        self.close()
        self._start()

    def kill(self) -> None:
        self.program.kill()
        self.program.wait(ENOUGH)

    def close(self, now: bool = True) -> None:
        """End the kernel as Jupyter does: where `now` is false it is asked to, soon told to, and then killed.

        One that was asked may hang, with and without a lab: ipykernel's main thread ends the thread through which its
        control thread is about to say that it is idle, and which that then waits for.
        """
        for ask in () if now else (self.client.shutdown, self.program.terminate):
            if self.program.poll() is None:
                ask()
                eventually(lambda: self.program.poll() is not None, ASKED)
        self.client.stop_channels()
        self.program.kill()
        self.program.wait(ENOUGH)
        for file in self._place_there.iterdir() if self._place_there.exists() else ():
            file.unlink()
        if self._place_there.exists():
            self._place_there.rmdir()
