"""Which ranks on which hosts, and by which command: without starting anything."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
from traitlets.config import Config

from labkit.cluster import spread as spread_module
from labkit.cluster.spread import read_profile, spread
from labkit.floor.errors import LabError
from labkit.starting import _checked

ORDER = json.dumps({"ip": "10.0.0.1", "port": 1, "key": "k", "token": "secret"})


@pytest.fixture(autouse=True)
def _no_job(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NODELIST", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


def wished(kind="ssh", nodes=None, per_node=None, hosts=None, n=None, config=None):
    return spread(kind, nodes, per_node, hosts, n, config)


@pytest.mark.parametrize(
    ("wish", "gpus", "n", "seats"),
    [
        ({"hosts": {"na": 2, "nb": 2}}, [0, 0], None, [0, 0, 1, 1]),
        ({"hosts": {"na": 1, "nb": 3}}, [0, 0], None, [0, 1, 1, 1]),
        ({"hosts": ["na", "nb"], "per_node": 3}, [0, 0], None, [0, 0, 0, 1, 1, 1]),
        ({"hosts": ["na", "nb"]}, [0, 0], None, [0, 0, 1, 1]),  # two where nobody says how many
        ({"hosts": ["na", "nb"]}, [8, 4], None, [0] * 8 + [1] * 4),  # or one a GPU
        ({"kind": "slurm", "nodes": 3, "n": 4}, [0, 0, 0], 4, [0, 0, 1, 2]),
        ({"hosts": {"na": 2, "nb": 2}, "n": 3}, [0, 0], 3, [0, 0, 1]),
        ({"hosts": {"na": 2, "nb": 2}, "n": 2}, [0], 2, [0, 0]),  # nb is left alone
    ],
)
def test_ranks_are_numbered_host_by_host(wish, gpus, n, seats):
    assert wished(**wish).seats(gpus, n) == seats


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({}, 'Which hosts?.*hosts={"na": 2, "nb": 2}'),
        ({"hosts": "na"}, r'hosts=\{"na": 2\}'),
        ({"hosts": {"na": 0}}, "0 is not a number of ranks of a host"),
        ({"hosts": {"na": True}}, "True is not a number"),
        ({"hosts": {"-oProxyCommand=evil": 2}}, "does not begin with a dash"),
        ({"hosts": {"na": 2}, "per_node": 2}, "Leave per_node out"),
        ({"hosts": {"na": 2}, "nodes": 2}, "Leave nodes out"),
        ({"kind": "slurm", "nodes": 0}, "0 is not a number of nodes"),
        ({"kind": "mpi", "nodes": 2, "per_node": -1}, "-1 is not a number of ranks"),
    ],
)
def test_what_cannot_be_meant_is_said_with_what_to_write(wish, words):
    with pytest.raises(LabError, match=words):
        wished(**wish)


def test_more_ranks_than_there_is_room_for_are_refused():
    with pytest.raises(LabError, match="room for 4 ranks on 2 hosts, and you ask for 9"):
        wished(hosts={"na": 2, "nb": 2}, n=9).seats([0, 0], 9)


def test_over_ssh_nothing_secret_stands_in_a_command():
    config = Config()
    config.SSHLauncher.ssh_args = ["-F", "conf"]
    config.SSHLauncher.user = "ann"
    config.SSHLauncher.remote_python = "/opt/my python"
    first, second = wished(hosts=["na", "nb"], config=config).launches(ORDER)
    assert first.argv[:2] == ["ssh", "-T"]
    assert first.argv[-4:-1] == ["-F", "conf", "ann@na"]
    assert first.argv[-1] == "env '/opt/my python' -m labkit.cluster.host".removeprefix("env ")
    assert "secret" not in " ".join(first.argv + second.argv)
    assert [json.loads(launch.line)["number"] for launch in (first, second)] == [0, 1]
    assert json.loads(second.line)["token"] == "secret"
    assert not first.environment


def test_slurm_is_asked_for_one_process_a_node_in_the_foreground():
    config = Config()
    config.SlurmLauncher.queue = "gpu"
    config.SlurmLauncher.timelimit = "10"
    config.SlurmLauncher.options = "--gres=gpu:2 --exclusive"
    (launch,) = wished("slurm", nodes=2, per_node=4, config=config).launches(ORDER)
    assert launch.argv[0] == "srun"
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=0"} <= set(launch.argv)
    assert {"--cpus-per-task=4", "--partition=gpu", "--time=10", "--gres=gpu:2", "--exclusive"} <= set(launch.argv)
    assert launch.numbers == [0, 1]
    assert "secret" not in " ".join(launch.argv)


def test_inside_a_job_ranks_are_a_step_of_it(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    (launch,) = wished("slurm").launches(ORDER)
    assert {"--jobid=12", "--overlap", "--nodes=2"} <= set(launch.argv)
    assert not [word for word in launch.argv if word.startswith("--cpus")]


def mpi(folder: Path, version: str, **wish):
    """What is asked of an mpiexec that says it has this version."""
    mpiexec = folder / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\necho '{version}'\n")
    mpiexec.chmod(0o755)
    config = Config()
    config.MPILauncher.mpi_cmd = [str(mpiexec)]
    return wished("mpi", config=config, **wish)


@pytest.mark.parametrize(
    ("version", "hosts", "words"),
    [
        ("mpiexec (OpenRTE) 4.1.4", ["na", "nb"], "-o ConnectTimeout=10 --host na:1,nb:1 -n 2"),
        ("mpiexec (OpenRTE) 4.1.4", None, "-o ConnectTimeout=10 --map-by ppr:1:node -n 2"),
        ("HYDRA build details:", ["na", "nb"], "-ppn 1 -hosts na,nb -n 2"),
    ],
)
def test_mpiexec_starts_one_process_a_host_in_the_words_of_each_mpi(tmp_path, version, hosts, words):
    (launch,) = mpi(tmp_path, version, nodes=None if hosts else 2, hosts=hosts).launches(ORDER)
    assert words in " ".join(launch.argv)
    assert launch.argv[-3:] == [sys.executable, "-m", "labkit.cluster.host"]
    assert "secret" not in " ".join(launch.argv)


@pytest.mark.parametrize("job", ["", "SLURM_JOB_ID"])
def test_the_ssh_of_mpich_neither_asks_nor_waits_unless_a_scheduler_reaches_the_hosts(tmp_path, monkeypatch, job):
    if job:
        monkeypatch.setenv(job, "12")
    (launch,) = mpi(tmp_path, "HYDRA build details:", hosts=["na", "nb"]).launches(ORDER)
    said = launch.environment.get("HYDRA_LAUNCHER_EXTRA_ARGS", "")
    assert ("BatchMode=yes" in said and "ConnectTimeout=10" in said) is not bool(job)


@pytest.mark.parametrize("kind", ["ssh", "mpi"])
def test_a_hosts_name_is_the_one_that_ssh_knows_it_by(monkeypatch, kind):
    monkeypatch.setattr(spread_module, "_output", lambda argv: "hostname 127.0.0.7\n" if argv[-1] == "alias" else "")
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    assert wished(kind, hosts=["alias"]).resolved_name(0) == "127.0.0.7"


def test_a_missing_program_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LabError, match="mpiexec cannot be run here"):
        wished("mpi").launches(ORDER)
    with pytest.raises(LabError, match="sinfo cannot be run here"):
        assert wished("slurm", nodes=2).address
    with pytest.raises(LabError, match="ssh cannot be run here"):
        assert wished(hosts=["na"]).address


def test_ranks_on_this_host_alone_are_reached_by_loopback(monkeypatch):
    monkeypatch.setattr(spread_module, "_output", lambda argv: "hostname localhost\n")
    assert wished(hosts=["me"]).address == "127.0.0.1"
    assert wished("mpi").address == "127.0.0.1"


def test_the_address_is_the_one_that_other_hosts_are_reached_from(monkeypatch):
    monkeypatch.setattr(spread_module, "_output", lambda argv: f"hostname {argv[-1]}.lan\n")
    monkeypatch.setattr(spread_module, "_resolved", lambda name: {"na.lan": "127.0.1.1", "nb.lan": "10.9.9.9"}[name])
    monkeypatch.setattr(spread_module, "own_address", lambda to: ("10.9.9.1" if to == "10.9.9.9" else to, "eth0"))
    assert wished(hosts=["na", "nb"]).address == "10.9.9.1"
    config = Config()
    config.Cluster.controller_ip = "192.168.7.7"
    assert wished(hosts=["na", "nb"], config=config).address == "192.168.7.7"


def test_a_name_without_an_address_is_said(monkeypatch):
    monkeypatch.setattr(spread_module, "_output", lambda argv: "")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: (_ for _ in ()).throw(OSError()))
    with pytest.raises(LabError, match="The host 'nx' is not known here"):
        assert wished(hosts=["nx"]).address


# -- profiles -----------------------------------------------------------------------------------------------------


@pytest.fixture
def profile(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))

    def write(text, name="far"):
        folder = tmp_path / f"profile_{name}"
        folder.mkdir()
        (folder / "ipcluster_config.py").write_text(f"c = get_config()\n{text}")
        return name

    return write


def test_a_profile_says_the_launcher_its_hosts_and_its_settings(profile):
    name = profile(
        'c.Cluster.engine_launcher_class = "ssh"\nc.SSHEngineSetLauncher.engines = {"na": 2, "nb": (1, [])}\n'
        'c.SSHLauncher.ssh_args = ["-p", "2222"]\n'
    )
    kind, n, config = read_profile(name)
    assert (kind, n) == ("ssh", None)
    far = spread(kind, None, None, None, n, config)
    assert (far.hosts, far.counts) == (("na", "nb"), (2, 1))
    assert far.launches(ORDER)[0].argv[-4:-2] == ["-p", "2222"]


def test_a_profile_that_is_missing_is_an_error_and_not_four_local_engines(profile):
    profile("", "other")
    with pytest.raises(LabError, match=r"no ipyparallel profile 'far'\. There are other"):
        read_profile("far")


def test_a_profile_that_cannot_be_read_is_named(profile):
    with pytest.raises(LabError, match="'far' cannot be read"):
        read_profile(profile("this is not Python"))


def test_what_is_said_in_start_goes_before_the_profile(profile, monkeypatch):
    name = profile('c.Cluster.engine_launcher_class = "slurm"\nc.Lab.nodes = 2\nc.Lab.per_node = 3\n')
    monkeypatch.setenv("LABKIT_PROFILE", name)

    def wish(n=None, engines=None, nodes=None, per_node=None, hosts=None, profile=None):
        return _checked(n, None, engines, 10, nodes, per_node, hosts, profile)

    assert wish().spread.counts == (3, 3)
    assert wish(per_node=1).spread.counts == (1,)
    assert wish(n=4).spread.counts == (3, 3)
    assert wish(engines="local").spread is None
    assert wish(engines="mpi", profile=name).spread.kind == "mpi"
    assert wish(hosts={"na": 1}).spread.kind == "ssh"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"nodes": 2}, "nodes= is for several hosts. Say how they are reached: engines='ssh', 'slurm' or 'mpi'."),
        ({"per_node": 2, "engines": "MPI"}, "per_node= .* engines='ssh', 'slurm' or 'mpi', not 'MPI'."),
        ({"engines": ["ssh"]}, r"engines=\['ssh'\] is not a name of a launcher"),
    ],
)
def test_hosts_need_a_launcher_that_reaches_several(asked, says):
    wish = {"engines": None, "nodes": None, "per_node": None, **asked}
    with pytest.raises(LabError, match=says):
        _checked(None, None, timeout=10, hosts=None, profile=None, **wish)
