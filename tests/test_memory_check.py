"""A lab that has no room is not started, and says how much is missing and what to do."""

from __future__ import annotations

import resource
import subprocess
from types import SimpleNamespace

import pytest

from labkit import LabError
from labkit.cluster import cgroups, memory_check, process_limit

MiB = memory_check.MiB


@pytest.fixture
def machine(monkeypatch):
    def made(*args, **kwargs):
        monkeypatch.setattr(cgroups, "ROOT", linux(*args, **kwargs))

    return made


def linux(tmp_path, available, cgroup="", **files):
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available * 1024} kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return tmp_path


def test_where_there_is_room_nothing_is_said(machine, tmp_path):
    machine(tmp_path, 440)
    memory_check.check(4)


def test_a_machine_without_room_says_what_is_there_what_is_needed_and_what_to_do(machine, tmp_path):
    machine(tmp_path, 439)
    with pytest.raises(LabError) as refused:
        memory_check.check(4)
    assert str(refused.value) == (
        "This machine has 439 MiB of memory left, and 4 ranks need about 440 MiB. "
        "Close other notebooks (Kernel, Shut Down Kernel), or call start(2)."
    )


def test_where_not_even_two_ranks_have_room_fewer_or_none_are_proposed(machine, tmp_path):
    machine(tmp_path / "one", 300)
    with pytest.raises(LabError, match=r"or call start\(1\)\.$"):
        memory_check.check(4)
    machine(tmp_path / "none", 100)
    with pytest.raises(LabError, match=r"and call start\(\) again\.$"):
        memory_check.check(1)


def gpus(monkeypatch, *free):
    """A machine with GPUs that have so many MiB free, or with no nvidia-smi."""

    def asked(command, **_):
        if not free:
            raise FileNotFoundError
        return SimpleNamespace(returncode=0, stdout="".join(f"{mib}\n" for mib in free))

    monkeypatch.setattr(memory_check.subprocess, "run", asked)


def test_ranks_on_gpus_need_more_of_the_hosts_memory(machine, tmp_path, monkeypatch):
    gpus(monkeypatch)
    machine(tmp_path, 2292)
    memory_check.check_gpu(4, 1)
    machine(tmp_path / "less", 2291)
    with pytest.raises(LabError, match=r"4 ranks need about 2\.238 GiB.* or call start\(2\)\.$"):
        memory_check.check_gpu(4, 1)


def test_a_gpu_without_room_for_the_ranks_that_share_it_says_what_to_do(machine, tmp_path, monkeypatch):
    machine(tmp_path, 99999)
    gpus(monkeypatch, 4312)
    memory_check.check_gpu(4, 1)
    gpus(monkeypatch, 4311)
    with pytest.raises(LabError) as refused:
        memory_check.check_gpu(4, 1)
    assert str(refused.value) == (
        "A GPU has 4.21 GiB of its memory left, and the 4 ranks that share it need about 4.211 GiB before they hold "
        'anything. Call start(3), or start(backend="gloo") for CPU ranks.'
    )
    gpus(monkeypatch, 20000, 1000)
    memory_check.check_gpu(2, 2)
    with pytest.raises(
        LabError, match=r'End what else runs there \(nvidia-smi names it\), or call start\(backend="gloo"\) '
    ):
        memory_check.check_gpu(4, 2)
    gpus(monkeypatch, "[N/A]")
    memory_check.check_gpu(4, 1)


VERSION_2 = "0::/user/learner\n"
VERSION_1 = "5:cpu:/\n4:cpuacct,memory:/docker/abc\n"


def test_a_containers_limit_counts_and_what_it_caches_is_free(machine, tmp_path):
    used = {"user__memory_dot_max": 1000 * MiB, "user__memory_dot_current": 900 * MiB}
    machine(tmp_path / "full", 9000, VERSION_2, **used)
    with pytest.raises(LabError, match="This notebook's container has 100 MiB of memory left"):
        memory_check.check(4)
    cached = f"file 1\ninactive_file {400 * MiB}"
    machine(tmp_path / "cached", 9000, VERSION_2, **used, user__memory_dot_stat=cached)
    memory_check.check(4)


def test_the_narrowest_of_several_limits_counts_and_max_is_none(machine, tmp_path):
    files = {
        "user__memory_dot_max": 9000 * MiB,
        "user__memory_dot_current": 0,
        "user__learner__memory_dot_max": "max",
        "user__learner__memory_dot_current": 0,
    }
    machine(tmp_path / "a", 9000, VERSION_2, **files)
    memory_check.check(4)
    files["user__learner__memory_dot_max"] = 256 * MiB
    machine(tmp_path / "b", 9000, VERSION_2, **files)
    with pytest.raises(LabError, match="container has 256 MiB"):
        memory_check.check(4)


def test_the_limit_of_control_groups_of_version_1_counts_also_where_a_container_sees_only_its_own(machine, tmp_path):
    at_the_top = {
        "memory__memory_dot_limit_in_bytes": 300 * MiB,
        "memory__memory_dot_usage_in_bytes": 200 * MiB,
    }
    machine(tmp_path, 9000, VERSION_1, **at_the_top)
    with pytest.raises(LabError, match="container has 100 MiB"):
        memory_check.check(2)


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        (VERSION_2, {"user__cpu_dot_max": "150000 100000", "user__learner__cpu_dot_max": "max 100000"}, 1.5),
        (VERSION_2, {"user__cpu_dot_max": "max 100000"}, None),
        (VERSION_2, {}, None),
        ("4:cpu,cpuacct:/a\n", {"cpu__cpu_dot_cfs_quota_us": 50000, "cpu__cpu_dot_cfs_period_us": 100000}, 0.5),
        ("4:cpu,cpuacct:/a\n", {"cpu__cpu_dot_cfs_quota_us": -1, "cpu__cpu_dot_cfs_period_us": 100000}, None),
    ],
)
def test_a_containers_share_of_the_cores_is_read(machine, tmp_path, cgroup, files, cores):
    machine(tmp_path, 9000, cgroup, **files)
    assert cgroups.cores() == cores


def test_where_nvidia_smi_tells_nothing_it_is_said_why(monkeypatch):
    def asked(command, **_):
        raise error

    monkeypatch.setattr(memory_check.subprocess, "run", asked)
    error = FileNotFoundError()
    assert memory_check.ask_gpus("name") == ([], "nvidia-smi is not on this machine")
    error = subprocess.TimeoutExpired("nvidia-smi", 10)
    assert memory_check.ask_gpus("name") == ([], "nvidia-smi did not answer in 10 s")
    said = SimpleNamespace(returncode=9, stdout="NVIDIA-SMI has failed.\nMake sure …\n", stderr="")
    monkeypatch.setattr(memory_check.subprocess, "run", lambda *_, **__: said)
    assert memory_check.ask_gpus("name") == ([], "nvidia-smi failed: NVIDIA-SMI has failed")


def test_where_nobody_says_how_much_memory_there_is_a_lab_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    memory_check.check(16)


@pytest.mark.parametrize(
    ("cgroup", "folder"),
    [
        (VERSION_2, "user__learner__"),
        ("8:pids:/user/learner\n", "pids__user__learner__"),
        ("8:pids:/docker/a\n", "pids__"),
    ],
)
def test_a_containers_limit_of_processes_and_threads_counts(machine, tmp_path, cgroup, folder):
    files = {f"{folder}pids_dot_max": 112, f"{folder}pids_dot_current": 16}
    machine(tmp_path / "enough", 9000, cgroup, **files)
    memory_check.check(4)
    files[f"{folder}pids_dot_max"] = 111
    machine(tmp_path / "less", 9000, cgroup, **files)
    with pytest.raises(LabError) as refused:
        memory_check.check(4)
    assert str(refused.value) == (
        "This notebook's container may have 111 processes and threads, and 95 of them are left. "
        "4 ranks need about 96. "
        "Close other notebooks (Kernel, Shut Down Kernel), have the limit raised (pids.max), or call start(2)."
    )
    files[f"{folder}pids_dot_max"] = "max"
    machine(tmp_path / "no limit", 9000, cgroup, **files)
    memory_check.check(16)


def test_a_users_limit_of_processes_and_threads_counts_where_it_holds(monkeypatch):
    monkeypatch.setattr(process_limit.os, "getuid", lambda: 12345)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (50, 50))
    monkeypatch.setattr(process_limit, "EXEMPT", 0)
    with pytest.raises(
        LabError, match=r"^This user may have 50 processes and threads, .*\(ulimit -u\), or call start\(1\)"
    ):
        process_limit.check(4)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    process_limit.check(4)


def test_few_open_files_are_raised_as_far_as_that_is_allowed_and_needed(machine, tmp_path, monkeypatch):
    machine(tmp_path, 9000)
    limit = [(64, 181)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limit[0])
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limit.insert(0, given))
    with pytest.raises(LabError) as refused:
        memory_check.check(4)
    assert str(refused.value) == (
        "A process may have no more than 181 files open here, and one of a lab with 4 ranks needs about 182. "
        "Have that limit raised (ulimit -n), and start the notebook again."
    )
    limit[:] = [(64, 4096)]
    memory_check.check(4)
    assert limit == [(182, 4096), (64, 4096)]
    memory_check.check(2)
    assert len(limit) == 2
