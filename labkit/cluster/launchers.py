"""ipyparallel launchers that fork: `ipp.Cluster(engines="labkit", controller="labkit")`.

Registered as entry points, so that `ipcluster start --engines=labkit --controller=labkit` finds them too.
Both talk to the fork server of their profile directory and start one where there is none yet.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import time
from pathlib import Path
from typing import Any

from ipyparallel.cluster.launcher import BaseLauncher, ControllerLauncher, EngineLauncher, NotRunning
from traitlets import Any as AnyTrait
from traitlets import Integer, List, Unicode

from labkit.cluster.forkclient import ForkClient, start_server
from labkit.cluster.forkserver import STACKS, STACKS_END
from labkit.cluster.process import Process
from labkit.cluster.rundir import TAG
from labkit.floor import time_limits
from labkit.floor.errors import LabError


class _Forked(BaseLauncher):
    """What both launchers share: processes of the fork server instead of Popen objects."""

    kind = ""
    pids = List(Integer()).tag(to_dict=True)
    run_tag = Unicode().tag(to_dict=True)  # the fork server's
    client = AnyTrait(allow_none=True)
    server = AnyTrait(allow_none=True)
    logs = List(Unicode()).tag(to_dict=True)
    held: Any = List()  # the processes of `pids`

    def living(self) -> list[Process]:
        return [process for process in self.held if process.runs()]

    def hold(self, pid: int) -> None:
        self.pids = [*self.pids, pid]
        self.held.append(Process(pid, self.run_tag))

    def connect(self, start: bool = True) -> ForkClient:
        """Reach the fork server; where none answers, none has been started or it was killed, start one."""
        if self.client is None:
            path = os.path.join(self.profile_dir, "fork.sock")
            try:
                self.client = ForkClient(path)
            except LabError:
                if not start:
                    raise
                tag = self.run_tag or self.environment.get(TAG) or os.environ.get(TAG) or secrets.token_hex(16)
                self.server = start_server(path, tag)
                self.client = ForkClient(path)
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
        """None while one of the processes lives, else the first exit code that is known (or 1)."""
        if self.living():
            return None  # without the server, which answers late while it imports
        try:
            exits = self.connect(start=False).ask("exits")["exits"]
        except LabError:  # killed, and what it knew is lost
            exits = {}
        self.hang_up()
        return next((exits.get(str(pid), 1) for pid in self.pids), None)

    def signal(self, sig: int) -> None:
        for process in self.held:
            process.send(sig)

    async def join(self, timeout: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.stop_timeout if timeout is None else timeout)
        while self.living():
            if loop.time() > deadline:
                raise TimeoutError(f"Processes {self.pids} are still there.")
            await asyncio.sleep(0.01)
        self.notify_stop({"exit_code": 0, "pids": list(self.pids)})

    async def stop(self) -> None:
        self.signal(signal.SIGTERM)
        try:
            await self.join(timeout=time_limits.ENGINES_HEAR)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.join()
        if self.server is not None:
            self.server.terminate()
            os.unlink(os.path.join(self.profile_dir, "fork.sock"))
        self.leave()

    def hang_up(self) -> None:
        """Close the connection to the fork server: there is a launcher for each rank that was started anew."""
        if self.client is not None:
            self.client.close()
            self.client = None

    def leave(self) -> None:
        """Let go of everything, ipyparallel may not; collect a server that was started here and is ending."""
        self.hang_up()
        self.held.clear()
        if self.server is not None:
            self.server.wait()

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
        """The engines that have ended: pid → log."""
        return {p.pid: log for p, log in zip(self.held, self.logs, strict=True) if not p.runs()}

    def forget_ended(self) -> bool:
        """Let go of the engines that have ended, remove their logs, collect a fork server; whether nothing is left."""
        if self.server is not None and self.server.poll() is not None:
            self.server = None
        for process, log in [*zip(self.held, self.logs, strict=True)]:
            if not process.runs():
                Path(log).unlink(missing_ok=True)
                self.held.remove(process)
                self.logs.remove(log)
        self.pids = [process.pid for process in self.held]
        return not self.held and self.server is None

    def stacks(self, but: set[int]) -> dict[int, str]:
        """Where all engines but these are: pid → what each has logged, then the Python stacks of its threads."""
        asked = {p: Path(log) for p, log in zip(self.held, self.logs, strict=True) if p.pid not in but and p.runs()}
        for process in asked:
            process.send(STACKS)
        wrote = {}
        deadline = time.monotonic() + time_limits.STACKS_WRITTEN
        for process, log in asked.items():
            while STACKS_END not in (text := log.read_text(errors="replace")) and time.monotonic() < deadline:
                time.sleep(0.01)
            wrote[process.pid] = text
        return wrote
