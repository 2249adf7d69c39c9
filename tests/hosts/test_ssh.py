"""Ranks on two hosts over ssh: names, keys, and what another host may lack."""

from __future__ import annotations

import sys

import pytest

from tests.hosts.everywhere import (
    ALIVE,
    GONE,
    Ends,
    Everywhere,
    Launcher,
    begin,
    left,
    lesson_passes,
    nothing_is_left,
    stop_agent,
)
from tests.hosts.hosts import CHECKOUT, HOME, SHARED
from tests.live.processes import eventually


class Ssh(Launcher):
    arguments = "engines='ssh', hosts={'na': 2, 'nb': 2}"
    by = "over ssh"


class TestEverywhere(Ssh, Everywhere):
    pass


COMPUTING = {
    "waiting and computing": "if rank == 0:\n    while True: pass\ndist.barrier()",
    "all computing": "while True: pass",
    "sleeping in C": "import ctypes\nctypes.PyDLL(None).sleep(1000)",
}


class TestEnds(Ssh, Ends):
    def test_a_kernel_that_is_killed_leaves_nothing(self, hosts, lab):
        lab.kill()
        nothing_is_left(hosts)

    @pytest.mark.parametrize("code", COMPUTING.values(), ids=COMPUTING)
    def test_a_kernel_killed_during_a_cell_leaves_nothing(self, hosts, lab, code):
        begin(hosts, lab, code)
        lab.kill()
        nothing_is_left(hosts)

    def test_a_restart_leaves_nothing_and_a_new_lab_starts(self, hosts, lab):
        lab.restart()
        nothing_is_left(hosts)
        assert self.start(lab).status == "ok"

    def test_a_kernel_that_shuts_down_leaves_nothing(self, hosts, lab):
        lab.close(now=False)
        nothing_is_left(hosts)

    def test_a_host_that_is_lost_is_named_and_the_rest_ends(self, hosts, lab):
        lab.value("%px keep = 100 + rank")
        hosts.kill("nb")
        cell = lab.run(ALIVE)
        assert "nb" in cell.error + cell.stdout, cell
        lab.value("lab.stop()")
        assert eventually(lambda: not self.mine(hosts), GONE), self.mine(hosts)

    @pytest.mark.parametrize("moment", ["Importing torch on", "Starting 4 ranks"])
    def test_stop_as_ranks_come_up_leaves_nothing(self, hosts, notebook, moment):
        self.stopped_while(hosts, notebook, moment)

    def test_a_kernel_killed_while_a_hosts_process_stands_still_leaves_nothing(self, hosts, lab):
        stop_agent(hosts, "nb")
        lab.kill()
        nothing_is_left(hosts)


def test_a_lesson_passes(hosts):
    """It saves a checkpoint that every rank reads: temporary files are told to lie where all hosts see them."""
    settings = 'c.Cluster.engine_launcher_class = "ssh"\nc.SSHEngineSetLauncher.engines = {"na": 2, "nb": 2}'
    lesson_passes(hosts, "13g-reshard-a-checkpoint", settings, TMPDIR=SHARED)


@pytest.fixture
def other(hosts):
    """nb, which a test makes a different host; afterwards it is booted anew."""
    yield lambda place: hosts.path("nb", place)
    hosts.kill("nb")


def refused(hosts, notebook):
    """A start that fails, with one clear error, and leaves nothing."""
    cell = Ssh().start(notebook)
    assert cell.error.startswith("LabError"), cell
    assert "nb" in cell.error, cell
    assert eventually(lambda: not left(hosts), 10), left(hosts)
    return cell.error


def test_a_name_that_no_host_has_is_said(hosts, notebook):
    cell = notebook.run("from labkit import start\nlab = start(engines='ssh', hosts={'na': 2, 'nowhere': 2})")
    assert cell.error.startswith("LabError"), cell
    assert "'nowhere'" in cell.error
    assert eventually(lambda: not left(hosts), 10), left(hosts)


def test_a_host_that_refuses_the_key_is_said(hosts, notebook, other):
    other("/run/host/authorized_keys").write_text("")
    assert "Permission denied" in refused(hosts, notebook)


def test_a_host_whose_disk_is_full_is_said(hosts, notebook, other):
    hosts.run("nb", ["mount", "-o", "remount,size=1m", "/tmp"])
    other("/tmp/full").write_bytes(bytes(1_000_000))
    assert Ssh().start(notebook).error == (
        "LabError: No process came up on nb: The disk under /tmp has 0 MiB left and a lab needs 32 MiB. "
        "Free some room there, or set TMPDIR to a directory on another disk, and start again."
    )
    assert eventually(lambda: left(hosts) == ["nb: /tmp/full"], 10), left(hosts)


def test_a_host_without_the_python_is_said(hosts, notebook, other):
    other(f"{sys.prefix}/bin/python").unlink()
    assert sys.executable in refused(hosts, notebook)


def test_a_host_whose_python_lacks_the_packages_is_said(hosts, notebook, other):
    python = other(f"{sys.prefix}/bin/python")
    python.unlink()
    python.write_text('#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
    python.chmod(0o755)
    assert "No module named" in refused(hosts, notebook)


def test_a_host_without_the_workbook_is_said(hosts, notebook, other):
    init = other(f"{CHECKOUT}/labkit/__init__.py")
    init.write_text("raise ModuleNotFoundError(\"No module named 'labkit'\")\n")
    assert "labkit" in refused(hosts, notebook)


@pytest.mark.parametrize("package", ["torch", "ipyparallel"])
def test_a_host_with_another_version_is_said(hosts, notebook, other, package):
    site = next(path for path in sys.path if path.endswith("site-packages"))
    metadata = next(other(site).glob(f"{package}-*.dist-info")) / "METADATA"
    lines = metadata.read_text().splitlines()
    old = next(line for line in lines if line.startswith("Version: "))
    metadata.write_text("\n".join(["Version: 1.2.3" if line == old else line for line in lines]))
    version = other(f"{site}/{package}/{'version' if package == 'torch' else '_version'}.py")
    version.write_text(version.read_text() + "\n__version__ = '1.2.3'\n")
    said = refused(hosts, notebook)
    assert package in said
    assert "1.2.3" in said


def test_a_home_that_is_not_writable_and_not_shared_is_no_hindrance(hosts, notebook):
    hosts.run("nb", ["mount", "-o", "remount,ro", HOME])
    try:
        cell = Ssh().start(notebook)
        assert cell.status == "ok", cell
    finally:
        hosts.run("nb", ["mount", "-o", "remount,rw", HOME])
