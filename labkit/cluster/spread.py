"""Spread ranks over hosts, and make the command of ssh, srun or mpiexec that starts one process on each of them.

What ipyparallel's users have in a profile is read from there, by ipyparallel's own names: hosts and their engines,
arguments of ssh, Slurm's partition and time, mpiexec's arguments.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from labkit.cluster.host import ORDER, SSH_OF_MPICH, own_address
from labkit.floor.errors import LabError
from labkit.floor.words import count, listed

MOST = 16  # CPU ranks on one host: more than that no laptop bears
FEW = 2  # ranks on each host where no number is given, and there are no GPUs
RSH = "OMPI_MCA_plm_rsh_agent"  # what OpenMPI uses instead of ssh
UNATTENDED = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")  # ssh would ask, or wait for minutes
JOBS = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "HYDRA_LAUNCHER"}  # in one of these MPICH may not use ssh
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
    """How many ranks one launcher starts on which hosts; each launcher is a class below.

    `hosts` are names in the order of the ranks, "" where the scheduler chooses; `counts` has the ranks of each, or
    None where the number of its GPUs decides. `config` is a profile's.
    """

    hosts: tuple[str, ...]
    counts: tuple[int | None, ...]
    config: Any = None

    kind: ClassVar[str]  # its name in `start(engines=)`
    by: ClassVar[str]  # how the hosts are reached, in words
    program: ClassVar[str]  # whose command it is, as a message names it
    ended: ClassVar[str] = ""  # what a message adds where this command has ended

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

    # -- what a launcher may have of its own --------------------------------------------------------------------------

    def known_hosts(self) -> Mapping[str, int] | None:
        """Return the hosts with their ranks, where a call names none; None where this launcher chooses them."""
        return None

    def known_nodes(self) -> int:
        """Return on how many hosts it starts where a call does not say."""
        return 1

    def launches(self, order: str) -> list[Launch]:
        """Return the commands to run on this host; `order` is what each process is told, a line of JSON."""
        argv = [*self.command(), self._python, "-m", "labkit.cluster.host"]
        return [Launch(argv, list(range(len(self.hosts))), "", {ORDER: order, **self.variables()})]

    def command(self) -> list[str]:
        """Return the beginning of the one command that starts a process on every host.

        It hands `ORDER` and PYTHONPATH on to them.
        """
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        """Return what this command takes by the environment."""
        return {}

    def anew(self, number: int, order: str, life: int) -> Launch | None:
        """Return the command for one host whose process was lost; None where this launcher only starts all at once."""
        return None

    def others(self) -> list[str]:
        """Return addresses of the other hosts, as far as their names tell."""
        if not all(self.hosts):
            return ["192.0.2.1"] if len(self.hosts) > 1 else []  # no host has this address: the way out
        return [self._address_of(h) for h in range(len(self.hosts))]

    def resolved_name(self, number: int) -> str:
        """Return the name by which the resolver knows a host."""
        return self.hosts[number]

    # -- what all launchers share -----------------------------------------------------------------------------------

    @cached_property
    def address(self) -> str:
        """The address of this host that the others reach; 127.0.0.1 where all of them are this one."""
        if given := self.of_profile("Cluster").get("controller_ip", ""):
            return str(given)
        found = [own_address(other)[0] for other in self.others()]
        beyond = [a for a in found if not a.startswith("127.")]
        return beyond[0] if beyond else "127.0.0.1"

    def _address_of(self, number: int) -> str:
        if not (address := _resolved(self.resolved_name(number))):
            raise LabError(
                f"The host {self.hosts[number]!r} is not known here: its name has no address. "
                "Check how it is spelled, or add it to ~/.ssh/config, and start again."
            )
        return address

    @property
    def _python(self) -> str:
        """The interpreter on the hosts: this one, unless a profile names another."""
        return str(self.of_profile("SSHLauncher").get("remote_python", sys.executable))

    def of_profile(self, *classes: str) -> dict[str, Any]:
        """Return what a profile sets for these classes of ipyparallel's."""
        found: dict[str, Any] = {}
        for name in classes:
            if self.config is not None and name in self.config:
                found |= dict(self.config[name])
        return found


class Ssh(Spread):
    """One ssh for each host, so that a host that was lost can be reached again."""

    kind, by, program = "ssh", "over ssh", "ssh"

    def known_hosts(self) -> Mapping[str, int] | None:
        """Return the hosts of a profile; raise LabError where it names none, since ssh chooses no host."""
        known = self.of_profile("SSHEngineSetLauncher").get("engines", {})
        if not known:
            raise LabError(
                'Which hosts? Name them with the ranks of each: start(engines="ssh", hosts={"na": 2, "nb": 2}). '
                "In a profile of ipyparallel's that is c.SSHEngineSetLauncher.engines."
            )
        return {host: each if isinstance(each, int) else each[0] for host, each in known.items()}

    def launches(self, order: str) -> list[Launch]:
        """Return one command for each host."""
        return [self.anew(h, order, 0) for h in range(len(self.hosts))]

    def anew(self, number: int, order: str, life: int) -> Launch:
        """Return the command for one host's process, also one that was lost; what is secret goes by standard input."""
        path = os.environ.get("PYTHONPATH")
        there = ["env", f"PYTHONPATH={path}"] if path else []
        there += [self._python, "-m", "labkit.cluster.host"]
        line = order.replace("{", f'{{"number": {number}, "life": {life}, ', 1) + "\n"
        argv = [*self._ssh, "-T", *UNATTENDED, *self._arguments, self._login(number), shlex.join(there)]
        return Launch(argv, [number], line)

    def resolved_name(self, number: int) -> str:
        """Return what ssh makes of a host's name."""
        return _known_to_ssh([*self._ssh, "-G", *self._arguments, self._login(number)], self.hosts[number])

    def _login(self, number: int) -> str:
        user = self.of_profile("SSHLauncher").get("user", "")
        return f"{user}@{self.hosts[number]}" if user else self.hosts[number]

    @property
    def _ssh(self) -> list[str]:
        return list(self.of_profile("SSHLauncher").get("ssh_cmd", ["ssh"]))

    @property
    def _arguments(self) -> list[str]:
        return list(self.of_profile("SSHLauncher").get("ssh_args", []))


class Slurm(Spread):
    """One srun for all hosts."""

    kind, by, program = "slurm", "by Slurm", "srun"
    ended = "No other job was submitted. "

    def known_nodes(self) -> int:
        """Return how many hosts the notebook's own allocation has."""
        return int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)

    def command(self) -> list[str]:
        """Return a step of srun: in the allocation that the notebook has, or in a new one."""
        slurm = self.of_profile("SlurmLauncher", "SlurmEngineSetLauncher")
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

    def others(self) -> list[str]:
        """Return the addresses that Slurm's own names of the hosts have."""
        asked = ["sinfo", "--noheader", "--format=%o"]
        asked += [f"--nodes={nodes}"] if (nodes := os.environ.get("SLURM_JOB_NODELIST")) else []
        return [a for name in _output(asked).split() if (a := _resolved(name))]


class Mpi(Spread):
    """One mpiexec for all hosts."""

    kind, by, program = "mpi", "by mpiexec", "mpiexec"

    def command(self) -> list[str]:
        """Return the mpiexec that stands here, OpenMPI's or another."""
        argv, named = self._mpiexec, all(self.hosts)
        if self._is_openmpi:  # binds a process to one core, and its forks with it
            argv += ["-x", ORDER, "--bind-to", "none"]
            argv += ["-x", "PYTHONPATH"] if os.environ.get("PYTHONPATH") else []
            if os.environ.get(RSH, "ssh").startswith("ssh"):
                argv += ["--mca", "plm_rsh_args", " ".join(UNATTENDED)]
            argv += ["--host", ",".join(f"{h}:1" for h in self.hosts)] if named else ["--map-by", "ppr:1:node"]
        else:  # mpich's hydra, and those that are made of it
            argv += ["-ppn", "1", *(["-hosts", ",".join(self.hosts)] if named else [])]
        return [*argv, *self._config.get("mpi_args", []), "-n", str(len(self.hosts))]

    def variables(self) -> dict[str, str]:
        """Return the arguments of the ssh that MPICH uses: they have no other way."""
        if self._is_openmpi or not all(self.hosts) or {SSH_OF_MPICH, *JOBS} & set(os.environ):
            return {}
        return {SSH_OF_MPICH: " ".join(UNATTENDED)}

    def resolved_name(self, number: int) -> str:
        """Return what ssh, if it is here, makes of a host's name: mpiexec will use it, unless a scheduler has it."""
        name = self.hosts[number]
        return _known_to_ssh(["ssh", "-G", name], name) if shutil.which("ssh") else name

    @property
    def _config(self) -> dict[str, Any]:
        return self.of_profile("MPILauncher", "MPIEngineSetLauncher")

    @property
    def _mpiexec(self) -> list[str]:
        return list(self._config.get("mpi_cmd", ["mpiexec"]))

    @cached_property
    def _is_openmpi(self) -> bool:
        told = _output([*self._mpiexec, "--version"])
        return "Open MPI" in told or "OpenRTE" in told


KINDS: dict[str, type[Spread]] = {launcher.kind: launcher for launcher in (Ssh, Slurm, Mpi)}


def _output(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    except OSError as error:
        raise absent(argv[0], error) from None


def _known_to_ssh(asked: list[str], name: str) -> str:
    """Return the name or address that ssh has for a host, from ~/.ssh/config for instance."""
    told = _output(asked).splitlines()
    return next((line.split()[1] for line in told if line.startswith("hostname ")), name)


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
    wished = KINDS[kind]((), (), config)
    if isinstance(hosts, str):
        raise LabError(f'hosts={hosts!r} is a text. Name the hosts with their ranks: hosts={{"{hosts}": 2}}.')
    hosts = hosts or wished.known_hosts()
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
        nodes = wished.known_nodes() if nodes is None else nodes
        names, counts = ("",) * nodes, (per_node,) * nodes
    for what, values, least in (("nodes", (nodes,), 1), ("ranks of a host", counts, 1)):
        for value in values:
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise LabError(f"{value!r} is not a number of {what}. Give 1 or more.")
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
