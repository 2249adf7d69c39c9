"""Three honest hosts on one machine: head, na and nb, each with processes, files, names and a network of its own.

with Hosts() as hosts:
    hosts.run("na", ["hostname"]).stdout         # "na\\n"
    hosts.run("head", ["ssh", "nb", "hostname"])  # through sshd; srun and mpiexec work as well
    hosts.cut("nb"); hosts.mend("nb")

A switch, pid 1 of a pid namespace, holds all of it: when this process ends, however it ends, the switch reads the end
of its input and ends too, and the kernel ends every process in there. Networks and file systems end with the processes
that are in them: nothing has a name outside, and nothing can be left. It needs root, and is for tests alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.hosts import files
from tests.hosts.means import MPIEXEC, SEARCHED
from tests.hosts.program import Program, pid_there
from tests.live.processes import eventually

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
HOME = os.path.expanduser("~root")
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
NAMES = tuple(files.ADDRESSES)
SSH_CONFIG = f"{HOME}/.ssh/config"
SLURM_CONF = "/etc/slurm/slurm.conf"
SHARED = "/srv"  # the one place that all hosts share, as a cluster's file server does
SWITCH = (
    f"mount -t tmpfs -o mode=1777 shared {SHARED}; ip link set lo up; "
    "ip link add switch type bridge; ip link set switch up; echo up; exec cat"
)
ENOUGH = 60.0  # seconds after which something that was asked for counts as hung


class Process(NamedTuple):
    """A process as its host sees it."""

    pid: int
    command: str


class Listener(NamedTuple):
    """A TCP socket that waits for others."""

    address: str
    port: int
    program: str


class Traffic(NamedTuple):
    """Bytes that a host has received and sent over its link."""

    received: int
    sent: int


class Job(NamedTuple):
    """A row of Slurm's queue."""

    id: int
    state: str  # "PENDING", "RUNNING", …
    name: str
    nodes: int
    reason: str  # why it waits: "Resources"


@dataclass
class _Host:
    name: str
    holder: subprocess.Popen[str]  # the commands that made its namespaces
    pid1: int
    own: frozenset[int] = frozenset()  # its daemons, as this machine counts

    @property
    def alive(self) -> bool:
        return self.holder.poll() is None


class Hosts:
    """The three hosts and their switch, up from the start to `close` or to the end of the `with` block."""

    mpiexec = MPIEXEC
    ssh_config = SSH_CONFIG
    addresses = files.ADDRESSES

    def __init__(self) -> None:
        self.slurm = {"SLURM_CONF": SLURM_CONF}
        self.mpi = {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",  # more ranks than cores
            "OMPI_MCA_plm_rsh_agent": f"ssh -F {SSH_CONFIG}",
            "OMPI_MCA_oob_tcp_if_include": f"{files.NETWORK}.0/24",
            "OMPI_MCA_btl_tcp_if_include": f"{files.NETWORK}.0/24",
        }
        self._munge_key = secrets.token_bytes(128)
        self._keys = _new_keys()
        self._switch = subprocess.Popen(
            [
                *("unshare", "--mount", "--propagation=private", "--net", "--pid", "--fork", "--kill-child"),
                *("sh", "-ec", SWITCH),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._hosts: dict[str, _Host] = {}
        try:
            _hear(self._switch, "up")
            self._inner = psutil.Process(self._switch.pid).children()[0].pid
            self.boot(*NAMES)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process on every host; the networks and files go with them."""
        assert self._switch.stdin is not None
        self._switch.stdin.close()
        self._switch.wait()
        for host in self._hosts.values():
            host.holder.wait()

    # Hosts that come and go

    def boot(self, *names: str) -> None:
        """Start hosts that are not up, with empty file systems; Slurm's nodes are idle then."""
        started = [name for name in names if name not in self._hosts or not self._hosts[name].alive]
        if not started:
            return
        holders = {name: self._new_holder(name) for name in started}
        for name, holder in holders.items():
            _hear(holder, "mounted")
            pid1 = psutil.Process(holder.pid).children(recursive=True)[-1].pid
            self._hosts[name] = _Host(name, holder, pid1)
            self._connect(name)
            self._write_files(name)
            assert holder.stdin is not None
            holder.stdin.write("go\n")
            holder.stdin.close()
        ready = eventually(lambda: all(map(self._ready, started)) and self._usable(), ENOUGH)
        assert ready, "\n".join(f"{name} did not come up:\n{self.logs(name)}" for name in started)
        for name in started:
            host = self._hosts[name]
            host.own = frozenset(self._pids(name))

    def kill(self, name: str) -> None:
        """A host is lost: all its processes and its files at once, and its link; `boot` brings an empty one."""
        host = self._hosts[name]
        os.kill(host.pid1, signal.SIGKILL)
        host.holder.wait()
        # The kernel takes a dead host's network away when it has time; the link goes now.
        with contextlib.suppress(AssertionError):  # it has gone with it
            self._on_switch("ip", "link", "delete", f"port-{name}")
        assert f"port-{name}" not in self._on_switch("ip", "-br", "link")

    def cut(self, name: str) -> None:
        """The switch loses every packet from and to the host; nobody is told."""
        self._on_switch("bridge", "link", "set", "dev", f"port-{name}", "state", "disabled")

    def mend(self, name: str) -> None:
        """The opposite of `cut`; a node that Slurm took for lost reports to it."""
        self._on_switch("bridge", "link", "set", "dev", f"port-{name}", "state", "forwarding")
        if self._nodes().get(name, "").endswith("*"):
            self._report(name)

    def _report(self, name: str) -> None:
        """Let a node tell Slurm that it is there: one that was down Slurm asks again in up to a minute."""
        self.run(name, ["sh", "-c", "kill -HUP $(cat /run/slurm/slurmd.pid)"])

    def shape(self, name: str, rate: str | None, latency: str = "50ms") -> None:
        """Let a host's link carry no more than `rate` ("200mbit") each way; None takes the limit away.

        `latency` is the longest that a packet may wait for its turn before it is dropped (tc's tbf), and no delay.
        """
        limit = ["tbf", "rate", rate, "burst", "64kb", "latency", latency] if rate else []
        verb = "replace" if rate else "delete"
        for pid, device in ((self._inner, f"port-{name}"), (self._hosts[name].pid1, "eth0")):
            if rate or "tbf" in _in_network(pid, "tc", "qdisc", "show", "dev", device):
                _in_network(pid, "tc", "qdisc", verb, "dev", device, "root", *limit)

    def limits(self, name: str) -> list[int]:
        """The shaped rates of a host's link in bytes per second, towards it and from it; empty where there are none."""
        found = []
        for pid, device in ((self._inner, f"port-{name}"), (self._hosts[name].pid1, "eth0")):
            for rule in json.loads(_in_network(pid, "tc", "-json", "qdisc", "show", "dev", device)):
                found += [rule["options"]["rate"]] if rule["kind"] == "tbf" else []
        return found

    def restore(self) -> None:
        """Boot what was killed, mend and unshape every link, cancel every job, end every process that a test left."""
        self.boot(*NAMES)
        for name in NAMES:
            self.mend(name)
            self.shape(name, None)
        for job in self.queue():
            self.run("head", ["scancel", "--full", str(job.id)], check=False)
        asked: set[str] = set()
        ended = eventually(lambda: self._idle(asked) and not self.queue(), ENOUGH)
        assert ended, f"{self.queue()} {self.run('head', ['sinfo', '-N', '-l']).stdout}"
        for name in NAMES:
            assert eventually(lambda name=name: not self._kill_strangers(name), ENOUGH), self.processes(name)
            self.run(name, ["find", *PRIVATE, SHARED, "-xdev", "-mindepth", "1", "-delete"], check=False)

    # Programs

    def environment(self, **more: str) -> dict[str, str]:
        """What a program on a host gets: this Python first in PATH, and nothing of this machine's settings."""
        kept = {name: os.environ[name] for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE") if name in os.environ}
        path = f"{sys.prefix}/bin:{SEARCHED}"
        return {"PATH": path, "HOME": HOME, "USER": "root", "SHELL": "/bin/sh", "LANG": "C.UTF-8", **kept, **more}

    def popen(
        self, name: str, argv: list[str], env: dict[str, str] | None = None, cwd: str = HOME, **options: Any
    ) -> Program:
        """Start a program on a host; `env` is added to `environment`, `options` are Popen's."""
        return Program(self._hosts[name].pid1, argv, cwd, self.environment(**env or {}), **options)

    def run(
        self,
        name: str,
        argv: list[str],
        env: dict[str, str] | None = None,
        cwd: str = HOME,
        input: str | None = None,
        timeout: float = ENOUGH,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a host to its end; with `check`, an exit code other than 0 is an error with its output."""
        pipe = subprocess.PIPE
        stdin = subprocess.DEVNULL if input is None else pipe
        program = self.popen(name, argv, env, cwd, stdin=stdin, stdout=pipe, stderr=pipe)
        try:
            out, err = program.communicate(input, timeout)
        except BaseException:
            program.signal_group(signal.SIGKILL)
            program.communicate()
            raise
        said = f"{argv} on {name} ended with {program.returncode}\n{out}{err}"
        assert not check or program.returncode == 0, said
        return subprocess.CompletedProcess(argv, program.returncode, out, err)

    def python(self, name: str, code: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run Python code on a host, in the environment of these tests; `options` are those of `run`."""
        return self.run(name, [sys.executable, "-c", code], **options)

    def nbval(self, notebook: Path, timeout: float = 600, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a copy of a notebook in head's /tmp, and compare its outputs as `make test` does.

        It is a copy, since the checkout's conftest.py gives all notebooks one lab of its own: here each starts its lab,
        by what `env` says.
        """
        folder = self.path("head", f"/tmp/lessons-{secrets.token_hex(4)}")
        folder.mkdir()
        (folder / notebook.name).write_bytes(notebook.read_bytes())
        seen = f"/tmp/{folder.name}"
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "/dev/null", "-q"]
        strict = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=120"]
        (folder / "nbval.cfg").write_text((CHECKOUT / ".ci/nbval-sanitize.cfg").read_text() + files.START_SAYS)
        sanitize = ["--nbval-sanitize-with=nbval.cfg", f"--rootdir={seen}", notebook.name]
        given = {"LABKIT_PROGRESS": f"{seen}/progress", "LABKIT_QUIET": "1", **env}
        try:
            return self.run("head", [*pytest, *strict, *sanitize], given, seen, timeout=timeout, check=False)
        finally:
            shutil.rmtree(folder)

    # What is there to see

    def path(self, name: str, place: str) -> Path:
        """How a host's absolute path is reached from outside."""
        return Path(f"/proc/{self._hosts[name].pid1}/root{place}")

    def processes(self, name: str) -> list[Process]:
        """What runs on a host beside its first process and its daemons; nothing on one that was killed."""
        found = []
        for pid in self._strangers(name):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found.append(Process(pid_there(pid), words or Path(f"/proc/{pid}/comm").read_text().strip()))
            except (OSError, AssertionError):
                continue
        return found

    def outside(self, name: str, pid: int) -> int:
        """What a host's process is called on this machine."""
        return next(outer for outer in self._pids(name) if pid_there(outer) == pid)

    def files(self, name: str) -> list[str]:
        """What lies in a host's own /tmp, /var/tmp and /dev/shm, without the code that is mounted there."""
        root = self.path(name, "")
        code = {f"{root}{place}" for place in _code()}
        found: list[str] = []
        for place in PRIVATE:
            for folder, folders, names in os.walk(f"{root}{place}"):
                folders[:] = [f for f in folders if not any(c.startswith(f"{folder}/{f}") for c in code)]
                found += [f"{folder}/{f}".removeprefix(str(root)) for f in (*folders, *names)]
        return sorted(found)

    def listening(self, name: str) -> list[Listener]:
        """The TCP sockets on which a host's programs wait for others, without its daemons' own."""
        daemons = {pid_there(pid) for pid in self._hosts[name].own if psutil.pid_exists(pid)}
        found = []
        for line in self.run(name, ["ss", "-Htlnp"]).stdout.splitlines():
            _, _, _, here, _, *users = line.split()
            pids = {int(part.split(",")[0]) for user in users for part in user.split("pid=")[1:]}
            if not pids & daemons:
                address, _, port = here.rpartition(":")
                found.append(Listener(address.partition("%")[0], int(port), users[0] if users else ""))
        return found

    def bytes(self, name: str) -> Traffic:
        """What has crossed a host's link since it was booted."""
        for line in Path(f"/proc/{self._hosts[name].pid1}/net/dev").read_text().splitlines():
            device, _, figures = line.partition(":")
            if device.strip() == "eth0":
                numbers = [int(figure) for figure in figures.split()]
                return Traffic(numbers[0], numbers[8])
        raise AssertionError(f"{name} has no link")

    def queue(self) -> list[Job]:
        """Slurm's jobs that have not ended."""
        rows = self.run("head", ["squeue", "-h", "-o", "%i|%T|%j|%D|%r"]).stdout.splitlines()
        return [Job(int(i), state, job, int(n), why) for i, state, job, n, why in (row.split("|") for row in rows)]

    def left(self) -> list[str]:
        """Everything that a lab may not leave, in words: processes, files and jobs."""
        alive = [name for name in NAMES if self._hosts[name].alive]
        processes = [f"{name}: {pid} {words}" for name in alive for pid, words in self.processes(name)]
        return (
            processes
            + [f"{name}: {file}" for name in alive for file in self.files(name)]
            + [f"job {job.id} {job.state}" for job in self.queue()]
        )

    def logs(self, name: str) -> str:
        """What a host's daemons have written, for an error's text."""
        logs = [*self.path(name, "/run/host").glob("*log"), *self.path(name, "/run/slurm").glob("*.log")]
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in logs)

    # How it is made

    def _new_holder(self, name: str) -> subprocess.Popen[str]:
        """The host's first process in namespaces of its own, inside the switch's; it waits for its files."""
        inside = ["nsenter", f"--target={self._inner}", "--mount", "--pid", "--"]
        enter = [*inside, "unshare", "--kill-child", "--mount-proc"]
        own = ["--mount", "--net", "--pid", "--uts", "--ipc", "--propagation=private", "--fork", "--"]
        return subprocess.Popen(
            [*enter, *own, "/bin/sh", str(HERE / "init.sh"), name, sys.executable, HOME, *_code()],
            env=self.environment(PATH=SEARCHED),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _connect(self, name: str) -> None:
        pid1 = self._hosts[name].pid1
        port = f"port-{name}"
        self._on_switch("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid1))
        self._on_switch("ip", "link", "set", port, "master", "switch", "up")
        _in_network(pid1, "ip", "link", "set", "lo", "up")
        _in_network(pid1, "ip", "addr", "add", f"{files.ADDRESSES[name]}/24", "dev", "eth0")
        _in_network(pid1, "ip", "link", "set", "eth0", "up")

    def _write_files(self, name: str) -> None:
        carried = {k: v for k, v in self.environment().items() if k.startswith("PYTHON")}
        texts: dict[str, str | bytes] = {
            "/run/host/hosts": files.hosts(name),
            "/run/host/sshd_config": files.sshd(carried),
            "/run/host/key": self._keys["host"],
            "/run/host/authorized_keys": self._keys["user.pub"],
            "/run/munge/key": self._munge_key,
            f"{HOME}/.ssh/id": self._keys["user"],
            f"{HOME}/.ssh/known_hosts": files.known_hosts(self._keys["host.pub"]),
            SSH_CONFIG: files.ssh(HOME),
            SLURM_CONF: files.slurm(),
        }
        for place, text in texts.items():
            file = self.path(name, place)
            file.write_bytes(text.encode() if isinstance(text, str) else text)
            file.chmod(0o644 if place.startswith(("/etc", "/run/host/hosts")) else 0o600)

    def _ready(self, name: str) -> bool:
        """Whether the host's sshd and its part of Slurm answer: all of its daemons are there then.

        Slurm itself is asked beside, and would not tell: for ten seconds it takes a node that was lost for one that
        answers.
        """
        slurm = 6817 if name == "head" else 6818
        tables = [Path(f"/proc/{self._hosts[name].pid1}/net/{kind}").read_text() for kind in ("tcp", "tcp6")]
        heard = {line.split()[1] for table in tables for line in table.splitlines() if " 0A " in line}  # LISTEN
        return {22, slurm} <= {int(address.rpartition(":")[2], 16) for address in heard}

    def _nodes(self) -> dict[str, str]:
        """The states of Slurm's nodes: "idle", "mixed", "down*"; the star is one's that does not answer."""
        said = self.run("head", ["sinfo", "-h", "-N", "-o", "%N %T"], check=False).stdout.splitlines()
        return dict(line.split() for line in said)

    def _usable(self) -> bool:
        """Whether Slurm's nodes all answer."""
        nodes = self._nodes()
        return set(nodes) == set(files.NODES) and set(nodes.values()) <= {"idle", "mixed", "allocated", "completing"}

    def _idle(self, asked: set[str]) -> bool:
        """Whether Slurm's nodes are all idle. One that does not answer is told once to report, and noted in `asked`."""
        nodes = self._nodes()
        for name in {name for name, state in nodes.items() if state.endswith("*")} - asked:
            self._report(name)
            asked.add(name)
        return nodes == dict.fromkeys(files.NODES, "idle")

    def _pids(self, name: str) -> list[int]:
        """All processes in the host's pid namespace, zombies excepted, as this machine counts."""
        host = self._hosts[name]
        if not host.alive:
            return []
        there = os.stat(f"/proc/{host.pid1}/ns/pid").st_ino
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                if os.stat(f"/proc/{pid}/ns/pid").st_ino == there and " Z " not in _stat(pid):
                    found.append(pid)
            except OSError:
                continue
        return found

    def _strangers(self, name: str) -> list[int]:
        return [pid for pid in self._pids(name) if pid not in self._hosts[name].own]

    def _kill_strangers(self, name: str) -> list[int]:
        """All that were still there: they are gone once this finds none."""
        found = self._strangers(name)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def _on_switch(self, *command: str) -> str:
        return _in_network(self._inner, *command)


def _code() -> list[str]:
    """The folders that every host must see: this checkout and this Python, each once."""
    places = [str(CHECKOUT), *{sys.prefix, sys.base_prefix}]
    return [p for p in places if not any(p != q and p.startswith(f"{q}/") for q in places)]


def _in_network(pid: int, *command: str) -> str:
    done = subprocess.run(["nsenter", f"--target={pid}", "--net", *command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def _hear(program: subprocess.Popen[str], word: str) -> None:
    assert program.stdout is not None
    heard = program.stdout.readline().strip()
    assert heard == word, f"{program.args} said {heard!r} instead of {word!r}"


def _new_keys() -> dict[str, str]:
    """A key for all hosts and one for their user, made in a folder that is gone when this returns."""
    with tempfile.TemporaryDirectory(prefix=f"hosts-{os.getpid()}-") as place:
        for name in ("host", "user"):
            options = ["-q", "-t", "ed25519", "-N", "", "-C", name, "-f", f"{place}/{name}"]
            subprocess.run(["ssh-keygen", *options], check=True)
        return {file.name: file.read_text() for file in Path(place).iterdir()}


def _stat(pid: int) -> str:
    """A process's state line, after its name, which may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
