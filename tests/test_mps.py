"""A run's own MPS daemon, with a stand-in for NVIDIA's control program: it begins, it answers, it ends with the run."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from labkit.cluster import mps, reaper
from labkit.cluster.rundir import RunDir, choose_rundir, start_reaper
from labkit.floor import time_limits
from tests import standin_mps
from tests.live.processes import carrying, eventually


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A machine with the control program; what became of its daemons."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", standin_mps.installed(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("STANDIN_LOG", str(tmp_path / "log"))
    monkeypatch.delenv("STANDIN_MPS", raising=False)
    return lambda: (tmp_path / "log").read_text().split("\n")[:-1] if (tmp_path / "log").exists() else []


@pytest.fixture
def run():
    """The folder of a run, as short as that of any other; nothing is left that carries its tag."""
    with tempfile.TemporaryDirectory(prefix="labkit-") as path:
        run = RunDir(Path(path), f"tag-{os.urandom(8).hex()}")
        yield run
        mps.Mps(run).end()
        assert not carrying(run.tag)


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_daemon_is_begun_in_the_runs_folder_and_nobody_else_may_enter(log, run):
    daemon = mps.begin(run)
    assert daemon.answers()
    assert daemon.folder == Path(run.mps)
    given = daemon.environment(4)
    assert (mode(daemon.folder), mode(given[mps.LOGS])) == (0o700, 0o700)
    assert given == {mps.PIPES: run.mps, mps.LOGS: str(run.path / "mps-log"), mps.PART: "24"}
    assert [daemon.environment(n)[mps.PART] for n in (2, 3, 16)] == ["49", "32", "5"]
    daemon.end()
    assert not daemon.answers()
    assert not daemon.folder.exists()
    assert [line.split()[0] for line in log()] == ["begun", "quit", "ended"]


def test_one_that_answers_is_used_and_one_that_has_died_is_begun_anew(log, run):
    first = mps.begin(run)
    assert mps.begin(run).folder == first.folder
    (process,) = carrying(run.tag)
    process.kill()
    assert eventually(lambda: not first.answers())
    assert mps.begin(run).answers()
    assert [line.split()[0] for line in log()] == ["begun", "begun"]


def test_where_the_path_would_be_too_long_a_short_folder_is_made_and_removed(log, tmp_path):
    deep = tmp_path / ("x" * (90 - len(str(tmp_path))))
    deep.mkdir()
    run = RunDir(deep, f"tag-{os.urandom(8).hex()}")
    daemon = mps.begin(run)
    assert daemon.answers()
    assert daemon.folder.parent == Path(mps.SHORT)
    assert mode(daemon.folder) == 0o700
    assert os.readlink(run.mps) == str(daemon.folder)
    daemon.end()
    assert not daemon.folder.exists()
    assert not os.path.lexists(run.mps)
    assert not carrying(run.tag)


def test_gpus_chosen_by_number_are_not_counted_anew_by_the_daemon(log, run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    mps.begin(run).end()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f")
    mps.begin(run).end()
    assert [line.split()[-1] for line in log() if line.startswith("begun")] == ["all", "GPU-5f"]


def test_without_the_control_program_there_is_no_daemon(run, monkeypatch):
    monkeypatch.setenv("PATH", str(run.path))
    with pytest.raises(mps.NoDaemonError, match=r"^nvidia-cuda-mps-control, .* is not on this machine$"):
        mps.begin(run)


@pytest.mark.parametrize(
    ("how", "starting", "answer", "said"),
    [
        ("fails", 10.0, 5, r"^nvidia-cuda-mps-control failed \(Cannot create the log directory: Permission denied\)$"),
        ("hangs", 1.0, 5, r"^nvidia-cuda-mps-control did not start a daemon in 1 s$"),
        ("mute", 10.0, 1, r"^the MPS daemon does not answer$"),
    ],
)
def test_where_none_can_be_had_it_is_said_why_and_nothing_is_left(log, run, monkeypatch, how, starting, answer, said):
    monkeypatch.setenv("STANDIN_MPS", how)
    monkeypatch.setattr(time_limits, "MPS_STARTS", starting)
    monkeypatch.setattr(reaper, "DAEMON_ANSWERS", answer)
    monkeypatch.setattr(time_limits, "MPS_ANSWERS", 0.0)
    monkeypatch.setattr(reaper, "LAUNCHED_END", 0)
    with pytest.raises(mps.NoDaemonError, match=said):
        mps.begin(run)
    assert not os.path.lexists(run.mps)
    assert not carrying(run.tag)


def test_a_daemon_that_does_not_quit_is_ended_since_it_carries_the_runs_tag(log, run, monkeypatch):
    daemon = mps.begin(run)
    monkeypatch.setattr(reaper, "LAUNCHED_END", 0)
    with standin_mps.connected(str(daemon.folder)) as client:  # for which the daemon waits
        client.sendall(b"client of nobody\n")
        assert eventually(lambda: "client of nobody" in log())
        daemon.end()
    assert not carrying(run.tag)
    assert log()[-1] == "quit"


@pytest.mark.skipif(sys.platform != "linux", reason="the reaper looks into /proc")
@pytest.mark.parametrize("deep", [False, True])
def test_the_reaper_ends_the_daemon_with_the_run(log, monkeypatch, tmp_path, deep):
    parent = Path(tempfile.mkdtemp(prefix="x" * 50 if deep else "labkit-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    run = choose_rundir()
    process = start_reaper(run)
    daemon = mps.begin(run)
    assert (daemon.folder.parent == run.path) is not deep
    process.terminate()
    process.wait()
    assert not daemon.folder.exists()
    assert not run.path.exists()
    assert not carrying(run.tag)
    assert [line.split()[0] for line in log()] == ["begun", "quit", "ended"]
    shutil.rmtree(parent)
