"""Spread ranks over hosts, and make the command of ssh, srun or mpiexec that starts one process on each of them.

What ipyparallel's users have in a profile is read from there, by ipyparallel's own names: hosts and their engines,
arguments of ssh, Slurm's partition and time, mpiexec's arguments.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit.cluster.host import ORDER, own_address
from labkit.floor.errors import LabError
from labkit.floor.words import count, listed

KINDS = ("ssh", "slurm", "mpi")  # that start a process on each host; every other launcher is ipyparallel's own
MOST = 16  # CPU ranks on one host: more than that no laptop bears
FEW = 2  # ranks on each host where no number is given, and there are no GPUs
RSH = "OMPI_MCA_plm_rsh_agent"  # what OpenMPI uses instead of ssh
PROFILE = "LABKIT_PROFILE"  # the profile of a start() that names no launcher


@dataclass(frozen=True)
class Launch:
    """One command that starts the process of one host, or of all; `numbers` are theirs, and `line` their input."""

    argv: list[str]
    numbers: list[int]
    line: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """Which launcher starts how many ranks on which hosts.

    `hosts` are names in the order of the ranks, "" where the scheduler chooses; `counts` has the ranks of each, or
    None where the number of its GPUs decides. `config` is a profile's.
    """

    kind: str
    hosts: tuple[str, ...]
    counts: tuple[int | None, ...]
    config: Any = None

    def seats(self, gpus: Sequence[int], n: int | None) -> list[int]:
        """Return the number of each rank's host: host by host, `n` ranks or as many as there is room for."""
        room = [c or g or FEW for c, g in zip(self.counts, gpus, strict=True)]
        seats = [h for h, c in enumerate(room) for _ in range(c)]
        if n is not None and n > len(seats):
            raise LabError(
                f"There is room for {count(len(seats), 'rank')} on {count(len(room), 'host')}, and you ask for {n}. "
                "Leave n out, or give more ranks to a host, such as per_node=4."
            )
        return seats[:n]

    @property
    def by(self) -> str:
        """How the hosts are reached, in words."""
        return {"ssh": "over ssh", "slurm": "by Slurm", "mpi": "by mpiexec"}[self.kind]

    # -- commands -----------------------------------------------------------------------------------------------

    def launches(self, order: str) -> list[Launch]:
        """Return the commands to run on this host; `order` is what each process is told, a line of JSON."""
        if self.kind == "ssh":
            return [self.by_ssh(h, order) for h in range(len(self.hosts))]
        numbers = list(range(len(self.hosts)))
        argv = self._srun() if self.kind == "slurm" else self._mpiexec()
        return [Launch([*argv, self._python, "-m", "labkit.cluster.host"], numbers, "", {ORDER: order})]

    def by_ssh(self, number: int, order: str, life: int = 0) -> Launch:
        """Return the command for one host's process, also one that was lost; what is secret goes by standard input."""
        ssh = self._config("SSHLauncher")
        path = os.environ.get("PYTHONPATH")
        there = ["env", f"PYTHONPATH={path}"] if path else []
        there += [self._python, "-m", "labkit.cluster.host"]
        line = order.replace("{", f'{{"number": {number}, "life": {life}, ', 1) + "\n"
        argv = [*self._ssh, "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", *ssh.get("ssh_args", [])]
        return Launch([*argv, self._login(number), shlex.join(there)], [number], line)

    def _login(self, number: int) -> str:
        user = self._config("SSHLauncher").get("user", "")
        return f"{user}@{self.hosts[number]}" if user else self.hosts[number]

    @property
    def _ssh(self) -> list[str]:
        return list(self._config("SSHLauncher").get("ssh_cmd", ["ssh"]))

    @property
    def _python(self) -> str:
        """The interpreter on the hosts: this one, unless a profile names another."""
        return str(self._config("SSHLauncher").get("remote_python", sys.executable))

    def _srun(self) -> list[str]:
        slurm = self._config("SlurmLauncher", "SlurmEngineSetLauncher")
        nodes = len(self.hosts)
        argv = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=0"]
        argv += ["--job-name=labkit", "--input=none"]
        argv += [f"--nodelist={','.join(self.hosts)}"] if all(self.hosts) else []
        if job := os.environ.get("SLURM_JOB_ID"):  # a step in what is allocated already, beside the notebook's own
            return [*argv, f"--jobid={job}", "--overlap", "--cpu-bind=none"]
        argv += [f"--cpus-per-task={max(c or 1 for c in self.counts)}"]
        names = {"queue": "partition", "account": "account", "qos": "qos", "timelimit": "time"}
        argv += [f"--{option}={slurm[name]}" for name, option in names.items() if slurm.get(name)]
        return [*argv, *shlex.split(slurm.get("options", ""))]

    def _mpiexec(self) -> list[str]:
        mpi = self._config("MPILauncher", "MPIEngineSetLauncher")
        argv = list(mpi.get("mpi_cmd", ["mpiexec"]))
        named = all(self.hosts)
        told = _output([*argv, "--version"])
        if "Open MPI" in told or "OpenRTE" in told:  # binds a process to one core, and its forks with it
            argv += ["-x", ORDER, "--bind-to", "none"]
            argv += ["-x", "PYTHONPATH"] if os.environ.get("PYTHONPATH") else []
            if os.environ.get(RSH, "ssh").startswith("ssh"):  # it would wait for minutes, or ask
                argv += ["--mca", "plm_rsh_args", "-o BatchMode=yes -o ConnectTimeout=10"]
            argv += ["--host", ",".join(f"{h}:1" for h in self.hosts)] if named else ["--map-by", "ppr:1:node"]
        else:  # mpich's hydra, and those that are made of it
            argv += ["-ppn", "1", *(["-hosts", ",".join(self.hosts)] if named else [])]
        return [*argv, *mpi.get("mpi_args", []), "-n", str(len(self.hosts))]

    # -- addresses ----------------------------------------------------------------------------------------------

    @cached_property
    def address(self) -> str:
        """The address of this host that the others reach; 127.0.0.1 where all of them are this one."""
        if given := self._config("Cluster").get("controller_ip", ""):
            return str(given)
        found = [own_address(other)[0] for other in self._others()]
        beyond = [a for a in found if not a.startswith("127.")]
        return beyond[0] if beyond else "127.0.0.1"

    def _others(self) -> list[str]:
        """Return addresses of the other hosts, as far as their names tell."""
        if self.kind == "slurm":
            asked = ["sinfo", "--noheader", "--format=%o"]
            asked += [f"--nodes={nodes}"] if (nodes := os.environ.get("SLURM_JOB_NODELIST")) else []
            return [a for name in _output(asked).split() if (a := _resolved(name))]
        if not all(self.hosts):
            return ["192.0.2.1"] if len(self.hosts) > 1 else []  # no host has this address: the way out
        return [self._address_of(h) for h in range(len(self.hosts))]

    def _address_of(self, number: int) -> str:
        name = self.hosts[number]
        if self.kind == "ssh":  # ssh knows names of its own
            told = _output([*self._ssh, "-G", *self._config("SSHLauncher").get("ssh_args", []), self._login(number)])
            name = next((line.split()[1] for line in told.splitlines() if line.startswith("hostname ")), name)
        if not (address := _resolved(name)):
            raise LabError(
                f"Nobody here knows a host {self.hosts[number]!r}: its name has no address. "
                "Look how it is spelt, or add it to ~/.ssh/config, and start again."
            )
        return address

    def _config(self, *classes: str) -> dict[str, Any]:
        """Return what a profile sets for these classes of ipyparallel's."""
        found: dict[str, Any] = {}
        for name in classes:
            if self.config is not None and name in self.config:
                found |= dict(self.config[name])
        return found


def _output(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    except OSError as error:
        raise absent(argv[0], error) from None


def absent(program: str, error: OSError) -> LabError:
    """Return the error for a program that cannot be run."""
    return LabError(f"{program} cannot be run here ({error.strerror}). Install it, or start the ranks in another way.")


def _resolved(name: str) -> str:
    """Return the IPv4 address of a host's name; "" where it has none."""
    with contextlib.suppress(OSError):
        return str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0])
    return ""


# -- wishes -------------------------------------------------------------------------------------------------------


def spread(
    kind: str,
    nodes: int | None,
    per_node: int | None,
    hosts: Mapping[str, int] | Sequence[str] | None,
    n: int | None,
    config: Any = None,
) -> Spread:
    """Check what was asked for; a profile's `config` fills in what was left out."""
    wished = Spread(kind, (), (), config)
    if hosts is None and kind == "ssh":
        known = wished._config("SSHEngineSetLauncher").get("engines", {})
        hosts = {host: each if isinstance(each, int) else each[0] for host, each in known.items()}
    if isinstance(hosts, str):
        raise LabError(f'hosts={hosts!r} is a text. Name the hosts with their ranks: hosts={{"{hosts}": 2}}.')
    if kind == "ssh" and not hosts:
        raise LabError(
            'Which hosts? Name them with the ranks of each: start(engines="ssh", hosts={"na": 2, "nb": 2}). '
            "In a profile of ipyparallel's that is c.SSHEngineSetLauncher.engines."
        )
    if hosts:
        names = tuple(hosts)
        counts = tuple(hosts.values()) if isinstance(hosts, Mapping) else (per_node,) * len(names)
        if isinstance(hosts, Mapping) and per_node is not None:
            raise LabError("hosts= says already how many ranks each host has. Leave per_node out.")
        if nodes not in (None, len(names)):
            raise LabError(f"hosts= names {count(len(names), 'host')}, and nodes={nodes}. Leave nodes out.")
        if not all(isinstance(name, str) and name and not name.startswith("-") for name in names):
            raise LabError(f"hosts={hosts!r}: the name of a host is a text that does not begin with a dash.")
    else:
        if nodes is None:
            nodes = int(os.environ.get("SLURM_JOB_NUM_NODES") or 1) if kind == "slurm" else 1
        names, counts = ("",) * nodes, (per_node,) * nodes
    for what, values, least in (("nodes", (nodes,), 1), ("ranks of a host", counts, 1)):
        for value in values:
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise LabError(f"{value!r} is no number of {what}. Give 1 or more.")
    if n is not None:  # a host that no rank is for is left alone
        if not any(counts):
            each, rest = divmod(n, len(names))
            counts = tuple(each + (h < rest) for h in range(len(names)))
        needed = next((h for h in range(len(names)) if sum(c or 1 for c in counts[:h]) >= n), len(names))
        names, counts = names[:needed], counts[:needed]
    return replace(wished, hosts=names, counts=counts)


def read_profile(name: str) -> tuple[str, int | None, Any]:
    """Return launcher, number of engines and settings of an ipyparallel profile's ipcluster_config.py.

    What `start()` takes and ipyparallel has no name for stands there under labkit's own: `c.Lab.hosts`, `c.Lab.nodes`
    and `c.Lab.per_node`. Raises LabError where there is none of this name: ipyparallel would start local engines
    without a word.
    """
    import ipyparallel as ipp
    from ipyparallel.cluster.launcher import abbreviate_launcher_class
    from IPython.core.profiledir import ProfileDir, ProfileDirError
    from IPython.paths import get_ipython_dir
    from traitlets.config.loader import PyFileConfigLoader

    try:
        where = ProfileDir.find_profile_dir_by_name(get_ipython_dir(), name).location
    except ProfileDirError:
        there = sorted(p.name.removeprefix("profile_") for p in Path(get_ipython_dir()).glob("profile_*"))
        have = f"There are {listed(there)}" if there else "There is none"
        raise LabError(
            f"There is no ipyparallel profile {name!r}. {have} in {get_ipython_dir()}. "
            f"Make it: ipython profile create --parallel {name}"
        ) from None
    try:
        PyFileConfigLoader("ipcluster_config.py", where).load_config()  # ipyparallel only logs what is wrong with it
        cluster = ipp.Cluster(profile_dir=where, log_level=50, shutdown_atexit=False)
    except Exception as error:
        raise LabError(f"The profile {name!r} cannot be read ({error}). Mend {where}/ipcluster_config.py.") from error
    return abbreviate_launcher_class(cluster.engine_launcher_class).lower(), cluster.n, cluster.config
