"""Lessons that know nothing of several hosts run on them unchanged: a profile alone says where their ranks are."""

from __future__ import annotations

import re
import sys

import pytest

from tests.hosts.everywhere import left
from tests.hosts.files import NODES
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


IN_A_JOB = ("slurm", "04-everyone")  # what the README's batch script runs, below
RUNS = [(kind, lesson) for kind in PROFILES for lesson in LESSONS if (kind, lesson) != IN_A_JOB]


def write_profile(hosts, node, name, settings):
    profile = hosts.path(node, f"{HOME}/.ipython/profile_{name}")
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipcluster_config.py").write_text(f"c = get_config()\n{settings}\n")


@pytest.mark.parametrize(("kind", "lesson"), RUNS)
def test_a_lesson_passes_on_two_hosts(hosts, kind, lesson):
    write_profile(hosts, "head", "far", PROFILES[kind])
    before = [hosts.bytes(name).sent for name in ("na", "nb")]
    own = hosts.mpi if kind == "mpi" else {}
    # Lesson 09 saves a checkpoint that every rank reads: temporary files are told to lie where all hosts see them.
    done = hosts.nbval(CHECKOUT / f"notebooks/{lesson}.ipynb", LABKIT_PROFILE="far", TMPDIR=SHARED, **own)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, first in zip(("na", "nb"), before, strict=True):
        assert hosts.bytes(name).sent > first + 1_000_000, f"no rank of this lesson was on {name}"
    assert eventually(lambda: not left(hosts)), left(hosts)


def test_the_readmes_batch_script_runs_a_lesson_on_its_jobs_nodes(hosts):
    """Word for word: `~/collectives-workbook` and its .venv lead to this checkout and this Python on both nodes."""
    script = re.search(r"```bash\n(#!/bin/bash\n.*?)```", (CHECKOUT / "README.md").read_text(), re.DOTALL)[1]
    assert f"notebooks/{IN_A_JOB[1]}.ipynb" in script
    name, settings = re.search(r"LABKIT_PROFILE=(\w+) +# (.*)", script).groups()
    for node in NODES:
        write_profile(hosts, node, name, settings)  # the hosts share no home, unlike a cluster's
        hosts.run(node, ["ln", "-sfn", str(CHECKOUT), f"{HOME}/collectives-workbook"])
        if not (CHECKOUT / ".venv").exists():
            hosts.run(node, ["ln", "-sfn", sys.prefix, f"{CHECKOUT}/.venv"])
    before = [hosts.bytes(node).sent for node in NODES]
    # What a job prints goes to a file in the folder that it was submitted from, as the first of its nodes sees it.
    done = hosts.run("head", ["sbatch", "--wait"], cwd=SHARED, input=script, timeout=600, check=False)
    (output,) = hosts.path("head", SHARED).glob("slurm-*.out")
    said = output.read_text()
    output.unlink()
    assert done.returncode == 0, done.stdout + done.stderr + said
    assert re.search(r"\n=+ \d+ passed[^\n]* =+\n$", said), said
    assert "failed" not in said.splitlines()[-1]
    for node, first in zip(NODES, before, strict=True):
        assert hosts.bytes(node).sent > first + 1_000_000, f"no rank of this lesson was on {node}"
    assert eventually(lambda: not left(hosts)), left(hosts)
