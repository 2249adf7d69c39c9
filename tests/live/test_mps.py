"""Ranks that share a GPU, with stand-ins for it and for NVIDIA's control program: together, or by turns; healed.

What decides on it is labkit.cluster.shared_gpu.
"""

from __future__ import annotations

import os
import signal

import pytest

import labkit
from labkit import CellError
from labkit.cluster import memory_check, mps
from labkit.cluster.process import Process
from labkit.faces import current_lab
from labkit.floor import time_limits
from tests import standin_mps
from tests.live.notebook import Notebook
from tests.live.processes import Trace, carrying, eventually

SUM = "x = torch.ones(1)\ndist.all_reduce(x)\nint(x)"
TOGETHER = "They compute at the same time, under this lab's own daemon of NVIDIA's Multi-Process Service (MPS)."
TURNS = (
    "\nThey take turns on the GPU, which makes small messages slow: nvidia-cuda-mps-control failed (Cannot create the "
    "log directory: Permission denied)."
)
HOW = "import os\nfrom tests.live import standin_gpu as gpu\nprint(gpu.way())"


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A machine with one GPU and the control program; what became of its daemons and of the ranks' kernels."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", standin_mps.installed(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("STANDIN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("LABKIT_PRELOAD", "tests.live.standin_gpu")
    monkeypatch.setattr(memory_check, "CUDA", memory_check.RANK)  # what CUDA takes is not taken here

    def told(kind):
        lines = (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []
        return [line.split()[1:] for line in lines if line.split()[0] == kind]

    return told


def pids(lab):
    return [m.pid for m in lab._engines.members]


def daemon(trace, log):
    """The process of the daemon that was begun last."""
    (process,) = (p for p in carrying(trace.tag) if str(p.pid) == log("begun")[-1][0])
    return process


def test_ranks_that_share_a_gpu_run_under_a_daemon_which_ends_with_the_lab(log):
    with labkit.start(3) as lab:
        trace = Trace.of(lab._address)
        assert str(current_lab.started()).startswith("3 ranks with NCCL, which share 1 GPU for teaching: ")
        assert str(current_lab.started()).endswith(f"\n{TOGETHER}")
        assert repr(lab).count("device=cuda:0 (shared by 3 ranks under MPS)") == 3
        assert lab.run(SUM) == ["3"] * 3
        assert lab.run(HOW) == ["sockets\n"] * 3
        given = lab.pull(f"[os.environ[n] for n in {mps.NAMES}]")
        assert given == [[str(trace.path / "mps"), str(trace.path / "mps-log"), "32"]] * 3
        assert {pid for (pid,) in log("client")} == {str(pid) for pid in pids(lab)}
    assert [len(log(what)) for what in ("begun", "quit", "ended")] == [1, 1, 1]
    assert eventually(trace.gone), trace.left()


def test_the_daemon_ends_with_a_kernel_that_is_killed(log):
    with Notebook() as notebook:
        notebook.value(
            "from labkit.cluster import memory_check\nmemory_check.CUDA = memory_check.RANK\nfrom labkit import start"
        )
        trace = Trace.of(notebook.value("lab = start(2)\nlab._address").strip("'"))
        assert len(log("client")) == 2
        notebook.kill()
        assert eventually(trace.gone), trace.left()
    assert [len(log(what)) for what in ("begun", "quit", "ended")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("hangs", "refuses", "way"),
    [("direct", "", "sockets"), ("", "direct sockets", "turns")],
)
def test_each_way_of_sharing_is_tried_where_the_one_before_fails(log, monkeypatch, hangs, refuses, way):
    """Too many channels for the GPU hang in the first collective; NCCL may also refuse."""
    monkeypatch.setattr(time_limits, "RANKS_JOIN", 20.0)
    monkeypatch.setenv("STANDIN_NCCL", "2.30.7")
    monkeypatch.setenv("STANDIN_HANGS", hangs)
    monkeypatch.setenv("STANDIN_REFUSES", refuses)
    with labkit.start(2) as lab:
        assert lab.run(HOW) == [f"{way}\n"] * 2
        assert lab.run(SUM) == ["2"] * 2
        said = str(current_lab.started())
        assert (TOGETHER in said) is (way != "turns")
        assert ("NCCL could not join them under an MPS daemon: ranks 0, 1: " in said) is (way == "turns")
        assert len(log("begun")) == 2


def test_where_nccl_joins_nobody_the_ranks_are_cpu_ranks_without_a_daemon(log, monkeypatch):
    monkeypatch.setenv("STANDIN_REFUSES", "direct sockets turns")
    with labkit.start(2) as lab:
        assert lab.backend == "gloo"
        assert "MPS" not in str(current_lab.started())
        assert len(log("begun")) == len(log("ended"))


def test_where_the_daemon_has_died_a_new_one_is_begun_and_all_ranks_with_it(log, capsys):
    with labkit.start(2) as lab:
        trace = Trace.of(lab._address)
        lab.run("keep = rank")
        before = pids(lab)
        lab.heal()
        assert pids(lab) == before
        daemon(trace, log).kill()
        assert eventually(lambda: not lab._engines.processes.mps.answers())
        capsys.readouterr()
        lab.heal()
        said = capsys.readouterr().out
        assert said.startswith("The MPS daemon under which the ranks share the GPU had died; run the cells that make ")
        assert "ranks 0, 1 were started anew, " in said
        assert not set(before) & set(pids(lab))
        assert lab.run(SUM) == ["2"] * 2
        assert {pid for (pid,) in log("client")[2:]} == {str(pid) for pid in pids(lab)}
        assert repr(lab).count("under MPS") == 2


FAULT = "from tests.live import standin_gpu as gpu\nkeep = rank\nif rank == 1: gpu.fault()"


@pytest.mark.parametrize("together", [True, False])
def test_a_rank_that_loses_the_gpu_is_replaced_and_under_mps_all_are(log, monkeypatch, together):
    monkeypatch.setenv("STANDIN_NCCL", "2.30.7")
    monkeypatch.setenv("STANDIN_MPS", "" if together else "fails")
    with labkit.start(3) as lab:
        assert lab.run(HOW) == ["direct\n" if together else "turns\n"] * 3
        assert (TURNS in str(current_lab.started())) is not together
        assert repr(lab).count("cuda:0 (shared by 3 ranks by turns)") == 3 * (not together)
        before = pids(lab)
        with pytest.raises(CellError) as caught:
            lab.run(FAULT)
        assert str(caught.value) == "rank 1: AcceleratorError: CUDA error: device-side assert triggered"
        why, anew, _ = caught.value.notes
        who = "ranks 0–2" if together else "rank 1"
        of_one = "rank 1 lost the GPU: after such an error every CUDA call of the process fails"
        of_all = "such an error of one rank ends the use of the GPU for all ranks that share it under MPS"
        assert why == f"{of_all if together else of_one}; run the cells that make your variables again"
        assert anew.startswith(f"{who} w")
        assert "keep" in anew
        kept = [old == new for old, new in zip(before, pids(lab), strict=True)]
        assert kept == ([False] * 3 if together else [True, False, True])
        assert lab.run(SUM) == ["3"] * 3
        assert len(log("begun")) == 2 * together


def test_before_a_rank_is_ended_all_leave_their_group_and_their_kernels_are_over(log, monkeypatch):
    """A client that ends with work on the GPU can leave the others of its daemon hanging."""
    over = []
    really = Process.send

    def send(process, sig):
        if sig == signal.SIGKILL:
            over.append(sorted(int(pid) for (pid,) in log("over")))
        really(process, sig)

    with labkit.start(3, timeout=2) as lab:
        lab.run("import os, signal\nfrom tests.live import standin_gpu as gpu")
        first, _, last = pids(lab)
        monkeypatch.setattr(Process, "send", send)
        with pytest.raises(CellError, match=r"rank 1 stood still \(SIGSTOP\) and was ended"):
            lab.run("gpu.launch()\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ndist.barrier()")
        assert over == [sorted([first, last])]
        assert lab.run(SUM) == ["3"] * 3
        assert pids(lab)[0] == first
        assert pids(lab)[2] == last
        assert len(log("begun")) == 1, "a rank is replaced under the same daemon"
