"""Fork the engines of one host of a lab that spans several, and end with the notebook.

`python -m labkit.cluster.host` is started by ssh, srun or mpiexec, and told by one line what to do: on standard input,
or in the environment where the launcher has no input to give. It calls the notebook back over an encrypted connection
and answers one request after another; by itself it tells which engines have ended. A fork server and a reaper stand
beside it, the same as on the notebook's own host: whatever becomes of this process, the reaper ends what it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import zmq
from zmq.utils.monitor import recv_monitor_message

from labkit.cluster.forkclient import ENVIRONMENT, ForkClient, start_server
from labkit.cluster.process import Process, stacks
from labkit.cluster.rundir import LAUNCHED, choose_rundir, start_reaper
from labkit.floor import time_limits
from labkit.floor.errors import LabError

ORDER = "LABKIT_ORDER"  # the variable that holds the order where it does not come by standard input
NUMBERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")  # how launchers number what they start
SSH_OF_MPICH = "HYDRA_LAUNCHER_EXTRA_ARGS"  # the arguments of the ssh by which MPICH's mpiexec reaches hosts
# How the variables begin by which mpiexec speaks to an MPI program, which no engine is.
ITS_OWN = ("OMPI_", "PMI_", "PMIX_", "MPI_LOCAL", "HYDI_", SSH_OF_MPICH)
SAYS = "labkit: "  # how a line begins in which the process of a host says why it ends
GONE, SILENT = "the notebook has ended.", "the notebook does not answer."  # why a host's process ends
MOST = 4000  # characters of an engine's log that are told of its end
SEAT = "LABKIT_SEAT"  # in the environment of an engine: which of the forks it is
KEEPALIVE = {  # a link that is cut closes no connection: after some 20 s without an answer the kernel does
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 5,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.HEARTBEAT_IVL: 5000,
    zmq.HEARTBEAT_TIMEOUT: 20000,
}


def versions() -> dict[str, str]:
    """Return what must be the same on every host, since code and messages go from one to the other."""
    names = ("collectives-workbook", "torch", "ipyparallel", "ipykernel", "pyzmq")
    found = {}
    for name in names:
        with contextlib.suppress(Exception):  # not installed there
            found[name] = version(name)
    return {"Python": ".".join(map(str, sys.version_info[:2])), **found}


def own_address(towards: str) -> tuple[str, str]:
    """Return the address by which this host reaches an IPv4 address, and its interface; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((towards, 9))
        address = s.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address == address for a in addresses):
            return address, name
    return address, "lo"


class HostAgent:
    """One host of a lab: its engines by pid, and the connection to the notebook."""

    def __init__(self, order: dict[str, Any], number: int) -> None:
        self.notebook = order["ip"], order["port"]
        address, interface = own_address(order["ip"])
        self.environment = {
            **ENVIRONMENT,
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
            "LABKIT_ADDRESS": address,
        }
        self.engines: dict[int, Process] = {}
        self.logs: dict[int, Path] = {}
        self.importing = 0  # the request that is answered once the fork server has torch
        self.run = choose_rundir()
        self.reaper = start_reaper(self.run, wakes=True)  # else what waits for this process would wait for ever
        self.server = start_server(self.run.socket, self.run.tag, self.reaper)
        self.forks = ForkClient(self.run.socket)
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.identity = f"{number}.{order.get('life', 0)}".encode()  # one of its own, once taken for lost
        self.socket.curve_serverkey = order["key"].encode()
        self.socket.curve_publickey, self.socket.curve_secretkey = zmq.curve_keypair()
        for option, value in KEEPALIVE.items():
            self.socket.setsockopt(option, value)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self.socket.connect(f"tcp://{order['ip']}:{order['port']}")
        name = socket.gethostname()
        self.tell("hello", token=order["token"], name=name, versions=versions(), python=sys.executable)

    def tell(self, what: str, **fields: Any) -> None:
        self.socket.send_json({"tell": what, **fields})

    def serve(self) -> str:
        """Answer until told to end, or until the notebook is gone, and return why, in words."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.monitor, zmq.POLLIN)
        lost_at: float | None = time.monotonic() + time_limits.NOTEBOOK_REACHED - time_limits.NOTEBOOK_BACK
        asked = 0.0
        while True:
            ready = dict(poller.poll(100))
            if self.monitor in ready:
                event = recv_monitor_message(self.monitor)["event"]
                lost_at = time.monotonic() if event == zmq.EVENT_DISCONNECTED else None
                asked = 0.0
            if self.socket in ready and not self.answer(json.loads(self.socket.recv())):
                return ""
            if self.importing and self.forks.heard():
                self.reply(self.importing, "imported", {})
                self.importing = 0
            self.tell_ends()
            now = time.monotonic()
            if lost_at is not None and now > asked + time_limits.NOTEBOOK_LOOK:
                asked = now
                if self.refused():
                    return GONE
            if lost_at is not None and now > lost_at + time_limits.NOTEBOOK_BACK:
                return SILENT

    def refused(self) -> bool:
        """Tell whether no process listens any more where the notebook did: it ended, and no link is down."""
        try:
            socket.create_connection(self.notebook, timeout=time_limits.NOTEBOOK_LOOK).close()
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)
        return False

    def answer(self, request: dict[str, Any]) -> bool:
        """Do what was asked and reply; False where it was to end."""
        number, do = request.pop("request"), request.pop("do")
        if do == "end":
            return False
        if do == "preload":  # lasts: meanwhile it must be heard that all is to end
            self.importing = number
            with contextlib.suppress(LabError):  # the server has ended, as is found where its reply is read
                self.forks.send("preload")
        else:
            self.reply(number, do, request)
        return True

    def reply(self, number: int, do: str, request: dict[str, Any]) -> None:
        try:
            reply = getattr(self, f"do_{do}")(**request)
        except Exception as error:  # told in the notebook, which waits for it
            reply = {"error": f"{type(error).__name__}: {error}"}
        self.tell("reply", request=number, **reply)

    def tell_ends(self) -> None:
        """Tell which engines have ended, and how, as only the fork server knows."""
        ended = [pid for pid, process in self.engines.items() if not process.runs()]
        if not ended:
            return
        exits = {}
        with contextlib.suppress(LabError):  # the server was killed as well
            exits = self.forks.ask("exits")["exits"]
        for pid in ended:
            del self.engines[pid]
            self.tell("end", pid=pid, code=exits.get(str(pid)), log=self._log(pid))

    def do_nothing(self) -> dict[str, Any]:
        return {}

    def do_imported(self) -> dict[str, Any]:
        self.forks.receive()
        return {"gpus": self.forks.ask("gpus")["gpus"]}

    def do_fork(self, args: list[str], env: dict[str, str], seats: list[str]) -> dict[str, Any]:
        """Fork an engine for each seat; their pids in this order."""
        (self.run.path / "log").mkdir(exist_ok=True)
        pids = []
        for seat in seats:
            log = self.run.path / "log" / f"engine-{seat}.log"
            reply = self.forks.ask(
                "fork",
                kind="engine",
                args=[f"--profile-dir={self.run.path}", "--IPEngine.auto_create=True", *args],
                env={**self.environment, **env, SEAT: seat, "LABKIT_LOG": str(log)},
                log=str(log),
            )
            pid = reply["pid"]
            self.engines[pid] = Process(pid, reply["tag"])
            self.logs[pid] = log
            pids.append(pid)
        return {"pids": pids}

    def do_signal(self, pid: int, sig: int) -> dict[str, Any]:
        """Signal an engine of this host that has not ended; nothing else has a handle here."""
        if pid in self.engines:
            self.engines[pid].send(sig)
        return {}

    def do_stands_still(self, pid: int) -> dict[str, Any]:
        return {"stands": pid in self.engines and self.engines[pid].stands_still()}

    def do_stacks(self, but: list[int]) -> dict[str, Any]:
        """Return the logs of the engines but these, with the Python stacks of their threads, by pid."""
        asked = {process: self.logs[pid] for pid, process in self.engines.items() if pid not in but}
        return {"stacks": stacks(asked)}

    def _log(self, pid: int) -> str:
        with contextlib.suppress(OSError):
            return self.logs[pid].read_text(errors="replace")[-MOST:]
        return ""

    def end(self) -> None:
        """End this host's part of the run: every process, then the files; wait for it."""
        self.forks.close()
        self.reaper.terminate()
        self.reaper.wait()
        self.server.wait()
        self.context.destroy(linger=0)


def _order() -> dict[str, Any]:
    text = os.environ.pop(ORDER, "") or sys.stdin.readline()
    return dict(json.loads(text))


def main() -> None:
    """Serve one lab on this host."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Stop is for the notebook
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the job was cancelled: the reaper sees to the rest
    order = _order()
    number = next((int(os.environ[name]) for name in NUMBERS if name in os.environ), 0)
    for name in [name for name in os.environ if name.startswith(ITS_OWN) or name == LAUNCHED]:
        del os.environ[name]
    try:
        agent = HostAgent(order, order.get("number", number))
    except LabError as error:
        return _say(" ".join(str(error).split()))
    except (OSError, zmq.ZMQError) as error:
        return _say(f"{error}. Mend that, then start() again.")
    if why := agent.serve():
        _say(why)
    agent.end()


def _say(why: str) -> None:
    print(f"{SAYS}{socket.gethostname()}: {why}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
