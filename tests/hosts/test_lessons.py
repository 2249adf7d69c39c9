"""Lessons that know nothing of several hosts run on them unchanged: a profile alone says where their ranks are."""

from __future__ import annotations

import pytest

from tests.hosts.everywhere import left
from tests.hosts.hosts import CHECKOUT, HOME, SHARED
from tests.hosts.means import MPIEXEC
from tests.live.processes import eventually

LESSONS = ("00-start-here", "04-everyone", "09-ddp-by-hand")
PROFILES = {
    "ssh": 'c.Cluster.engine_launcher_class = "ssh"\nc.SSHEngineSetLauncher.engines = {"na": 2, "nb": 2}',
    "slurm": 'c.Cluster.engine_launcher_class = "slurm"\nc.Lab.nodes = 2\nc.Lab.per_node = 2',
    "mpi": (
        'c.Cluster.engine_launcher_class = "mpi"\nc.Lab.hosts = {"na": 2, "nb": 2}\n'
        f'c.MPILauncher.mpi_cmd = ["{MPIEXEC}"]'
    ),
}


@pytest.mark.parametrize("lesson", LESSONS)
@pytest.mark.parametrize("kind", PROFILES)
def test_a_lesson_passes_on_two_hosts(hosts, kind, lesson):
    profile = hosts.path("head", f"{HOME}/.ipython/profile_far")
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipcluster_config.py").write_text(f"c = get_config()\n{PROFILES[kind]}\n")
    before = [hosts.bytes(name).sent for name in ("na", "nb")]
    own = hosts.mpi if kind == "mpi" else {}
    # Lesson 09 saves a checkpoint that every rank reads: temporary files are told to lie where all hosts see them.
    done = hosts.nbval(CHECKOUT / f"notebooks/{lesson}.ipynb", LABKIT_PROFILE="far", TMPDIR=SHARED, **own)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, first in zip(("na", "nb"), before, strict=True):
        assert hosts.bytes(name).sent > first + 1_000_000, f"no rank of this lesson was on {name}"
    assert eventually(lambda: not left(hosts)), left(hosts)
