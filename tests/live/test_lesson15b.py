"""Lesson 15b: its all-gather is one, on any number of ranks, with right functions of other makes; NCCL's trials run."""

from __future__ import annotations

import re

import pytest

import labkit
from labkit.content import exercises
from labkit.floor.errors import LabError
from labkit.floor.words import seconds
from tests.live.lesson_cells import code, run_cells
from workbook.tools import costs, nccl, nccl_log, topology
from workbook.tools.nccl import Trials, machine

OTHER_WAYS = {
    "pcie_path": """
def pcie_path(mine, theirs):
    for i, a in enumerate(mine):
        for j, b in enumerate(theirs):
            if (a, i - len(mine) == -1) == (b, j - len(theirs) == -1) and mine[-1] == theirs[-1]:
                last = i == len(mine) - 1 or j == len(theirs) - 1
                return "PHB" if last else "PXB" if i or j else "PIX"
    return "SYS"
""",
    "choose_nics": """
def choose_nics(rows):
    chosen = []
    for row in rows:
        for word in ("PIX", "PXB", "PHB", "NODE", "SYS"):
            near = [i for i, path in enumerate(row) if path == word]
            if near:
                break
        chosen.append(sorted(near, key=chosen.count)[0])
    return chosen
""",
    "tree_parents": """
def tree_parents(place, n):
    def tree():
        up = {0: -1}
        for r in range(1, n):
            bit = 1
            while not r & bit:
                bit *= 2
            wanted = r - bit + 2 * bit if not (r - bit) & (2 * bit) else r - bit
            up[r] = wanted if wanted < n else r - bit
        return up

    first = tree()
    name = (lambda r: n - 1 - r) if n % 2 == 0 else (lambda r: (r + 1) % n)
    second = {name(r): name(p) if p >= 0 else -1 for r, p in first.items()}
    return [first[place], second[place]]
""",
    "pat_sends": """
def pat_sends(place, n, step):
    held = {r: {r} for r in range(n)}
    d = 1
    while d < n:
        d *= 2
    for _ in range(step + 1):
        d //= 2
        moving = {r: {c for c in held[r] if (c - r) % n + d < n} for r in range(n)}
        for r in range(n):
            held[(r - d) % n] = held[(r - d) % n] | moving[r]
    return [(place - d) % n, sorted(moving[place])]
""",
    "leaves_node": """
def leaves_node(algorithm, first, second, gpus, nbytes):
    nodes = len(first)
    sent = [0.0] * nodes
    for m in range(nodes):
        if algorithm == "CollNet":
            sent[m] = 1.0 * nbytes
        elif algorithm == "ring":
            sent[m] = (nodes * gpus - 1) * 2 * (nbytes / (nodes * gpus))
    if algorithm == "tree":
        for tree in (first, second):
            for child, parent in enumerate(tree):
                if parent >= 0:
                    sent[child] += nbytes / 2
                    sent[parent] += nbytes / 2
    return sent
""",
    "ran_as": """
import re

def ran_as(line):
    op, size, algorithm, protocol, low, high = re.search(
        r"INFO (\\w+): (\\d+) Bytes -> Algo (\\w+) proto (\\w+) channel.*=.(\\d+)..(\\d+).", line
    ).groups()
    op = re.sub(r"(?<!^)([A-Z])", r"-\\1", op).lower()
    return [op, int(size), algorithm.lower(), protocol.lower(), len(range(int(low), int(high) + 1))]
""",
}


@pytest.fixture(scope="module")
def lab(own_progress):
    with labkit.start(4) as lab:
        yield lab


@pytest.mark.parametrize("name", OTHER_WAYS)
def test_another_right_way_is_right(lab, name):
    lab.run(OTHER_WAYS[name])
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


def test_the_cells_run_and_the_all_gather_gathers(lab):
    told = dict(run_cells(lab, "15b"))
    matrix = next(texts[0] for source, texts in told.items() if "pcie_path" in source)
    p4d = topology.find("p4d")
    for line in matrix.splitlines()[1:]:
        device, *paths = line.split()
        others = [*p4d.gpus[:5], *p4d.nics]
        assert paths == [p4d.path(device, other) for other in others]
    assert lab.run("print(pat_all_gather(torch.tensor([rank + 1.0])).tolist())") == ["[1.0, 2.0, 3.0, 4.0]\n"] * 4


@pytest.mark.parametrize("n", [2, 3])
def test_pat_gathers_on_other_numbers_of_ranks(n):
    (source,) = [cell.source for cell in code("15b") if "def pat_all_gather" in cell.source]
    with labkit.start(n) as lab:
        lab.run(exercises.find("pat_sends").answer.removeprefix("%%px\n"))
        lab.run(source.removeprefix("%%px\n"))
        told = lab.run("print(pat_all_gather(torch.tensor([rank + 1.0])).tolist())")
    assert told == [f"{[r + 1.0 for r in range(n)]}\n"] * n


# -- trials of NCCL, on a machine without a GPU -----------------------------------------------------------------------


def test_a_trial_runs_every_setting_in_a_group_of_its_own():
    settings = [{}, {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}]
    tried, log = nccl.run(settings, ranks=3, nbytes=2**12, backend="gloo", seen=0)
    assert [t.setting for t in tried] == settings
    assert [t.nbytes for t in tried] == [4096, 4100, 4104]
    assert all(t.right and t.seconds > 0 for t in tried)
    assert log is None, "Gloo writes no log of NCCL's"


def test_ranks_that_share_a_gpu_are_nodes_of_their_own(tmp_path):
    shared = [nccl.environment(r, True, tmp_path) for r in range(3)]
    assert len({mine["NCCL_HOSTID"] for mine in shared}) == 3
    assert all(mine["NCCL_NET"] == "Socket" for mine in shared)
    assert "NCCL_HOSTID" not in nccl.environment(0, False, tmp_path)
    assert all("TUNING" in mine["NCCL_DEBUG_SUBSYS"] for mine in shared)


def test_a_trial_that_cannot_start_says_why():
    with pytest.raises(LabError, match="has no CUDA"):
        nccl.run([{}], ranks=2, nbytes=64, backend="nccl", seen=1)


def test_without_a_gpu_a_recorded_log_is_shown_and_called_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    trials = Trials([{"NCCL_ALGO": "Ring"}])
    first, *calls = repr(trials).splitlines()
    assert first.startswith(
        "No NVIDIA GPU here: nothing was run, and NCCL forecasts nothing. Recorded elsewhere, with no algorithm forced "
        "(4 ranks share "
    )
    assert f"NCCL {trials.log.version})" in first
    assert "all-reduce of 4 B: tree, LL, channel 0" in calls
    assert "all-gather of 1 MiB from each rank: ring, Simple, channels 0–1" in calls


def test_a_trial_says_that_its_ranks_share_a_gpu(monkeypatch):
    """With the log that four ranks on an H200 left, and a stand-in for the trial."""
    log = nccl_log.find("h200-shared")
    small = tuple(call for call in log.calls if call.nbytes == 4)
    monkeypatch.setattr(nccl, "gpus", lambda: 1)
    monkeypatch.setattr(nccl, "run", lambda *_, seen: ([nccl.Tried({}, 4, 61e-6, True, small)], log))
    assert repr(Trials([{}], ranks=4)).splitlines() == [
        "4 ranks share 1 GPU by turns, NCCL 2.28.9",
        "NCCL's own choice: all-reduce of 4 B: tree, LL, channel 0, 61 µs",
    ]
    assert machine("p4d") == topology.find("p4d")


def test_nccls_forecast_and_labkits_model_stand_beside_the_clock(monkeypatch):
    """With stand-ins for the trial and the driver: two ranks, each on an H200 of its own."""
    monkeypatch.setattr(nccl, "nvidia_smi", lambda *_: "GPU 0: NVIDIA H200 (UUID: a)\nGPU 1: NVIDIA H200 (UUID: b)\n")
    forced = {"NCCL_ALGO": "Tree"}
    tried = [nccl.Tried({}, 2**20, 42e-6, True, (), 38.2e-6), nccl.Tried(forced, 2**20, 61e-6, True, (), None)]
    monkeypatch.setattr(nccl, "run", lambda *_, seen: (tried, None))
    model = seconds(costs.estimate("all_reduce", 2**20, 2, costs.H200))
    assert repr(Trials([{}, forced])).splitlines()[1:] == [
        f"NCCL's own choice: not in the log, 42 µs; NCCL forecasts 38.2 µs; costs.estimate has {model}",
        "NCCL_ALGO=Tree: not in the log, 61 µs",
    ]
    monkeypatch.setattr(nccl, "nvidia_smi", lambda *_: "GPU 0: NVIDIA Strange\n")
    assert nccl.modelled() is None


def test_with_a_driver_this_machine_is_shown(tmp_path, monkeypatch):
    """A stand-in for nvidia-smi prints a published matrix."""
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\ncat <<'END'\n{topology.text('h100-1453')}END\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    here = machine("p4d")
    assert here.name == "this machine"
    assert here.nearest("GPU0") == ("NIC8",)
    assert re.search(r"GPU0 NIC8", repr(here))
