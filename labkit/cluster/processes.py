"""Start and end the processes of one run: reaper, fork server, controller and engines, by ipyparallel's engine ids.

`requests` sends engines what they are to do; `engines` knows which engine is which rank.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.cluster import mps, requests
from labkit.cluster.forkclient import ENVIRONMENT, ForkClient, ForkServerError, start_server
from labkit.cluster.host import SEAT
from labkit.cluster.hosts import FarProcess, Hosts
from labkit.cluster.process import Process, end_of
from labkit.cluster.rundir import TAG, RunDir, choose_rundir, start_reaper
from labkit.cluster.spread import KINDS, Spread
from labkit.cluster.stop_button import STOP
from labkit.floor import kernel_internals, pid_namespace, time_limits
from labkit.floor.errors import LabError

CONTROLLER_ARGS = [
    "--IPController.enable_curve=True",  # other users of the host cannot listen in
    "--IPController.use_threads=True",  # one process instead of nine
    "--IPController.db_class=NoDB",
    "--IPController.log_level=30",  # WARNING: it would note each message
    "--HeartMonitor.period=1000",
]
MISSES = 10  # heartbeats, after which ipyparallel counts an engine as gone
FAR_MISSES = 40  # where every host tells which engines have ended, and a link may be down for a while
IMPORTING = "Importing torch once for all ranks …"
MAGICS = ("labkit.cluster.magic",)  # what the notebook needs once there are ranks
RESTORE_ARGS = ["--IPController.reuse_files=True", "--IPController.restore_engines=True"]
ENGINE_ARGS = [
    "--IPEngine.enable_nanny=False",  # the agent on the control channel does a nanny's work in no process
    "--IPEngine.max_heartbeat_misses=0",  # the reaper ends engines, a busy controller must not
    "--IPEngine.log_level=30",
    "--InteractiveShell.colors=nocolor",
    "--HistoryManager.enabled=False",
]


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Let imports go faster by a quarter: the collector would search what they make, and find no garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Processes:
    """What one lab has started; `stop` ends all of it, and the reaper does should this process die before."""

    def __init__(self, launcher: str = "labkit", spread: Spread | None = None, config: Any = None) -> None:
        """Take one of ipyparallel's launchers, with a profile's settings in `config`, or the hosts of `spread`."""
        self.launcher = "labkit" if spread else launcher
        self.spread, self.given = spread, config
        self.hosts: Hosts | None = None
        self.mps: mps.Mps | None = None  # under which ranks share a GPU
        self.owner = True
        self._far: dict[int, FarProcess] = {}  # engines on other hosts
        self._seats = 0
        self._reaper: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._asked_server: ForkClient | None = None
        self._still_since = math.inf  # when the controller was first seen to stand still

    # -- coming and going ---------------------------------------------------------------------------------------

    @without_garbage_collection()
    def start(self, say: Callable[[str], None]) -> list[int]:
        """Start everything but the engines, and return how many GPUs torch finds on each host."""
        if sys.flags.optimize > 1:
            raise LabError(
                "Python drops docstrings here (PYTHONOPTIMIZE=2, or -OO), and ipyparallel cannot be imported without. "
                "Unset PYTHONOPTIMIZE, and start the notebook again."
            )
        self.run = choose_rundir()
        with STOP.whole():  # a reaper that is started and not kept would hold the directory as long as the kernel lives
            self._reaper = start_reaper(self.run)
        from traitlets import TraitError

        forking = self.launcher == "labkit"
        if forking:
            say(f"Starting a process on each host {self.spread.by} …" if self.spread else IMPORTING)
            self._serve()
            with STOP.whole():
                server = self._asked_server = ForkClient(self.run.socket)
            server.send("import", kind="controller")
        try:
            self._make_cluster()
        except TraitError:
            if forking:
                raise LabError(
                    "labkit is on Python's path, but it is not installed in this Python, so ipyparallel does not find "
                    "what starts its ranks. Install it: %pip install -e FOLDER, with the folder of the workbook. On "
                    "Colab, Kaggle and SageMaker: run the first cell again, with the internet on."
                ) from None
            raise LabError(
                f"engines={self.launcher!r} is not a launcher that ipyparallel knows. Leave it out, or start with "
                f"another: {', '.join(map(repr, ('local', *KINDS)))}."
            ) from None
        if forking:
            server.receive()
        self.cluster.start_controller_sync()
        if forking and not self.spread:
            server.send("preload")
        self._connect()
        for name in MAGICS:  # while the server imports torch
            importlib.import_module(name)
        if self.spread:
            server.close()
            self.hosts = Hosts(self.spread, self.run)
            gpus = self.hosts.start(say)
        else:
            gpus = [self._ask_torch(server) if forking else count_gpus()]
        with open(self.run.address, "w") as f:
            json.dump({"path": str(self.run.path), "tag": self.run.tag, "file": self.cluster.cluster_file}, f)
        return gpus

    def _serve(self) -> None:
        """Start this run's fork server where it has one that does not run: at first, or because it was killed."""
        runs = self._server is not None and self._server.poll() is None
        if self.launcher == "labkit" and self.owner and not runs:
            with STOP.whole():
                self._server = start_server(self.run.socket, self.run.tag, self._reaper)

    def _ask_torch(self, server: ForkClient) -> int:
        try:
            server.receive()
            return int(server.ask("gpus")["gpus"])
        except ForkServerError as error:
            if "No module named 'torch'" in str(error):
                raise LabError(
                    f"{sys.executable} has no torch. Run `make lab`, or install torch into this environment."
                ) from None
            raise LabError(f"The ranks cannot be prepared: {error}. Mend that, then start() again.") from error
        finally:
            server.close()

    def _make_cluster(self) -> None:
        import logging

        import ipyparallel as ipp

        self.cluster = ipp.Cluster(
            config=self._config(),
            controller="labkit" if self.launcher == "labkit" else "local",
            engines=self.launcher,
            profile_dir=str(self.run.path),
            cluster_id="lab",
            cluster_file=str(self.run.path / "cluster.json"),
            controller_args=self._controller_args(),
            delay=0,
            log_level=logging.CRITICAL,
            shutdown_atexit=False,  # the reaper's work
            load_profile=False,
        )

    def _connect(self) -> None:
        """Connect a client to the controller, on this thread, where Stop ends it; `stop` closes what it has begun.

        ipyparallel's own way is a thread that connects on: for a minute without a controller, and with one for ever.
        """
        from ipyparallel import Client

        files = kernel_internals.connection_info(self.cluster)
        self.client = Client.__new__(Client)
        self.client.__init__(
            files["client"],
            cluster=self.cluster,
            profile_dir=self.cluster.profile_dir,
            cluster_id=self.cluster.cluster_id,
            timeout=time_limits.ENGINES_UP,
        )

    def _config(self) -> Any:
        """Return the settings of controller and engines, which ipyparallel's cluster file does not keep."""
        from traitlets.config import Config

        config = Config() if self.given is None else self.given.copy()
        config.EngineLauncher.engine_args = ENGINE_ARGS if self.launcher == "labkit" else ENGINE_ARGS[1:]
        config.EngineLauncher.environment = {**ENVIRONMENT, TAG: self.run.tag}
        config.ControllerLauncher.environment = {**ENVIRONMENT, TAG: self.run.tag, **self._keys()}
        config.ControllerLauncher.controller_cmd = [sys.executable, "-m", "labkit.cluster.controller"]
        return config

    def _controller_args(self, sockets: str = "1-99") -> list[str]:
        """Let this host's processes meet the controller at Unix sockets in the run's directory, other hosts by TCP."""
        here = ["transport=ipc", f"ip={self.run.sockets}", f"ports={sockets}"] if self.launcher == "labkit" else []
        if self.spread:
            here[2:] = ["engine_transport=tcp", f"engine_ip={self.spread.address}", f"client_ports={sockets}"]
        misses = f"--HeartMonitor.max_heartmonitor_misses={FAR_MISSES if self.spread else MISSES}"
        return [*CONTROLLER_ARGS, misses, *(f"--IPController.{option}" for option in here)]

    def _keys(self) -> dict[str, str]:
        """Return the controller's curve keys, the same for a controller that takes the place of a dead one."""
        import zmq

        file = self.run.path / "keys.json"
        if not file.exists():
            public, secret = (key.decode() for key in zmq.curve_keypair())
            file.write_text(json.dumps({"IPP_CURVE_PUBLICKEY": public, "IPP_CURVE_SECRETKEY": secret}))
        return dict(json.loads(file.read_text()))

    @classmethod
    def attach(cls, address: str) -> Processes:
        """Reach the processes that another process of this user started and shares (see `Lab._address`)."""
        import ipyparallel as ipp

        shared = json.loads(Path(address).read_text())
        self = cls()
        self.owner = False
        self.run = RunDir(Path(shared["path"]), shared["tag"])
        ForkClient(self.run.socket).close()  # raises where it no longer answers
        self.cluster = ipp.Cluster.from_file(shared["file"], config=self._config(), log_level=50, shutdown_atexit=False)
        self._connect()
        return self

    def gpus(self) -> list[int]:
        """Ask the fork server how many GPUs torch finds."""
        with contextlib.closing(ForkClient(self.run.socket)) as server:
            return [int(server.ask("gpus")["gpus"])]

    def stop(self) -> None:
        """End every process of the run and remove its files; of a run that another process owns, only leave it."""
        if hasattr(self, "client"):
            self.client.close(linger=0)
        if hasattr(self, "cluster"):
            self.cluster.cluster_file = ""  # it hears late that an engine has ended, and would make the folder anew
        if self._asked_server is not None:
            self._asked_server.close()
        if self.hosts is not None:
            self.hosts.stop()
        while self._reaper is not None:
            self._reaper.terminate()
            killed = self._reaper.wait() < 0  # before it had done its work
            self._reaper = start_reaper(self.run) if killed else None
        if self._server is not None:
            self._server.wait()
            self._server = None
        if hasattr(self, "cluster"):
            for launcher in (self.cluster.controller, *self.cluster.engines.values()):
                if hasattr(launcher, "leave"):
                    launcher.leave()
            kernel_internals.end_loop(self.cluster)

    def full_disk(self) -> Path | None:
        """Return the folder whose disk is full, so that no more of the run's files fit; None where there is room."""
        return self.run.path.parent if hasattr(self, "run") and self.run.full() else None

    # -- engines ------------------------------------------------------------------------------------------------

    def guard(self) -> None:
        """Start the reaper anew where it was killed, so that it still ends all processes after this one."""
        if self._reaper is not None and self._reaper.poll() is not None:
            with STOP.whole():
                self._reaper = start_reaper(self.run)

    def share(self, ranks: int) -> None:
        """Let engines that are started from now on share a GPU under an MPS daemon, `ranks` on each.

        Raises `mps.NoDaemonError` where there can be none; they then take turns, as with `take_turns`.
        """
        self.take_turns()
        self.mps = mps.begin(self.run)
        self._environment.update(self.mps.environment(ranks))

    def take_turns(self) -> None:
        """Let engines that are started from now on take turns on a GPU: end the daemon, where one was begun here."""
        if self.mps is not None:
            self.mps.end()
            self.mps = None
        for name in mps.NAMES:
            self._environment.pop(name, None)

    @property
    def _environment(self) -> dict[str, str]:
        """The variables that engines have beside their parent's."""
        environment: dict[str, str] = self.cluster.config.EngineLauncher.environment
        return environment

    def new_engines(self, n: int, at: Sequence[int] = ()) -> list[int]:
        """Start n engines, and return their ids once all are reached.

        On several hosts the engines are on those with the numbers `at`, in this order.
        """
        before = set(self.client.ids)
        self._forget_ended()
        self._serve()
        far = self._fork_far(at) if self.hosts else {}
        launcher = None if self.hosts else self.cluster.engines[self.cluster.start_engines_sync(n)]
        for known in requests.known_within(self.client, time_limits.ENGINES_UP):
            if len(new := sorted(known - before)) >= n:
                break
            for how, wrote in self._ended_starting(launcher, far):
                raise LabError(
                    f"An engine ended while it started ({how}):\n{_last_lines(wrote)}\n"
                    "Mend that, then run start() again."
                )
        else:
            raise LabError(
                f"Only {len(new)} of {n} engines came up in {time_limits.ENGINES_UP:.0f} s. "
                "Is this machine overloaded?\n"
                f"{self._still_starting(launcher, new)}Run start() again, with fewer ranks."
            )
        requests.until_reached(self.client, new)
        return self._in_order(new, far) if far else new

    def _forget_ended(self) -> None:
        """Drop what ended engines have left: a launcher and their logs."""
        launchers = self.cluster.engines
        for name, launcher in list(launchers.items()):
            if hasattr(launcher, "forget_ended") and launcher.forget_ended():
                del launchers[name]

    def revive(self, at: Sequence[int]) -> None:
        """Start the process of these hosts anew where it was lost; LabError where that cannot be."""
        for number in sorted(set(at)):
            if self.hosts and self.hosts.hosts[number].lost:
                self.hosts.revive(number)

    def _fork_far(self, at: Sequence[int]) -> dict[str, FarProcess]:
        """Fork an engine on each of these hosts, and return the processes by seat, in the order of `at`."""
        assert self.hosts
        security = self.run.path / "security" / "ipcontroller-lab-engine.json"
        env = {"IPP_CONNECTION_INFO": security.read_text()}
        seats = [str(self._seats + k) for k in range(len(at))]
        self._seats += len(at)
        far: dict[str, FarProcess] = {}
        for host in sorted(set(at)):
            mine = [seat for seat, h in zip(seats, at, strict=True) if h == host]
            pids = self.hosts.ask(host, "fork", args=["--cluster-id=lab", *ENGINE_ARGS], env=env, seats=mine)["pids"]
            far |= {seat: FarProcess(self.hosts, host, pid) for seat, pid in zip(mine, pids, strict=True)}
        return {seat: far[seat] for seat in seats}

    def _in_order(self, engines: list[int], far: dict[str, FarProcess]) -> list[int]:
        """Return the engines in the order of their seats, which ids say nothing about, and hold their processes."""
        asked = {e: self.client[e].apply_async(os.getenv, SEAT) for e in engines}
        by_seat = {answer.get(time_limits.SOCKETS_CONNECT): e for e, answer in asked.items()}
        self._far |= {by_seat[seat]: process for seat, process in far.items()}
        return [by_seat[seat] for seat in far]

    def _ended_starting(self, launcher: Any, far: dict[str, FarProcess]) -> Iterator[tuple[str, str]]:
        """Yield how each engine ended that did not come up, and what it wrote."""
        for pid, wrote in _died(launcher).items() if launcher is not None else ():
            yield self.how_ended(pid), wrote
        for process in far.values():
            if not process.runs():
                yield process.how(), process.log()

    def _still_starting(self, launcher: Any, came: list[int]) -> str:
        """Return lines for an error: where the first process is that has not come up, as far as that can be told."""
        if not self.hosts and not hasattr(launcher, "stacks"):
            return ""
        answers = [requests.called(self.client, engine) for engine in came]
        for answer in answers:
            answer.wait(time_limits.HUB_ANSWERS)
        up = {answer.get() for answer in answers if answer.done()}
        stacks = self.hosts.stacks(up) if self.hosts else launcher.stacks(up)
        if not stacks:
            return ""
        pid, stack = next(iter(stacks.items()))
        return f"Should it happen again, report where process {pid} is:\n{_last_lines(stack, 40)}\n"

    def hold(self, engine: int, pid: int, where: str) -> Process | FarProcess | None:
        """Return a handle on an engine's process, `pid` in the PID namespace `where`; None where there is none."""
        if engine in self._far:
            return self._far[engine]
        process = Process(pid, self.run.tag)
        return process if process.held and where == pid_namespace.here() else None

    def how_ended(self, process: Process | FarProcess | int) -> str:
        """Return how an engine ended, "SIGKILL" or "exit code 1", as only its parent, a fork server, knows."""
        if isinstance(process, FarProcess):
            return process.how()
        pid = process if isinstance(process, int) else process.pid
        code = None
        if self.launcher == "labkit":
            with contextlib.suppress(LabError), contextlib.closing(ForkClient(self.run.socket)) as server:
                code = server.ask("exits")["exits"].get(str(pid))
        return end_of(code)

    # -- the controller -----------------------------------------------------------------------------------------

    def lost(self) -> bool:
        """Tell whether the controller has died: the engines may live, but nothing reaches them.

        One that was stopped (SIGSTOP) and stays so would never pass a message on again: it is ended.
        """
        controller = self.cluster.controller
        still = [process for process in getattr(controller, "held", ()) if process.stands_still()]
        self._still_since = min(self._still_since, time.monotonic()) if still else math.inf
        if time.monotonic() - self._still_since > time_limits.CONTROLLER_STILL:
            for process in still:
                process.send(signal.SIGKILL)
                process.wait(time_limits.SOCKETS_CONNECT)
        return controller is not None and controller.poll() is not None

    def restore(self, engines: list[int]) -> None:
        """Start a new controller where the dead one listened, and wait until these engines have come back to it."""
        self.client.close(linger=0)
        self.cluster.controller = None
        self._count_on(engines)
        unused = self._controller_args("100-199")  # beside those that the engines know
        self.cluster.controller_args = [*unused, *RESTORE_ARGS]
        self._serve()
        self.cluster.start_controller_sync()
        self._connect()
        if not any(set(engines) <= known for known in requests.known_within(self.client, time_limits.ENGINES_BACK)):
            raise LabError("The ranks did not come back to the new controller. Call start() for new ones.")

    def _count_on(self, engines: list[int]) -> None:
        """Let the next controller give new engines new ids.

        ipyparallel saves a count that it has not restored yet, and would give a living engine's id away after its
        second restart.
        """
        file = self.run.path / "log" / "engineslab.json"
        known = json.loads(file.read_text())
        known["next_id"] = 1 + max([known["next_id"], *engines, *map(int, known["engines"])])
        file.write_text(json.dumps(known))


def _died(launcher: Any) -> dict[int, str]:
    """Return what each engine wrote that has ended, by pid, as far as the launcher knows."""
    if hasattr(launcher, "died"):
        return {pid: Path(log).read_text(errors="replace") for pid, log in launcher.died().items()}
    each = [e for e in list(getattr(launcher, "launchers", {}).values()) if getattr(e, "process", None)]
    wrote = {e.process.pid: e.get_output() for e in each if not e.process.is_running()}
    seen = getattr(launcher, "stop_data", {}).get("engines", {})  # ipyparallel's launcher drops whom it has seen end
    return wrote | {end["pid"]: launcher.outputs.get(i, "") for i, end in list(seen.items())}


def _last_lines(text: str, n: int = 8) -> str:
    """Return the end of a log, for an error: when a run has failed, its files go with it."""
    return "\n".join(text.strip().splitlines()[-n:])


def count_gpus() -> int:
    """Ask torch in a process of its own how many GPUs there are: the notebook's kernel never imports it."""
    code = "import torch; print(torch.cuda.device_count())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if answer.returncode:
        raise LabError(f"{sys.executable} cannot import torch. Run `make lab`, or install torch into this environment.")
    return int(answer.stdout)
