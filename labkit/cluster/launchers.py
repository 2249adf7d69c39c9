"""Launchers of ipyparallel's that fork engines and the controller, by the fork server of a run.

ipyparallel finds them by name, as entry points of this package. The reaper ends what they have started.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from ipyparallel.cluster.launcher import BaseLauncher, ControllerLauncher, EngineLauncher, NotRunning
from traitlets import Any as AnyTrait
from traitlets import Integer, List, Unicode

from labkit.cluster.forkclient import ForkClient
from labkit.cluster.process import Process, stacks
from labkit.floor.errors import LabError


class _Forked(BaseLauncher):
    """A launcher whose processes are children of the fork server."""

    kind = ""
    pids = List(Integer()).tag(to_dict=True)
    run_tag = Unicode().tag(to_dict=True)  # the fork server's
    client = AnyTrait(allow_none=True)
    logs = List(Unicode()).tag(to_dict=True)
    held: Any = List()  # the processes of `pids`

    def living(self) -> list[Process]:
        return [process for process in self.held if process.runs()]

    def hold(self, pid: int) -> None:
        self.pids = [*self.pids, pid]
        self.held.append(Process(pid, self.run_tag))

    def connect(self) -> ForkClient:
        if self.client is None:
            self.client = ForkClient(os.path.join(self.profile_dir, "fork.sock"))
        return self.client

    def find_args(self) -> list[str]:
        return [f"fork:{self.kind}", *self.arguments()]

    def fork(self, n: int) -> None:
        logs = Path(self.profile_dir) / "log"
        logs.mkdir(exist_ok=True)
        for i in range(n):
            self.logs.append(str(logs / f"{self.identifier}-{i}.log"))
            reply = self.connect().ask(
                "fork",
                kind=self.kind,
                args=[f"--profile-dir={self.profile_dir}", *self.arguments()],
                env=self.get_env(),
                log=self.logs[-1],
            )
            self.run_tag = reply["tag"]
            self.hold(reply["pid"])
        self.hang_up()
        self.notify_start(self.pids)

    def poll(self) -> int | None:
        """Return None while one of the processes lives, else the first exit code that is known (or 1)."""
        if self.living():
            return None  # without the server, which answers late while it imports
        try:
            exits = self.connect().ask("exits")["exits"]
        except LabError:  # killed, and what it knew is lost
            exits = {}
        self.hang_up()
        return next((exits.get(str(pid), 1) for pid in self.pids), None)

    def hang_up(self) -> None:
        """Close the connection to the fork server: there is a launcher for each rank that was started anew."""
        if self.client is not None:
            self.client.close()
            self.client = None

    def leave(self) -> None:
        """Let go of everything that this holds, for as long as ipyparallel keeps the launcher."""
        self.hang_up()
        self.held.clear()

    @classmethod
    def from_dict(cls, d: dict[str, Any], **kwargs: Any) -> Any:
        self = super().from_dict(d, **kwargs)
        pids, self.pids = self.pids, []
        for pid in pids:
            self.hold(pid)
        if not self.living():
            raise NotRunning(f"Processes {pids} have ended")
        return self


class ForkControllerLauncher(_Forked, ControllerLauncher):
    """Fork the controller: it starts without importing anything again."""

    kind = "controller"

    def arguments(self) -> list[str]:
        return [*self.cluster_args, *self.controller_args]

    async def start(self) -> None:
        self.fork(1)

    async def get_connection_info(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the controller's two files; polled tightly, since everything else waits for them."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.connection_info_timeout if timeout is None else timeout)
        while True:
            try:
                return {kind: json.loads(Path(f).read_text()) for kind, f in self.connection_files.items()}
            except (FileNotFoundError, ValueError):  # not there yet, or not yet whole
                if self.poll() is not None:
                    raise RuntimeError(f"The controller ended at once:\n{self.log_text()}") from None
                if loop.time() > deadline:
                    raise TimeoutError("The controller did not write its connection files in time") from None
                await asyncio.sleep(0.01)

    def log_text(self) -> str:
        return "".join(f.read_text() for f in sorted((Path(self.profile_dir) / "log").glob("*controller*.log")))


class ForkEngineSetLauncher(_Forked, EngineLauncher):
    """Fork a set of engines from the process that has imported torch already."""

    kind = "engine"

    def arguments(self) -> list[str]:
        return [*self.cluster_args, *self.engine_args]

    async def start(self, n: int) -> None:
        self.n = n
        self.connect().ask("preload")
        self.fork(n)

    def died(self) -> dict[int, str]:
        """Return the logs of the engines that have ended, by pid."""
        return {p.pid: log for p, log in zip(self.held, self.logs, strict=True) if not p.runs()}

    def forget_ended(self) -> bool:
        """Let go of the engines that have ended, and remove their logs; tell whether no engine is left."""
        for process, log in [*zip(self.held, self.logs, strict=True)]:
            if not process.runs():
                Path(log).unlink(missing_ok=True)
                self.held.remove(process)
                self.logs.remove(log)
        self.pids = [process.pid for process in self.held]
        return not self.held

    def stacks(self, but: set[int]) -> dict[int, str]:
        """Return what the engines but these have logged, then the Python stacks of their threads, by pid."""
        logs = zip(self.held, self.logs, strict=True)
        return stacks({process: Path(log) for process, log in logs if process.pid not in but})
