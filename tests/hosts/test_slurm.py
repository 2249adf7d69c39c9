"""Ranks on two hosts by Slurm: its queue, its allocations, its scancel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.everywhere import (
    ALIVE,
    Ends,
    Everywhere,
    Launcher,
    alive,
    begin,
    left,
    ranks_on_both,
    table,
    write_profile,
)
from tests.hosts.files import NODES
from tests.hosts.hosts import CHECKOUT, HOME, SHARED
from tests.live.processes import eventually


class Slurm(Launcher):
    arguments = "engines='slurm', nodes=2, per_node=2"
    by = "by Slurm"


class TestEverywhere(Slurm, Everywhere):
    pass


class TestEnds(Slurm, Ends):
    def mine(self, hosts):
        """Slurm waits for a node that it has lost, and ends what runs on the others without mercy: files may stay."""
        return [what for what in left(hosts) if "COMPLETING" not in what and ": /tmp/labkit-" not in what]


@pytest.fixture
def lab(notebook):
    """A notebook with a lab."""
    cell = Slurm().start(notebook)
    assert cell.status == "ok", cell
    return notebook


@pytest.fixture
def full(hosts):
    """Another job has both nodes; its number."""
    wait = ["srun", "--job-name=other", "-N2", "--exclusive", "sleep", "1000"]
    hosts.popen("head", wait, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert eventually(lambda: [job.state for job in hosts.queue()] == ["RUNNING"])
    return hosts.queue()[0].id


def waiting(hosts, notebook):
    """Start a lab that has to wait; the cell, once its job is in the queue."""
    pending = notebook.send(f"from labkit import start\nlab = start({Slurm.arguments})")
    assert eventually(lambda: [job.name for job in hosts.queue() if job.state == "PENDING"] == ["labkit"])
    return pending


def nothing_but(hosts, job):
    def there():
        mine = [what for what in left(hosts) if what.startswith(("job", "head:")) and "srun" not in what]
        return [what for what in mine if what != f"job {job} RUNNING"]

    assert eventually(lambda: not there(), 10), there()


def test_stop_takes_a_start_out_of_the_queue(hosts, notebook, full):
    pending = waiting(hosts, notebook)
    notebook.until_shown(pending, "waits in the queue (PENDING, Resources). Stop ends it.")
    notebook.interrupt()
    cell = notebook.wait(pending)
    assert "KeyboardInterrupt" in cell.error or "Stop" in cell.error, cell
    nothing_but(hosts, full)


def test_a_start_goes_on_once_its_turn_comes(hosts, notebook, full):
    pending = waiting(hosts, notebook)
    hosts.run("head", ["scancel", str(full)])
    cell = notebook.wait(pending)
    assert cell.status == "ok", cell
    assert [row.host for row in table(notebook)] == ["na", "na", "nb", "nb"]


def test_a_kernel_killed_while_its_job_waits_leaves_no_job(hosts, notebook, full):
    waiting(hosts, notebook)
    notebook.kill()
    nothing_but(hosts, full)


def test_a_job_cancelled_between_cells_is_said_to_be(hosts, lab):
    lab.value("%px keep = 100 + rank")
    hosts.run("head", ["scancel", str(hosts.queue()[0].id)])
    assert eventually(lambda: not hosts.queue())
    cell = lab.run(ALIVE)
    assert cell.error.startswith("HostError"), cell
    assert "CANCELLED" in cell.error, cell
    assert not hosts.queue()  # no other job was asked for behind the learner's back
    again = Slurm().start(lab)
    assert again.status == "ok", again
    lab.value("%px keep = 100 + rank")
    alive(lab)


def test_a_job_cancelled_during_a_cell_is_said_to_be(hosts, lab):
    pending = begin(hosts, lab, "if rank == 0:\n    while True: pass\ndist.barrier()")
    hosts.run("head", ["scancel", str(hosts.queue()[0].id)])
    cell = lab.wait(pending)
    assert cell.error.startswith("HostError"), cell
    assert "CANCELLED" in cell.error, cell
    lab.value("lab.stop()")
    assert eventually(lambda: not left(hosts), 10), left(hosts)


def test_more_nodes_than_there_are_is_said(hosts, notebook):
    cell = notebook.run("from labkit import start\nlab = start(engines='slurm', nodes=3)")
    assert cell.error.startswith("LabError: Slurm would never start this job (PartitionNodeLimit)"), cell
    assert eventually(lambda: not left(hosts), 10), left(hosts)


@pytest.fixture
def allocated(hosts):
    """Allocate nodes as salloc does, and give the variables that a program in there has."""

    def allocate(nodes):
        hosts.run("head", ["salloc", "--no-shell", f"-N{nodes}", "--cpus-per-task=2"])
        job = hosts.queue()[0]
        names = hosts.run("head", ["squeue", "-h", "-j", str(job.id), "-o", "%N"]).stdout.strip()
        return {"SLURM_JOB_ID": str(job.id), "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_JOB_NODELIST": names}

    return allocate


def test_inside_an_allocation_its_nodes_are_used_and_it_stays(hosts, allocated):
    variables = allocated(2)
    with Slurm().open(hosts, **variables) as notebook:
        cell = notebook.run("from labkit import start\nlab = start(engines='slurm', per_node=2)")
        assert cell.status == "ok", cell
        assert [row.host for row in table(notebook)] == ["na", "na", "nb", "nb"]
        assert [job.id for job in hosts.queue()] == [int(variables["SLURM_JOB_ID"])]
        notebook.value("lab.stop()")
        assert eventually(lambda: left(hosts) == [f"job {variables['SLURM_JOB_ID']} RUNNING"], 10), left(hosts)


def test_an_allocation_with_fewer_nodes_than_asked_for_is_said(hosts, allocated):
    variables = allocated(1)
    with Slurm().open(hosts, **variables) as notebook:
        cell = Slurm().start(notebook)
        assert cell.error.startswith("LabError"), cell
        assert "1 node" in cell.error or "one node" in cell.error, cell
        assert eventually(lambda: left(hosts) == [f"job {variables['SLURM_JOB_ID']} RUNNING"], 10), left(hosts)


def test_a_node_that_is_down_is_waited_for_and_stop_ends_that(hosts, notebook):
    hosts.kill("nb")
    hosts.run("head", ["scontrol", "update", "nodename=nb", "state=down", "reason=test"])
    pending = waiting(hosts, notebook)
    notebook.interrupt()
    assert notebook.wait(pending).status == "error"
    assert eventually(lambda: not left(hosts), 10), left(hosts)


def test_the_books_batch_script_runs_a_lesson_on_its_jobs_nodes(hosts):
    """Word for word: `~/collectives-workbook` and its .venv lead to this checkout and this Python on both nodes."""
    page = (CHECKOUT / "book" / "launchers.md").read_text()
    script = re.search(r"```bash\n(#!/bin/bash\n.*?)```", page, re.DOTALL)[1]
    name, settings = re.search(r"LABKIT_PROFILE=(\w+) +# (.*)", script).groups()
    for node in NODES:
        write_profile(hosts, node, name, settings)  # the hosts share no home, unlike a cluster's
        workbook = Path(HOME) / "collectives-workbook"
        hosts.run(node, ["mkdir", "-p", str(workbook)])
        files = [str(path) for path in CHECKOUT.iterdir() if path.name != ".venv"]  # of whichever Python that is
        hosts.run(node, ["ln", "-sfn", "-t", str(workbook), *files])
        hosts.run(node, ["ln", "-sfn", sys.prefix, str(workbook / ".venv")])
    with ranks_on_both(hosts):
        # What a job prints goes to a file in the folder that it was submitted from, as the first of its nodes sees it.
        done = hosts.run("head", ["sbatch", "--wait"], cwd=SHARED, input=script, timeout=600, check=False)
        (output,) = hosts.path("head", SHARED).glob("slurm-*.out")
        said = output.read_text()
        output.unlink()
        assert done.returncode == 0, done.stdout + done.stderr + said
        assert re.search(r"\n=+ \d+ passed[^\n]* =+\n$", said), said
        assert "failed" not in said.splitlines()[-1]
