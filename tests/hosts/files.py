"""The files that a host needs, as texts: names, ssh, Slurm, nbval. Pure; `hosts.py` writes them."""

from __future__ import annotations

NETWORK = "10.77.0"  # nobody else's: the switch and its hosts are in network namespaces of their own
ADDRESSES = {"head": f"{NETWORK}.1", "na": f"{NETWORK}.11", "nb": f"{NETWORK}.12"}
NODES = ("na", "nb")  # the hosts that Slurm gives to jobs
CPUS = 4  # so many ranks a node, however few cores the machine has
# What start() prints of where its ranks are: the one output of a lesson that names its launcher.
START_SAYS = r"""
[what start says]
regex: (CPU ranks with Gloo)(?:: torch finds no GPU here\.|, on \d+ hosts [^\n]*\n[^\n]*\n[^\n]*you trust\.)
replace: \1
"""


def hosts(name: str) -> str:
    """/etc/hosts as Debian makes it: a host's own name is 127.0.1.1 first, which misleads whoever asks for it."""
    lines = ["127.0.0.1 localhost", f"127.0.1.1 {name}", *(f"{ip} {host}" for host, ip in ADDRESSES.items())]
    return "\n".join(lines) + "\n"


def sshd(environment: dict[str, str]) -> str:
    """A server that only the keys of this network can enter; `environment` is what its programs get."""
    given = "".join(f"SetEnv {name}={value}\n" for name, value in environment.items())
    return f"""Port 22
HostKey /run/host/key
AuthorizedKeysFile /run/host/authorized_keys
PidFile /run/host/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
{given}"""


def ssh(home: str) -> str:
    """The client's side, ~/.ssh/config: `ssh na` just works, and never asks."""
    return f"""Host *
IdentityFile {home}/.ssh/id
IdentitiesOnly yes
StrictHostKeyChecking yes
UserKnownHostsFile {home}/.ssh/known_hosts
LogLevel ERROR
BatchMode yes
"""


def known_hosts(public: str) -> str:
    """One key for all hosts, each known by name and address."""
    return f"{','.join([*ADDRESSES, *ADDRESSES.values()])} {public}"


def slurm() -> str:
    """slurm.conf of a controller on head and one node on each other host, without accounting or control groups."""
    nodes = "".join(
        f"NodeName={node} NodeHostname={node} NodeAddr={ADDRESSES[node]} CPUs={CPUS} RealMemory=4000 State=UNKNOWN\n"
        for node in NODES
    )
    return f"""ClusterName=labkit
SlurmctldHost=head({ADDRESSES["head"]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=10
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=2
{nodes}PartitionName=lab Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP
"""
