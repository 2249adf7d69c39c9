"""The ordinary launcher in place of the forking ones, and a lab that notebooks share."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
import zmq

import labkit
from labkit.cluster.controller import Controller
from labkit.starting import _attached, _default_launcher
from tests.live.notebook import Notebook
from tests.live.processes import Trace, eventually

SUM = "%%px\nx = torch.ones(1)\ndist.all_reduce(x)\nint(x)"


def test_the_ordinary_launcher_serves_where_forking_is_unsafe(monkeypatch):
    with labkit.start(2, engines="local", timeout=2) as lab:
        trace, cluster = Trace.of(lab._address), lab._console.engines.processes.cluster
        assert lab.run("x = torch.ones(1)\ndist.all_reduce(x)\nint(x)") == ["2", "2"]
        with pytest.raises(labkit.StuckError, match="rank 1 waits in barrier"):
            lab.run("if rank: dist.barrier()")
        with pytest.raises(labkit.CellError, match="rank 1 died"):
            lab.run("import os\nif rank: os._exit(1)")
        assert lab.run("x = torch.ones(1)\ndist.all_reduce(x)\nint(x)") == ["2", "2"]
    assert eventually(trace.gone, 5), trace.left()
    monkeypatch.setattr(cluster, "_is_running", lambda: True)  # as where it hears of the engines' end only now
    cluster.update_cluster_file()
    assert trace.gone(), trace.left()


def test_a_tcp_port_chosen_for_the_controller_is_kept_until_it_listens():
    controller = Controller()
    port = controller.next_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as mine:
        mine.bind(f"tcp://127.0.0.1:{port}")


def test_platforms_where_forking_is_unsafe_choose_the_ordinary_launcher(monkeypatch):
    assert _default_launcher() == "labkit"
    for platform in ("darwin", "win32"):
        monkeypatch.setattr(sys, "platform", platform)
        assert _default_launcher() == "local"


# -- a lab that several notebooks share ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared():
    with labkit.start(2) as lab:
        yield lab


def attached(shared):
    return Notebook(LABKIT_SHARED=shared._address, LABKIT_QUIET="1")


def pids(notebook):
    return json.loads(notebook.value("[m.pid for m in lab._engines.members]"))


def test_each_notebook_gets_fresh_ranks_of_the_shared_lab(shared):
    forks = len(Trace.of(shared._address).processes())
    seen = []
    for n in (2, 3):
        with attached(shared) as notebook:
            notebook.value(f"from labkit import start\nlab = start({n})")
            assert notebook.value("lab._address").strip("'") == shared._address
            assert notebook.run(SUM).stdout == {2: "ranks 0, 1 │ 2\n", 3: "ranks 0–2 │ 3\n"}[n]
            assert notebook.value("lab.pull(\"'keep' in globals()\")") == str([False] * n)
            notebook.value("%px keep = 1")
            assert not set(pids(notebook)) & set(seen)
            seen += pids(notebook)
            notebook.value("lab.stop()")
            assert notebook.run("lab").result.startswith("A lab that was stopped.")
    assert Trace.of(shared._address).path.exists()
    assert eventually(lambda: len(Trace.of(shared._address).processes()) <= forks)


def test_a_rank_killed_in_an_attached_notebook_is_replaced(shared):
    with attached(shared) as notebook:
        notebook.value("from labkit import start\nlab = start(2)")
        notebook.value("%px keep = torch.ones(1)")
        assert "rank 1 died (exit code 3)" in notebook.run("%%px\nimport os\nif rank: os._exit(3)").error
        assert notebook.run(SUM).stdout == "ranks 0, 1 │ 2\n"
        assert notebook.run("%px print('keep' in globals())").stdout == "rank 0 │ True\nrank 1 │ False\n"


def test_a_controller_killed_under_an_attached_notebook_comes_back(shared):
    with attached(shared) as notebook:
        notebook.value("from labkit import start\nlab = start(2)")
        notebook.value("%px keep = rank")
        mine = pids(notebook)
        forks = [p for p in Trace.of(shared._address).processes() if "labkit.cluster.forkserver" in p.cmdline()]
        theirs = {m.pid for m in shared._engines.members}
        (controller,) = [p for p in forks if p.pid not in {*mine, *theirs} and p.ppid() in {q.pid for q in forks}]
        controller.kill()
        controller.wait(5)
        after = notebook.run(SUM)
        assert after.stdout.endswith("ranks 0, 1 │ 2\n"), after
        assert notebook.run("%px print(keep)").stdout == "rank 0 │ 0\nrank 1 │ 1\n"


@pytest.mark.parametrize(
    "stale", ["{}", '{"path": "/nowhere", "tag": "x", "file": "/nowhere/cluster.json"}', "no JSON", None]
)
def test_nobody_attaches_to_a_stale_address(tmp_path, stale):
    address = tmp_path / "address.json"
    if stale is not None:
        address.write_text(stale)
    assert _attached(str(address), 10.0, lambda gpus: (2, "gloo", []), print) is None


def test_the_address_of_a_lab_that_has_stopped_starts_a_lab_of_ones_own(tmp_path):
    lab = labkit.start(1)
    text = Path(lab._address).read_text()
    lab.stop()
    address = tmp_path / "address.json"
    address.write_text(text)
    with Notebook(LABKIT_SHARED=str(address)) as notebook:
        notebook.value("from labkit import start\nlab = start(1)")
        assert notebook.value("lab._address").strip("'") != str(address)
        assert notebook.run(SUM).stdout == "rank 0 │ 1\n"
