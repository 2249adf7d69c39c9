"""The three hosts are honest ones: nothing but the code and the network is shared, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import means
from tests.hosts.hosts import CHECKOUT, NAMES, Hosts
from tests.live.processes import eventually

SLEEP = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(1000)"]


def test_hosts_have_their_own_names_processes_and_networks(hosts):
    assert [hosts.run(name, ["hostname"]).stdout for name in NAMES] == [f"{name}\n" for name in NAMES]
    kinds = ["pid", "net", "mnt", "uts", "ipc"]
    for kind in kinds:
        links = [hosts.run(name, ["readlink", f"/proc/self/ns/{kind}"]).stdout for name in NAMES]
        assert len({*links, os.readlink(f"/proc/self/ns/{kind}") + "\n"}) == 4, kind


def test_a_process_is_seen_on_its_host_alone(hosts):
    with hosts.popen("na", SLEEP, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == "here\n"
        assert [p.pid for p in hosts.processes("na")] == [program.pid_there]
        assert hosts.outside("na", program.pid_there) == program.child
        assert not hosts.processes("nb")
        assert "time.sleep" not in hosts.run("nb", ["ps", "ax"]).stdout
        program.kill()
        assert program.wait() == -signal.SIGKILL
    assert not hosts.processes("na")


def test_files_are_private_and_the_code_is_not(hosts, tmp_path):
    for name in NAMES:
        for place in ("/tmp", "/dev/shm", "/run", "~", CHECKOUT):
            hosts.python(name, f"from pathlib import Path; Path({f'{place}/mine'!r}).expanduser().write_text({name!r})")
        assert hosts.files(name) == ["/dev/shm/mine", "/tmp/mine"]
    read = "from pathlib import Path; print(Path('/dev/shm/mine').read_text(), Path('/tmp/mine').read_text())"
    assert [hosts.python(name, read).stdout for name in NAMES] == [f"{name} {name}\n" for name in NAMES]
    assert not (CHECKOUT / "mine").exists()
    assert not Path("/tmp/mine").exists()
    assert hosts.python("nb", "import labkit; print(labkit.__file__)").stdout == f"{CHECKOUT}/labkit/__init__.py\n"
    hosts.restore()
    assert not hosts.files("na")


def test_programs_get_nothing_of_this_machines_settings(hosts, monkeypatch):
    monkeypatch.setenv("LABKIT_SOMETHING", "1")
    for reach in ([], ["ssh", "na"]):
        assert "LABKIT_SOMETHING" not in hosts.run("head", [*reach, "env"]).stdout


@pytest.mark.parametrize("name", ["na", "nb"])
def test_ssh_reaches_a_node_from_head(hosts, name):
    assert hosts.run("head", ["ssh", name, "hostname"]).stdout == f"{name}\n"
    assert hosts.run("head", ["ssh", "-F", hosts.ssh_config, hosts.addresses[name], "hostname"]).stdout == f"{name}\n"


def test_ssh_refuses_a_name_that_is_none(hosts):
    refused = hosts.run("head", ["ssh", "nowhere", "hostname"], check=False)
    assert refused.returncode == 255
    assert "nowhere" in refused.stderr


def test_srun_starts_a_task_on_each_node(hosts):
    assert sorted(hosts.run("head", ["srun", "-N2", "hostname"], hosts.slurm).stdout.split()) == ["na", "nb"]
    assert eventually(lambda: not hosts.queue()), hosts.queue()  # srun ends first: its job is completing for a moment


def test_a_job_that_waits_says_why(hosts):
    with hosts.popen("head", ["srun", "-N2", "-n8", *SLEEP], hosts.slurm, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == "here\n"
        with hosts.popen("head", ["srun", "-N2", "-n8", *SLEEP], hosts.slurm, stderr=subprocess.PIPE) as second:
            assert "queued" in second.stderr.readline()
            assert eventually(lambda: [job.reason for job in hosts.queue() if job.state == "PENDING"] == ["Resources"])
            second.kill()
        hosts.run("head", ["scancel", "--user=root"])  # all of them: the second's may end by itself meanwhile
        assert first.wait(20)
    assert eventually(lambda: not hosts.left()), hosts.left()


def test_mpiexec_starts_ranks_on_both_nodes(hosts):
    command = [hosts.mpiexec, "-n", "4", "--host", "na:2,nb:2", "hostname"]
    assert sorted(hosts.run("head", command, hosts.mpi).stdout.split()) == ["na", "na", "nb", "nb"]


def test_the_bytes_on_a_link_are_counted(hosts):
    before = [hosts.bytes(name).received for name in ("na", "nb")]
    hosts.run("head", ["ssh", "na", "cat >/dev/null"], input="x" * 1_000_000)
    after = [hosts.bytes(name).received for name in ("na", "nb")]
    na, nb = after[0] - before[0], after[1] - before[1]
    assert 1_000_000 < na < 1_200_000
    assert nb < 100_000


def test_a_link_is_shaped_both_ways_and_freed(hosts):
    assert hosts.limits("nb") == []
    hosts.shape("nb", "80mbit")
    assert hosts.limits("nb") == [10_000_000, 10_000_000]
    hosts.shape("nb", "40mbit", latency="10ms")
    assert hosts.limits("nb") == [5_000_000, 5_000_000]
    assert hosts.run("head", ["ssh", "nb", "hostname"]).stdout == "nb\n"
    hosts.shape("nb", None)
    assert hosts.limits("nb") == hosts.limits("na") == []


def test_a_shaped_link_takes_as_long_as_its_rate_says(hosts):
    """A ratio within one run: a link of a third of the rate that the same bytes just had takes three times as long."""
    send = (
        "import subprocess, time\nt = time.perf_counter()\n"
        "subprocess.run(['ssh', 'nb', 'cat >/dev/null'], input=bytes(4_000_000), check=True)\n"
        "print(time.perf_counter() - t)"
    )
    free = float(hosts.python("head", send).stdout)
    hosts.shape("nb", f"{int(4_000_000 * 8 / free / 3)}bit")
    assert float(hosts.python("head", send).stdout) > 2 * free


def test_a_cut_link_loses_everything_until_it_is_mended(hosts):
    hosts.cut("nb")
    impatient = ["ssh", "-o", "ConnectTimeout=1", "nb", "hostname"]
    assert hosts.run("head", impatient, check=False).returncode == 255
    assert hosts.run("head", ["ssh", "na", "hostname"]).stdout == "na\n"
    hosts.mend("nb")
    assert hosts.run("head", ["ssh", "nb", "hostname"]).stdout == "nb\n"


def test_a_cut_link_is_silent(hosts):
    """Nobody gets an end of file: who waits for the other side goes on waiting, as with a broken switch."""
    with hosts.popen("head", ["ssh", "nb", "echo here; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as talk:
        assert talk.stdout.readline() == "here\n"
        hosts.cut("nb")
        talk.stdin.write("lost\n")
        talk.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            talk.wait(0.5)
        hosts.mend("nb")
        assert talk.stdout.readline() == "lost\n"


def test_a_killed_host_is_gone_at_once_and_comes_back_empty(hosts):
    hosts.python("nb", "open('/tmp/mine', 'w')")
    with hosts.popen("nb", SLEEP, stdout=subprocess.PIPE) as program:
        program.stdout.readline()
        hosts.kill("nb")
        assert program.wait(10)
    assert hosts.processes("nb") == []
    assert hosts.run("head", ["ssh", "-o", "ConnectTimeout=1", "nb", "hostname"], check=False).returncode == 255
    hosts.boot("nb")
    assert hosts.files("nb") == []
    assert hosts.run("head", ["srun", "-N2", "hostname"], hosts.slurm).stdout.split().count("nb") == 1


def test_listening_names_the_address_and_no_daemon(hosts):
    assert hosts.listening("na") == []
    code = (
        "import socket, sys; s = socket.create_server(('10.77.0.11', 0)); print('here', flush=True); sys.stdin.read()"
    )
    with hosts.popen("na", [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdout.readline()
        assert [found.address for found in hosts.listening("na")] == ["10.77.0.11"]
        program.stdin.write("\n")
        program.stdin.flush()


def test_a_notebook_runs_on_head_and_can_be_stopped(hosts, notebook):
    assert notebook.value("import socket; socket.gethostname()") == "'head'"
    pending = notebook.send("print('begun', flush=True)\nwhile True: pass")
    notebook.until_shown(pending, "begun")
    notebook.interrupt()
    assert notebook.wait(pending).error.startswith("KeyboardInterrupt")
    assert [p.pid for p in hosts.processes("head")] == [notebook.pid]
    notebook.kill()
    assert eventually(lambda: not hosts.processes("head"))


def test_what_a_test_leaves_is_cleared_away(hosts):
    hosts.popen("na", SLEEP, stdout=subprocess.DEVNULL)
    hosts.popen("head", ["srun", "-N2", *SLEEP], hosts.slurm, stdout=subprocess.DEVNULL)
    assert eventually(lambda: hosts.processes("nb"))
    hosts.restore()
    assert eventually(lambda: not hosts.left()), hosts.left()


def outside() -> dict[str, object]:
    """What three hosts could leave on this machine, files excepted."""
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {
        "links": sorted(line.split()[0] for line in links.splitlines()),
        "named networks": sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else [],
        "mounts": sorted(place for place in mounted if "/pytest-of-" not in place),  # those are other tests' own
    }


def keys_of(owner: int) -> list[str]:
    """The folders in which a process has made its hosts' keys."""
    return [name for name in os.listdir("/tmp") if name.startswith(f"hosts-{owner}-")]


def namespaces() -> set[str]:
    """The networks in which some process is."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
        except OSError:
            continue
    return found


MARK = "LABKIT_TEST_HOSTS_OWNER"
OWNER = """
from tests.hosts.hosts import NAMES, Hosts
hosts = Hosts()
hosts.popen("na", ["sleep", "1000"])
print(*(hosts.run(name, ["readlink", "/proc/self/ns/net"]).stdout.strip() for name in NAMES), flush=True)
input()
"""


@pytest.mark.parametrize("end", ["closed", "terminated", "killed"])
def test_nothing_is_left_however_the_owner_ends(means, end):
    code = OWNER + ("hosts.close()" if end == "closed" else "")
    before = outside()
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/notebooks"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    networks = set(owner.stdout.readline().split())
    assert len(networks & namespaces()) == 3
    # Nothing of the hosts has a name out here, not even while they are up.
    assert outside() == before
    assert not keys_of(owner.pid)
    if end == "closed":
        owner.stdin.write("\n")
    else:
        owner.send_signal(signal.SIGTERM if end == "terminated" else signal.SIGKILL)
    owner.communicate()
    assert eventually(lambda: not networks & namespaces()), networks & namespaces()
    assert outside() == before
    assert not keys_of(owner.pid)


def test_two_sets_of_hosts_stand_side_by_side(hosts):
    with Hosts() as others:
        assert others.run("head", ["ssh", "na", "hostname"]).stdout == "na\n"
        with others.popen("na", SLEEP, stdout=subprocess.PIPE) as program:
            program.stdout.readline()
            assert not hosts.processes("na")
            program.kill()
        assert hosts.run("head", ["srun", "-N2", "true"], hosts.slurm).returncode == 0


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(means, "SEARCHED", "/nowhere")
    monkeypatch.setattr(means, "PROGRAMS", {"sshd": "openssh-server"})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert means.missing() == "hosts: no sshd (apt-get install openssh-server)"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert means.missing() == "hosts: not root"
