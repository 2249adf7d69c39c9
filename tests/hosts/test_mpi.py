"""Ranks on two hosts by MPI: Open MPI's mpiexec, and that of the environment's own mpich."""

from __future__ import annotations

import os
import signal

from tests.hosts.everywhere import ALIVE, Ends, Everywhere, Launcher, alive, left, lesson_passes, states, table
from tests.hosts.means import MPIEXEC
from tests.live.processes import eventually


class Mpi(Launcher):
    arguments = "engines='mpi', hosts={'na': 2, 'nb': 2}"
    by = "by mpiexec"

    def environment(self, hosts):
        return {**hosts.mpi, "PATH": f"/usr/bin:{hosts.environment()['PATH']}"}  # not the environment's own mpiexec


class TestEverywhere(Mpi, Everywhere):
    pass


class TestEnds(Mpi, Ends):
    def mine(self, hosts):
        """An mpiexec that waits for a host it has lost is killed in the end, and its own folder stays."""
        return [what for what in left(hosts) if "/tmp/ompi." not in what]


def test_a_lesson_passes(hosts):
    settings = (
        'c.Cluster.engine_launcher_class = "mpi"\nc.Lab.hosts = {"na": 2, "nb": 2}\n'
        f'c.MPILauncher.mpi_cmd = ["{MPIEXEC}"]'
    )
    lesson_passes(hosts, "00-start-here", settings, **hosts.mpi)


def test_a_name_that_no_host_has_is_said(hosts):
    with Mpi().open(hosts) as notebook:
        cell = notebook.run("from labkit import start\nlab = start(engines='mpi', hosts={'na': 2, 'nowhere': 2})")
        assert cell.error.startswith("LabError"), cell
        assert "'nowhere'" in cell.error
        assert eventually(lambda: not left(hosts), 10), left(hosts)


def test_a_machine_without_mpiexec_is_said(hosts):
    with Mpi().open(hosts, PATH="/nowhere") as notebook:
        cell = Mpi().start(notebook)
        assert cell.error.startswith("LabError: mpiexec cannot be run here"), cell
        assert eventually(lambda: not left(hosts), 10), left(hosts)


def test_mpich_starts_ranks_as_well_and_a_host_that_is_out_of_reach_is_said(hosts):
    with Launcher().open(hosts) as notebook:  # the environment's own mpiexec comes first in PATH
        cell = Mpi().start(notebook)
        assert cell.status == "ok", cell
        assert [row.host for row in table(notebook)] == ["na", "na", "nb", "nb"]
        notebook.value("%px keep = 100 + rank")
        os.kill(hosts.outside(*table(notebook)[3]), signal.SIGKILL)
        assert eventually(lambda: states(notebook)[3] == "dead")
        alive(notebook, (3,))
        mpichs = notebook.run("%%px\nimport os\n[n for n in os.environ if n.startswith(('HYDI_', 'HYDRA_', 'PMI_'))]")
        assert mpichs.stdout == "ranks 0–3 │ []\n", mpichs
        notebook.value("lab.stop()")
        hosts.cut("nb")
        cell = Mpi().start(notebook)
        hosts.mend("nb")
        assert cell.error.startswith("LabError"), cell
        assert "nb" in cell.error
        assert eventually(lambda: not left(hosts), 10), left(hosts)


def test_an_mpiexec_that_is_killed_is_told_and_a_new_start_works(hosts):
    with Mpi().open(hosts) as notebook:
        assert Mpi().start(notebook).status == "ok"
        mpiexec = next(p.pid for p in hosts.processes("head") if p.command.startswith("mpiexec"))
        os.kill(hosts.outside("head", mpiexec), signal.SIGKILL)
        cell = notebook.run(ALIVE)
        assert cell.status == "ok" or cell.error.startswith("HostError: mpiexec has ended"), cell
        notebook.value("lab.stop()")
        assert Mpi().start(notebook).status == "ok"
        notebook.value("lab.stop()")
        assert eventually(lambda: not TestEnds().mine(hosts), 10), left(hosts)  # a killed mpiexec clears nothing away
