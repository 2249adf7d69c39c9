"""Start a process on each other host of a lab, ask it, and know what has ended; `labkit.cluster.host` runs there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from labkit.cluster.host import GONE, KEEPALIVE, SAYS, SILENT, versions
from labkit.cluster.process import end_of
from labkit.cluster.rundir import LAUNCHED, RunDir
from labkit.cluster.spread import Launch, Spread, absent
from labkit.floor import time_limits
from labkit.floor.errors import HostError, LabError
from labkit.floor.words import count, listed

NOTHING = b'{"request": 0, "do": "nothing"}'  # what tells whether there is a connection
HOPELESS = ("PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS")


class Launched:
    """A command that started processes on hosts; what it says is kept, line by line.

    It is written to a file of the run, not to a pipe: mpiexec still has something to say when the notebook has ended,
    and a pipe that is no longer read would end it before it has cleared its own files away.
    """

    def __init__(self, launch: Launch, run: RunDir) -> None:
        wrote, name = tempfile.mkstemp(prefix="launched-", suffix=".log", dir=run.path)
        self._log = Path(name)
        try:
            self.popen = subprocess.Popen(
                launch.argv,
                stdin=subprocess.PIPE if launch.line else subprocess.DEVNULL,
                stdout=wrote,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **launch.environment, LAUNCHED: run.tag},
                start_new_session=True,  # Stop is for the kernel
            )
        except OSError as error:
            raise absent(launch.argv[0], error) from None
        finally:
            os.close(wrote)
        if self.popen.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.popen.stdin.write(launch.line)
                self.popen.stdin.flush()  # and kept open: the connection ends with it

    @property
    def said(self) -> list[str]:
        """The lines that it has written to their end; once it has ended, all."""
        ended = self.ended()
        with contextlib.suppress(FileNotFoundError):  # the lab has ended
            lines = self._log.read_text(errors="replace").splitlines(keepends=True)
            return [line.rstrip() for line in lines if line.strip() and (ended or line.endswith("\n"))]
        return []

    def ended(self) -> bool:
        return self.popen.poll() is not None

    def queued(self) -> str:
        """Return what srun says while its job waits in the queue; "" before and after."""
        said = self.said
        queued = [line for line in said if "queued and waiting" in line]
        return "" if not queued or any("has been allocated" in line for line in said) else queued[-1]

    def complaint(self) -> tuple[str, str]:
        """Return the host that could not come up and why, in its process's words; both "" where none said so."""
        line = next((line for line in self.said if line.startswith(SAYS)), SAYS)
        name, _, why = line.removeprefix(SAYS).partition(": ")
        return name, why

    def end(self, seconds: float) -> None:
        """Wait so long until it ends by itself, then end it: srun cancels its job, ssh closes its connection."""
        for wait, stop in ((seconds, self.popen.terminate), (5.0, self.popen.kill), (5.0, self.popen.kill)):
            try:
                self.popen.wait(wait)
                break
            except subprocess.TimeoutExpired:
                stop()
        if self.popen.stdin:
            with contextlib.suppress(OSError):
                self.popen.stdin.close()


@dataclass
class Host:
    """One other host: what its process told of it, its engines that have ended, and why it is lost, if it is."""

    number: int
    wished: str
    launched: Launched
    name: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    heard: float = 0.0
    unreached: float | None = None
    lost: str = ""
    life: int = 0  # how many times its process was started anew

    @property
    def identity(self) -> bytes:
        """The identity that its process has in messages; a process that was taken for lost never has it again."""
        return f"{self.number}.{self.life}".encode()

    @property
    def called(self) -> str:
        """The name under which a learner knows it."""
        return self.name or self.wished or f"host {self.number}"


class FarProcess:
    """An engine on another host: what `Process` is for one on this host, through that host's process.

    No number of a process on another host is ever used here, so no signal can reach a wrong one.
    """

    held = True

    def __init__(self, hosts: Hosts, host: int, pid: int) -> None:
        self.pid = pid
        self._hosts, self._host, self._life = hosts, host, hosts.hosts[host].life

    def runs(self) -> bool:
        self._hosts.listen()
        host = self._hosts.hosts[self._host]
        return host.life == self._life and not host.lost and self.pid not in host.ends

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.runs():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._hosts.listen(min(left, 0.05))
        return True

    def send(self, sig: int) -> None:
        with contextlib.suppress(HostError):
            self._hosts.ask(self._host, "signal", pid=self.pid, sig=int(sig))

    def stands_still(self) -> bool:
        with contextlib.suppress(HostError):
            return bool(self._hosts.ask(self._host, "stands_still", pid=self.pid)["stands"])
        return False

    def how(self) -> str:
        """Say how it ended: "SIGKILL", "exit code 1", "host nb is lost"."""
        host = self._hosts.hosts[self._host]
        if self.pid not in host.ends or host.life != self._life:
            return f"host {host.called} is lost"
        return end_of(host.ends[self.pid]["code"])

    def log(self) -> str:
        """Return the last that it wrote, once it has ended."""
        return str(self._hosts.hosts[self._host].ends.get(self.pid, {}).get("log", ""))


class Hosts:
    """All hosts of a lab in the order of their numbers, and the encrypted socket that they call."""

    def __init__(self, wish: Spread, run: RunDir) -> None:
        self.wish, self.run = wish, run
        self.hosts: list[Host] = []
        self._lock = threading.RLock()
        self._requests = 0
        self._replies: dict[int, dict[str, Any]] = {}
        self._token = secrets.token_hex(16)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 500
        self._socket.router_mandatory = True
        self._socket.router_handover = True
        public, self._socket.curve_secretkey = zmq.curve_keypair()
        self._socket.curve_publickey = public
        self._socket.curve_server = True
        for option, value in KEEPALIVE.items():
            self._socket.setsockopt(option, value)
        port = self._socket.bind_to_random_port(f"tcp://{wish.address}")
        self._order = json.dumps({"ip": wish.address, "port": port, "key": public.decode(), "token": self._token})

    # -- coming and going ---------------------------------------------------------------------------------------

    def start(self, say: Callable[[str], None]) -> list[int]:
        """Start a process on each host, import torch there, and return how many GPUs each host has."""
        for launch in self.wish.launches(self._order):
            launched = Launched(launch, self.run)
            self.hosts += [Host(h, self.wish.hosts[h], launched) for h in launch.numbers]
        self._until_called(self.hosts, say)
        self._agree()
        names = listed([host.called for host in self.hosts])
        say(f"Importing torch on {names} …")
        return [reply["gpus"] for reply in self.ask_all("preload", 3 * time_limits.HOST_ANSWERS)]

    def revive(self, number: int) -> None:
        """Start the process of a host that was lost anew, where its launcher can do that alone."""
        host = self.hosts[number]
        launch = self.wish.anew(number, self._order, host.life + 1)
        if launch is None:
            raise HostError(self._why_not(host))
        host.launched.end(0)
        host.life += 1
        host.launched = Launched(launch, self.run)
        name, host.name, host.lost, host.unreached, host.ends = host.name, "", "", None, {}
        try:
            self._until_called([host], lambda line: None)
            self._agree()
            self.ask(number, "preload", 3 * time_limits.HOST_ANSWERS)
        except LabError as error:
            host.name, host.lost = name, host.lost or "it cannot be reached"
            raise HostError(
                f"{host.called} is lost, and its ranks with it. They cannot be replaced while it does not "
                f"answer:\n{error}\n"
                "Run the cell again once it does, or start() without it."
            ) from None

    def _why_not(self, host: Host) -> str:
        """Say why this launcher cannot replace the ranks of a host, and what to do."""
        program = self.wish.program
        if host.launched.ended():
            said = [line for line in host.launched.said if line.strip("-")]
            names = {each.called for each in self.hosts}
            told = [line for line in said if names & set(re.findall(r"[\w.-]+", line)) or "CANCELLED" in line]
            told = told[-3:] or said[-6:]
            why = f"{program} has ended, and all ranks with it{':' if told else '.'}"
            why = "\n".join([why, *told])
        else:
            why = f"{host.called} is lost ({host.lost}), and {program} starts no process a second time."
        return f"{why}\n{self.wish.ended}Call start() for new ranks."

    def stop(self) -> None:
        """Let every host end its part, then end the commands that are left."""
        with self._lock:
            if self._socket.closed:
                return
            for host in self.hosts:
                with contextlib.suppress(HostError):
                    self._send(host, "end", 0, {})
            self._socket.close(linger=500)
            self._context.term()  # a process that calls now finds no listener, and ends by itself
            deadline = time.monotonic() + time_limits.HOSTS_LEAVE
            for launched in {id(host.launched): host.launched for host in self.hosts}.values():
                launched.end(0.0 if launched.queued() else max(0.0, deadline - time.monotonic()))

    def _until_called(self, expected: Sequence[Host], say: Callable[[str], None]) -> None:
        """Wait until the processes of these hosts have called; say what a scheduler says meanwhile."""
        deadline: float | None = None
        waits = told = ""
        began = asked = time.monotonic()
        while missing := [host for host in expected if not host.name]:
            self.listen(0.1)
            for host in missing:
                if (host.launched.ended() or any(host.launched.complaint())) and not host.name:
                    self.listen(0.1)
                    if not host.name:
                        mine = [other for other in missing if other.launched is host.launched]
                        raise LabError(self._never_came(mine, host.launched))
            if time.monotonic() >= asked:  # the longer it waits, the more seldom Slurm is asked
                waits = self._waits(missing)
                asked = time.monotonic() + min(10.0, max(1.0, (time.monotonic() - began) / 10)) * bool(waits)
            if hopeless := next((why for why in HOPELESS if why in waits), ""):
                raise LabError(
                    f"Slurm would never start this job ({hopeless}): it asks for what the partition, the account or "
                    "the limits do not allow. `sinfo` says what there is; ask for less, and start again."
                )
            if waits and waits != told:
                say(waits)
                told = waits
            if waits:
                deadline = None
            else:
                deadline = deadline or time.monotonic() + time_limits.HOST_CALLS
                if time.monotonic() > deadline:
                    raise LabError(self._never_came(missing, missing[0].launched))

    def _waits(self, missing: Sequence[Host]) -> str:
        """Say what the scheduler lets the job wait for; "" where it runs."""
        line = missing[0].launched.queued()
        if not line:
            return ""
        job = next((word for word in line.split() if word.isdigit()), "")
        try:
            asked = ["squeue", "--noheader", "--format=%T, %r", f"--job={job}"]
            state = subprocess.run(
                asked, capture_output=True, text=True, timeout=time_limits.SLURM_ANSWERS
            ).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            state = ""
        return f"Slurm's job {job} waits in the queue{f' ({state})' if state else ''}. Stop ends it."

    def _never_came(self, missing: Sequence[Host], launched: Launched) -> str:
        """Say why a host's process did not call, as far as its launcher tells."""
        said = "\n".join(launched.said[-6:])
        name, why = launched.complaint()
        if why in (GONE, SILENT):  # as far as can be seen from there
            why = (
                f"it does not reach the notebook at {self.wish.address}. Open a firewall between them, or name an "
                "address that it reaches: c.Cluster.controller_ip in a profile."
            )
        if why:
            return f"No process came up on {name}: {why}"
        came = [host.called for host in self.hosts if host.name]
        names = [host.wished for host in missing if host.wished]
        who = listed(names) if names else count(len(missing), "host")
        some = f" ({listed(came)} {'is' if len(came) == 1 else 'are'} there)" if came else ""
        end = f"its command ended with exit code {launched.popen.returncode}" if launched.ended() else "it did not call"
        return f"No process came up on {who}{some}: {end}{':' if said else '.'}\n{said}\n{_advice(launched)}"

    def _agree(self) -> None:
        """Refuse hosts that run other versions: what is sent to them is code."""
        mine = versions()
        for host in self.hosts:
            theirs = host.facts["versions"]
            if odd := [name for name in mine if theirs.get(name) != mine[name]]:
                there = listed([f"{name} {theirs.get(name, 'is missing')}" for name in odd])
                here = listed([f"{name} {mine[name]}" for name in odd])
                raise LabError(
                    f"{host.called} has {there}, and the notebook {here}. Install the same on both: code and "
                    f"data go from one to the other. {host.called} uses {host.facts['python']}; name a different "
                    "one with c.SSHLauncher.remote_python in a profile."
                )

    # -- asking -------------------------------------------------------------------------------------------------

    def ask(self, number: int, do: str, timeout: float = time_limits.HOST_ANSWERS, **fields: Any) -> dict[str, Any]:
        """Ask one host's process, and return its reply; HostError where it does not answer."""
        with self._lock:
            return self._receive(self._request(self.hosts[number], do, fields), self.hosts[number], timeout)

    def ask_all(self, do: str, timeout: float = time_limits.HOST_ANSWERS, **fields: Any) -> list[dict[str, Any]]:
        """Ask all hosts at once, and return their replies in order."""
        with self._lock:
            sent = [(self._request(host, do, fields), host) for host in self.hosts]
            return [self._receive(request, host, timeout) for request, host in sent]

    def stacks(self, but: set[int]) -> dict[int, str]:
        """Return the logs and stacks of all engines but those with these pids, by pid."""
        found: dict[int, str] = {}
        for reply in self.ask_all("stacks", but=sorted(but)):
            found |= {int(pid): text for pid, text in reply["stacks"].items()}
        return found

    def _request(self, host: Host, do: str, fields: dict[str, Any]) -> int:
        self._requests += 1
        self._send(host, do, self._requests, fields)
        return self._requests

    def _send(self, host: Host, do: str, request: int, fields: dict[str, Any]) -> None:
        message = json.dumps({"request": request, "do": do, **fields}).encode()
        try:
            if host.lost:
                raise HostError(f"{host.called} is lost ({host.lost}). Call start() for new ranks.")
            self._socket.send_multipart([host.identity, message])
        except zmq.ZMQError:
            raise HostError(f"{host.called} does not answer. Call lab.heal(), or lab.stop() and start().") from None

    def _receive(self, request: int, host: Host, timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while request not in self._replies:
            self.listen(0.05)
            if host.lost or time.monotonic() > deadline:
                raise HostError(f"{host.called} does not answer. Call lab.heal(), or lab.stop() and start().")
        reply = self._replies.pop(request)
        if "error" in reply:
            raise LabError(f"{host.called}: {reply['error']}. Mend that, then start() again.")
        return reply

    def listen(self, seconds: float = 0.0) -> None:
        """Take in what the hosts have told, waiting at most so long for the first word."""
        with self._lock:
            if self._socket.closed:
                return
            wait = int(1000 * seconds)
            while self._socket.poll(wait):
                identity, message = self._socket.recv_multipart()
                for host in self.hosts:
                    if host.identity == identity:
                        self._heard(host, json.loads(message))
                wait = 0
            self._look()

    def _heard(self, host: Host, told: dict[str, Any]) -> None:
        if told["tell"] == "hello":
            if not secrets.compare_digest(str(told.get("token")), self._token):
                return
            host.name, host.facts = told["name"], told
        host.heard, host.unreached = time.monotonic(), None
        if told["tell"] == "reply" and told["request"]:
            self._replies[told["request"]] = told
        elif told["tell"] == "end":
            host.ends[told["pid"]] = told

    def _look(self) -> None:
        """Find hosts that are lost: their command has ended, or nothing has come for a while and nothing goes."""
        now = time.monotonic()
        for host in self.hosts:
            if host.lost or not host.name:
                continue
            if host.launched.ended():
                host.lost = f"its command ended with exit code {host.launched.popen.returncode}"
            elif now > host.heard + time_limits.HOST_QUIET:
                try:
                    self._socket.send_multipart([host.identity, NOTHING])
                    host.unreached = None
                    host.heard = now  # it is asked again after another while
                except zmq.ZMQError:
                    host.unreached = host.unreached or now
                    if now > host.unreached + time_limits.HOST_LOST:
                        host.lost = "its connection is down"


def _advice(launched: Launched) -> str:
    """Say what to do about what ssh, srun or mpiexec complained of."""
    said = "\n".join(launched.said)
    known = {
        "Could not resolve hostname": "Check how the host's name is spelled, or add it to ~/.ssh/config.",
        "Permission denied": "Let ssh in without a password first: ssh-keygen, then ssh-copy-id HOST.",
        "Host key verification failed": "Log in once in a terminal, so that ssh knows the host: ssh HOST true.",
        "No route to host": "Check whether the host is up, and whether `ssh HOST true` works in a terminal.",
        "Connection refused": "Check whether the host runs an sshd, and whether `ssh HOST true` works in a terminal.",
        "timed out": "Check whether the host is up, and whether `ssh HOST true` works in a terminal.",
        "No such file or directory": "Install the workbook there in the same place, or name the interpreter: "
        "c.SSHLauncher.remote_python in a profile.",
        "No module named": "Install the workbook there for the same interpreter, or name a different one: "
        "c.SSHLauncher.remote_python in a profile.",
        "run as root": "OpenMPI refuses root: set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1.",
        "Invalid node name": "Ask `sinfo` for the names of the nodes.",
        "Requested node configuration is not available": "Ask for what the partition has: `sinfo` lists it.",
        "CANCELLED": "The job was cancelled. Call start() for a new one.",
    }
    return next((what for words, what in known.items() if words in said), "Mend that, then start() again.")
