"""The processes of one run: reaper, fork servers, controller and engines, reached through ipyparallel's client.

Everything here speaks in engine ids. Which engine plays which rank is the business of `engines`.
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
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.cluster import mps
from labkit.cluster.forkclient import ENVIRONMENT, ForkClient, ForkServerError, start_server
from labkit.cluster.host import SEAT
from labkit.cluster.hosts import FarProcess, Hosts
from labkit.cluster.process import Process
from labkit.cluster.rundir import TAG, RunDir, choose_rundir, start_reaper
from labkit.cluster.spread import Spread
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
GROUPS = "__import__('labkit.rank.agent', fromlist=['told']).told()"  # asked where a cell has ended well
ENGINE_ARGS = [
    "--IPEngine.enable_nanny=False",  # the agent on the control channel does a nanny's work in no process
    "--IPEngine.max_heartbeat_misses=0",  # the reaper ends engines, a busy controller must not
    "--IPEngine.log_level=30",
    "--InteractiveShell.colors=nocolor",
    "--HistoryManager.enabled=False",
]


def call_by_name(path: str, *args: Any) -> Any:
    """Run on an engine: import `path` ("labkit.rank.agent.prepare") there and call it."""
    import importlib

    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)(*args)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Imports go faster by a quarter: the collector would search what they make, and find no garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Question:
    """What an engine's agent was asked: `do` is one of `labkit.rank.agent.ACTIONS`, `reply` ipyparallel's future."""

    def __init__(self, do: str, engine: int, reply: Any) -> None:
        self._what, self._reply, self._put = f"{do} on engine {engine}", reply, time.monotonic()

    @property
    def open(self) -> bool:
        """Whether an answer may come still."""
        return not self._reply.done()

    def answer(self, seconds: float) -> Any:
        """The answer, where it comes within `seconds` after the question was put; else None.

        An agent that fails counts as one that does not answer: what the learner runs meanwhile goes on.
        """
        if not self._reply.wait(max(0.0, self._put + seconds - time.monotonic())):
            return None
        answer = self._reply.result()["content"]
        if answer["status"] == "ok":
            return answer["value"]
        warnings.warn(f"labkit's own mistake: {self._what}: {answer['value']}. Please report it.", stacklevel=2)
        return None


class Processes:
    """What one lab has started; `stop` ends all of it, and the reaper does should this process die before."""

    def __init__(self, launcher: str = "labkit", spread: Spread | None = None, config: Any = None) -> None:
        """By a launcher of ipyparallel's, with what a profile sets for it, or on the hosts of `spread`."""
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
        """Start everything but the engines; the number of GPUs that torch finds, on each host."""
        if sys.flags.optimize > 1:
            raise LabError(
                "Python drops docstrings here (PYTHONOPTIMIZE=2, or -OO), and ipyparallel cannot be imported without. "
                "Unset PYTHONOPTIMIZE, and start the notebook again."
            )
        self.run = choose_rundir()
        with STOP.whole():  # a reaper that nobody knows would keep the directory as long as the kernel lives
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
            raise LabError(
                f"engines={self.launcher!r} is no launcher that ipyparallel knows. Leave it out, or start with "
                "another: 'local', 'mpi', 'ssh', 'slurm'."
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
        """Start the fork server of a run that has one and is ours, unless it runs; somebody may have killed it."""
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
        """How controller and engines are started; ipyparallel's cluster file does not keep it."""
        from traitlets.config import Config

        config = Config() if self.given is None else self.given.copy()
        config.EngineLauncher.engine_args = ENGINE_ARGS if self.launcher == "labkit" else ENGINE_ARGS[1:]
        config.EngineLauncher.environment = {**ENVIRONMENT, TAG: self.run.tag}
        config.ControllerLauncher.environment = {**ENVIRONMENT, TAG: self.run.tag, **self._keys()}
        config.ControllerLauncher.controller_cmd = [sys.executable, "-m", "labkit.cluster.controller"]
        return config

    def _controller_args(self, sockets: str = "1-99") -> list[str]:
        """What is on this host meets the controller at Unix sockets in the run's directory, other hosts by TCP."""
        here = ["transport=ipc", f"ip={self.run.sockets}", f"ports={sockets}"] if self.launcher == "labkit" else []
        if self.spread:
            here[2:] = ["engine_transport=tcp", f"engine_ip={self.spread.address}", f"client_ports={sockets}"]
        misses = f"--HeartMonitor.max_heartmonitor_misses={FAR_MISSES if self.spread else MISSES}"
        return [*CONTROLLER_ARGS, misses, *(f"--IPController.{option}" for option in here)]

    def _keys(self) -> dict[str, str]:
        """The controller's curve keys, the same for a controller that takes the place of a dead one."""
        import zmq

        file = self.run.path / "keys.json"
        if not file.exists():
            public, secret = (key.decode() for key in zmq.curve_keypair())
            file.write_text(json.dumps({"IPP_CURVE_PUBLICKEY": public, "IPP_CURVE_SECRETKEY": secret}))
        return dict(json.loads(file.read_text()))

    @classmethod
    def attach(cls, address: str) -> Processes:
        """Reach the processes that another process of this user started and shares (`lab.address`)."""
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
        server = ForkClient(self.run.socket)
        try:
            return [int(server.ask("gpus")["gpus"])]
        finally:
            server.close()

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
            killed = self._reaper.wait() < 0  # by somebody, before it had done its work
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
        """Where the disk with the run's files is full; None where it is not, or nothing has begun."""
        return self.run.path.parent if hasattr(self, "run") and self.run.full() else None

    # -- engines ------------------------------------------------------------------------------------------------

    def share(self, ranks: int) -> None:
        """Let engines that are started from now on share a GPU under an MPS daemon, so many on each.

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
        """What engines have in their environment beside their parent's."""
        environment: dict[str, str] = self.cluster.config.EngineLauncher.environment
        return environment

    def new_engines(self, n: int, at: Sequence[int] = ()) -> list[int]:
        """Start n engines, where there are several hosts on those with the numbers `at`; their ids in this order.

        Without hosts an id says nothing about its place in the list. Returns once all have registered.
        """
        before = set(self.client.ids)
        self._forget_ended()
        self._serve()
        far = self._fork_far(at) if self.hosts else {}
        launcher = None if self.hosts else self.cluster.engines[self.cluster.start_engines_sync(n)]
        for known in self._known_within(time_limits.ENGINES_UP):
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
        self.until_reached(new)
        return self._in_order(new, far) if far else new

    def _forget_ended(self) -> None:
        """Let go of what ended engines have left: a launcher and their logs."""
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
        """Fork an engine on each of these hosts, in the order of the ranks: seat → process."""
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
        """The engines in the order of their seats, each held from now on: an id says nothing about its place."""
        asked = {e: self.client[e].apply_async(os.getenv, SEAT) for e in engines}
        by_seat = {answer.get(time_limits.SOCKETS_CONNECT): e for e, answer in asked.items()}
        self._far |= {by_seat[seat]: process for seat, process in far.items()}
        return [by_seat[seat] for seat in far]

    def _ended_starting(self, launcher: Any, far: dict[str, FarProcess]) -> Iterator[tuple[str, str]]:
        """How engines have ended before they came up, and what they wrote."""
        for pid, wrote in _died(launcher).items() if launcher is not None else ():
            yield self.how_ended(pid), wrote
        for process in far.values():
            if not process.runs():
                yield process.how(), process.log()

    def _known_within(self, seconds: float) -> Iterator[set[int]]:
        """The engines that the client knows, again and again: it hears of them, and asks the hub now and then."""
        deadline = time.monotonic() + seconds
        ask = time.monotonic() + time_limits.HUB_ASKED
        yield set(self.client.ids)
        while time.monotonic() < deadline:
            if time.monotonic() > ask:
                self._ask_the_hub()
                ask = time.monotonic() + time_limits.HUB_ASKED
            time.sleep(0.005)
            yield set(self.client.ids)

    def _ask_the_hub(self) -> None:
        """Learn of engines whose registration the client has not heard of."""
        asked = kernel_internals.ask_hub(self.client, "connection_request", {})
        if asked.wait(time_limits.HUB_ANSWERS):
            kernel_internals.learn_engines(self.client, asked.result()["content"]["engines"])

    def _still_starting(self, launcher: Any, came: list[int]) -> str:
        """Where the first process is that has not come up, as far as that can be told: lines for an error."""
        if not self.hosts and not hasattr(launcher, "stacks"):
            return ""
        answers = [self._called(engine) for engine in came]
        for answer in answers:
            answer.wait(time_limits.HUB_ANSWERS)
        up = {answer.get() for answer in answers if answer.done()}
        stacks = self.hosts.stacks(up) if self.hosts else launcher.stacks(up)
        if not stacks:
            return ""
        pid, stack = next(iter(stacks.items()))
        return f"Should it happen again, report where process {pid} is:\n{_last_lines(stack, 40)}\n"

    def until_reached(self, engines: list[int]) -> None:
        """Wait until requests arrive by both channels, for a while: one sent too early is lost."""
        deadline = time.monotonic() + time_limits.SOCKETS_CONNECT
        sent: dict[tuple[int, Any], list[Any]] = {(e, ask): [] for ask in (self._called, self._asked) for e in engines}
        while (far := [k for k, s in sent.items() if not any(x.done() for x in s)]) and time.monotonic() < deadline:
            for engine, ask in far:
                sent[engine, ask].append(ask(engine))
            for channel in far:
                sent[channel][-1].wait(0.1)

    def _called(self, engine: int) -> Any:
        return self.client[engine].apply_async(os.getpid)

    def _asked(self, engine: int) -> Any:
        return kernel_internals.ask_agent(self.client, engine, "kernel_info_request", {})

    def execute(self, code: str, engines: list[int]) -> Any:
        """Send a cell; ipyparallel's AsyncResult. One that fails takes no other with it that waits behind it."""
        if self._reaper is not None and self._reaper.poll() is not None:  # somebody has killed it
            with STOP.whole():
                self._reaper = start_reaper(self.run)
        from ipyparallel import AsyncResult

        content = {"code": code, "silent": False, "user_expressions": {"groups": GROUPS}, "stop_on_error": False}
        sent = [kernel_internals.execute(self.client, e, content) for e in engines]
        return AsyncResult(self.client, sent, fname="%px", targets=engines, owner=True)

    def call(self, engine: int, path: str, args: tuple[Any, ...]) -> Any:
        """Send the call of a function of `labkit.rank`, by name; ipyparallel's future of what it returns."""
        return kernel_internals.apply(self.client, engine, call_by_name, [path, *args])

    def ask(self, do: str, engine: int) -> Question | None:
        """Ask an engine's agent on the control channel; None where there is no such engine any more."""
        if engine not in kernel_internals.engines(self.client):
            return None
        reply = kernel_internals.ask_agent(self.client, engine, "labkit_request", {"do": do})
        return Question(do, engine, reply)

    def end(self, engines: Iterable[int]) -> None:
        """Ask engines to end, and wait a moment until they have heard it; they do once their cell has."""
        deadline = time.monotonic() + time_limits.ENGINES_HEAR
        known = [e for e in engines if e in kernel_internals.engines(self.client)]
        content = {"restart": False}
        for heard in [kernel_internals.ask_agent(self.client, e, "shutdown_request", content) for e in known]:
            heard.wait(max(0.0, deadline - time.monotonic()))

    def forget(self, engine: int) -> None:
        """Tell the hub that an engine is gone, rather than wait for its heart to be missed."""
        kernel_internals.ask_hub(self.client, "unregistration_request", {"id": engine})

    def hold(self, engine: int, pid: int, where: str) -> Process | FarProcess | None:
        """A handle on an engine's process, `pid` at the place `where`; None where there is none for certain."""
        if engine in self._far:
            return self._far[engine]
        process = Process(pid, self.run.tag)
        return process if process.held and where == pid_namespace.here() else None

    def how_ended(self, process: Process | FarProcess | int) -> str:
        """How a process of ours ended: "SIGKILL", "exit code 1"; only its parent, a fork server, knows."""
        if isinstance(process, FarProcess):
            return process.how()
        pid = process if isinstance(process, int) else process.pid
        unknown = "its process ended"
        if self.launcher != "labkit":
            return unknown
        try:
            server = ForkClient(self.run.socket)
        except LabError:  # it was killed as well
            return unknown
        code = server.ask("exits")["exits"].get(str(pid))
        server.close()
        if code is None:
            return unknown
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    # -- the controller -----------------------------------------------------------------------------------------

    def lost(self) -> bool:
        """Whether the controller has died: the engines may live, but nothing reaches them.

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
        if not any(set(engines) <= known for known in self._known_within(time_limits.ENGINES_BACK)):
            raise LabError("The ranks did not come back to the new controller. Call start() for new ones.")

    def _count_on(self, engines: list[int]) -> None:
        """Let the next controller give new engines new ids: ipyparallel saves a count that it has not restored yet,
        and would give a living engine's id away after its second restart."""
        file = self.run.path / "log" / "engineslab.json"
        known = json.loads(file.read_text())
        known["next_id"] = 1 + max([known["next_id"], *engines, *map(int, known["engines"])])
        file.write_text(json.dumps(known))


def _died(launcher: Any) -> dict[int, str]:
    """The engines that have ended, as far as their launcher knows: pid → what each wrote."""
    if hasattr(launcher, "died"):
        return {pid: Path(log).read_text(errors="replace") for pid, log in launcher.died().items()}
    each = [e for e in list(getattr(launcher, "launchers", {}).values()) if getattr(e, "process", None)]
    wrote = {e.process.pid: e.get_output() for e in each if not e.process.is_running()}
    seen = getattr(launcher, "stop_data", {}).get("engines", {})  # ipyparallel's launcher drops whom it has seen end
    return wrote | {end["pid"]: launcher.outputs.get(i, "") for i, end in list(seen.items())}


def _last_lines(text: str, n: int = 8) -> str:
    """The end of a log: when a run has failed, its files go with it."""
    return "\n".join(text.strip().splitlines()[-n:])


def count_gpus() -> int:
    """Ask torch in a process of its own how many GPUs there are: the notebook's kernel never imports it."""
    code = "import torch; print(torch.cuda.device_count())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if answer.returncode:
        raise LabError(f"{sys.executable} cannot import torch. Run `make lab`, or install torch into this environment.")
    return int(answer.stdout)
