"""A lab that has no room in memory is not started, and says how much is missing and what to do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from labkit import LabError
from labkit.cluster import cgroups, room

MiB = room.MiB


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
    room.check(4)


def test_a_machine_without_room_says_what_is_there_what_is_needed_and_what_to_do(machine, tmp_path):
    machine(tmp_path, 439)
    with pytest.raises(LabError) as refused:
        room.check(4)
    assert str(refused.value) == (
        "This machine has 439 MiB of memory left, and 4 ranks need about 440 MiB. "
        "Close other notebooks (Kernel, Shut Down Kernel), or call start(2)."
    )


def test_where_not_even_two_ranks_have_room_fewer_or_none_are_proposed(machine, tmp_path):
    machine(tmp_path / "one", 300)
    with pytest.raises(LabError, match=r"or call start\(1\)\.$"):
        room.check(4)
    machine(tmp_path / "none", 100)
    with pytest.raises(LabError, match=r"and call start\(\) again\.$"):
        room.check(1)


def gpus(monkeypatch, *free):
    """A machine with GPUs that have so many MiB free, or with no nvidia-smi."""

    def asked(command, **_):
        if not free:
            raise FileNotFoundError
        return SimpleNamespace(returncode=0, stdout="".join(f"{mib}\n" for mib in free))

    monkeypatch.setattr(room.subprocess, "run", asked)


def test_ranks_on_gpus_need_more_of_the_hosts_memory(machine, tmp_path, monkeypatch):
    gpus(monkeypatch)
    machine(tmp_path, 2292)
    room.check_gpu(4, 1)
    machine(tmp_path / "less", 2291)
    with pytest.raises(LabError, match=r"4 ranks need about 2\.238 GiB.* or call start\(2\)\.$"):
        room.check_gpu(4, 1)


def test_a_gpu_without_room_for_the_ranks_that_share_it_says_what_to_do(machine, tmp_path, monkeypatch):
    machine(tmp_path, 99999)
    gpus(monkeypatch, 4312)
    room.check_gpu(4, 1)
    gpus(monkeypatch, 4311)
    with pytest.raises(LabError) as refused:
        room.check_gpu(4, 1)
    assert str(refused.value) == (
        "A GPU has 4.21 GiB of its memory left, and the 4 ranks that share it need about 4.211 GiB before they hold "
        'anything. Call start(3), or start(backend="gloo") for CPU ranks.'
    )
    gpus(monkeypatch, 20000, 1000)
    room.check_gpu(2, 2)
    with pytest.raises(
        LabError, match=r'End what else runs there \(nvidia-smi names it\), or call start\(backend="gloo"\) '
    ):
        room.check_gpu(4, 2)
    gpus(monkeypatch, "[N/A]")
    room.check_gpu(4, 1)


VERSION_2 = "0::/user/learner\n"
VERSION_1 = "5:cpu:/\n4:cpuacct,memory:/docker/abc\n"


def test_a_containers_limit_counts_and_what_it_caches_is_free(machine, tmp_path):
    used = {"user__memory_dot_max": 1000 * MiB, "user__memory_dot_current": 900 * MiB}
    machine(tmp_path / "full", 9000, VERSION_2, **used)
    with pytest.raises(LabError, match="This notebook's container has 100 MiB of memory left"):
        room.check(4)
    cached = f"file 1\ninactive_file {400 * MiB}"
    machine(tmp_path / "cached", 9000, VERSION_2, **used, user__memory_dot_stat=cached)
    room.check(4)


def test_the_narrowest_of_several_limits_counts_and_max_is_none(machine, tmp_path):
    files = {
        "user__memory_dot_max": 9000 * MiB,
        "user__memory_dot_current": 0,
        "user__learner__memory_dot_max": "max",
        "user__learner__memory_dot_current": 0,
    }
    machine(tmp_path / "a", 9000, VERSION_2, **files)
    room.check(4)
    files["user__learner__memory_dot_max"] = 256 * MiB
    machine(tmp_path / "b", 9000, VERSION_2, **files)
    with pytest.raises(LabError, match="container has 256 MiB"):
        room.check(4)


def test_the_limit_of_control_groups_of_version_1_counts_also_where_a_container_sees_only_its_own(machine, tmp_path):
    at_the_top = {
        "memory__memory_dot_limit_in_bytes": 300 * MiB,
        "memory__memory_dot_usage_in_bytes": 200 * MiB,
    }
    machine(tmp_path, 9000, VERSION_1, **at_the_top)
    with pytest.raises(LabError, match="container has 100 MiB"):
        room.check(2)


def test_where_nobody_says_how_much_memory_there_is_a_lab_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    room.check(16)
