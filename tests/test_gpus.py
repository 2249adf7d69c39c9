"""Ranks on GPUs, as far as a machine without one can tell: who gets which, who shares one, and how that is said."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from labkit import LabError, lab
from labkit.cluster import shared_gpu
from labkit.cluster.engines import Engines, Member
from labkit.cluster.spread import Spread
from labkit.cluster.sweep import where
from labkit.rank import clock, group
from labkit.show.table import LabTable
from labkit.theory import sharing


@pytest.mark.parametrize(
    ("n", "backend", "gpus", "chosen", "said"),
    [
        (None, None, 0, (4, "gloo"), "4 CPU ranks with Gloo: torch finds no GPU here."),
        (None, None, 1, (4, "nccl"), "4 ranks with NCCL, which share 1 GPU for teaching: "),
        (2, None, 1, (2, "nccl"), "2 ranks with NCCL, which share 1 GPU for teaching: "),
        (1, None, 1, (1, "nccl"), "1 rank with NCCL, each on a GPU of its own"),
        (None, "gloo", 1, (4, "gloo"), "4 CPU ranks with Gloo: as you asked."),
        (None, None, 8, (8, "nccl"), "8 ranks with NCCL, each on a GPU of its own: torch finds 8 GPUs here."),
        (4, None, 2, (4, "gloo"), "4 CPU ranks with Gloo: torch finds only 2 GPUs here."),
        (4, "nccl", 2, (4, "nccl"), "4 ranks with NCCL, which share 2 GPUs for teaching: "),
        (8, "gloo", 2, (8, "gloo"), "8 CPU ranks with Gloo: as you asked."),
    ],
)
def test_so_many_ranks_are_chosen_and_it_is_said_why(n, backend, gpus, chosen, said):
    *what, why = lab._choose(n, backend, gpus)
    assert tuple(what) == chosen
    assert why.startswith(said)


def test_without_a_gpu_nccl_is_refused():
    with pytest.raises(LabError, match=r"no GPU here\. Call start\(\)"):
        lab._choose(2, "nccl", 0)


@pytest.mark.parametrize(
    ("backend", "gpus", "each", "chosen", "said"),
    [
        (None, [0, 0], 2, "gloo", "4 CPU ranks with Gloo, on 2 hosts over ssh"),
        (None, [1, 1], None, "nccl", "2 ranks with NCCL, each on a GPU of its own"),
        (None, [1, 1], 2, "nccl", "4 ranks with NCCL, which share GPUs for teaching"),
        (None, [2, 0], 2, "gloo", "4 CPU ranks with Gloo"),
        (None, [2, 2], 4, "gloo", "8 CPU ranks with Gloo"),
        ("nccl", [2, 2], 4, "nccl", "8 ranks with NCCL, which share GPUs for teaching"),
    ],
)
def test_on_several_hosts_as_on_one(backend, gpus, each, chosen, said):
    wish = lab.Wish(None, backend, "ssh", 10.0)
    at, with_backend, why = lab._choose_far(wish, Spread("ssh", ("na", "nb"), (each, each)), gpus, "")
    assert with_backend == chosen
    assert why.startswith(said)
    assert at == sorted(at)


def test_nccl_wants_a_gpu_on_each_host():
    wish = lab.Wish(None, "nccl", "ssh", 10.0)
    with pytest.raises(LabError, match="2 on host 0 and 0 on host 1"):
        lab._choose_far(wish, Spread("ssh", ("na", "nb"), (2, 2)), [2, 0], "")


def test_ranks_that_share_a_gpu_are_told_that_they_are_on_hosts_of_their_own():
    told = [sharing.settings(r) for r in range(4)]
    assert len({its.pop("NCCL_HOSTID") for its in told}) == 4
    assert told == [{"NCCL_NET": "Socket", "NCCL_MAX_NCHANNELS": "2", "TORCH_NCCL_BLOCKING_WAIT": "1"}] * 4


def test_where_nccl_takes_several_ranks_a_gpu_it_is_asked_to_with_so_few_channels_that_all_fit():
    told = sharing.settings(3, direct=4)
    assert "NCCL_HOSTID" not in told
    assert (told["NCCL_MULTI_RANK_GPU_ENABLE"], told["NCCL_NVLS_ENABLE"], told["NCCL_MAX_CTAS"]) == ("1", "0", "2")
    assert [sharing.settings(0, n)["NCCL_MAX_CTAS"] for n in (2, 3, 8, 16)] == ["4", "2", "1", "1"]


@pytest.mark.parametrize(
    ("shares", "direct", "version", "host"),
    [
        (False, 0, (2, 30, 7), None),
        (True, 0, (2, 30, 7), "labkit-5"),
        (True, 4, (2, 29, 7), "labkit-5"),
        (True, 4, (2, 30, 7), None),
    ],
)
def test_a_rank_joins_with_its_gpu_and_with_the_settings_of_one_that_shares(monkeypatch, shares, direct, version, host):
    given = {}

    def init_process_group(backend, **more):
        given.update(more, backend=backend, host=os.environ.get("NCCL_HOSTID"))
        given["many"] = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE")
        raise InterruptedError

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: version)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: given.update(set=device))
    monkeypatch.setattr(group.dist, "init_process_group", init_process_group)
    monkeypatch.setattr(group, "MeetingStore", lambda *_: None)
    monkeypatch.setattr(group, "_store", None)
    with pytest.raises(InterruptedError):
        group.join(5, 8, "nccl", "", 60.0, 3, shares, direct)
    assert given["backend"] == "cpu:gloo,cuda:nccl"
    assert given["device_id"] == given["set"] == torch.device("cuda", 1)
    assert given["host"] == host
    assert given["many"] == ("1" if shares and host is None else None)


def on(*gpus: str, mps: object = None) -> Engines:
    """Some ranks' facts, without their processes."""
    engines = Engines(10.0, SimpleNamespace(mps=mps))
    engines.members = [
        Member(r, r, 100 + r, "box", gpu, "gloo + nccl" if gpu != "cpu" else "gloo", True, 2**20, "box")
        for r, gpu in enumerate(gpus)
    ]
    engines._ids = list(range(len(gpus)))
    engines.ask = lambda do, ranks, timeout: dict.fromkeys(ranks)
    return engines


def test_the_table_and_every_figure_with_times_say_that_ranks_share_a_gpu():
    shared, own, cpu = on(*["cuda:0"] * 4), on("cuda:0", "cuda:1"), on("cpu", "cpu")
    under_mps = on(*["cuda:0"] * 4, mps="a daemon")
    assert repr(LabTable(shared.table())).count("device=cuda:0 (shared by 4 ranks by turns)") == 4
    assert repr(LabTable(under_mps.table())).count("device=cuda:0 (shared by 4 ranks under MPS)") == 4
    assert "shared" not in repr(LabTable(own.table())) + repr(LabTable(cpu.table()))
    assert where(shared, range(4)) == "NCCL, 4 ranks share 1 GPU by turns on one host"
    assert where(under_mps, range(4)) == "NCCL, 4 ranks share 1 GPU under MPS on one host"
    assert where(shared, [2]) == "NCCL, 1 GPU ranks on one host"
    assert where(own, range(2)) == "NCCL, 2 GPU ranks on one host"
    assert where(cpu, range(2)) == "Gloo, 2 CPU ranks on one host"


def test_calls_on_a_gpu_are_timed_by_its_own_events(monkeypatch):
    done = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self):
            done.append("event")

        def synchronize(self):
            done.append("wait")

        def elapsed_time(self, end: Event) -> float:
            assert self is not end
            return 12.0

    monkeypatch.setattr(clock, "_on_gpu", lambda group: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("idle"))
    assert clock._stopwatch(lambda: done.append("call"), 2, None)[1] == 0.012, "milliseconds to seconds"
    assert done == ["idle", "event", "call", "call", "event", "wait"]


@pytest.mark.parametrize(
    ("gpus", "mps", "device"),
    [
        ([0, 0], "", "cuda (2 ranks share 1 GPU by turns)"),
        ([0, 0], "/run/mps", "cuda (2 ranks share 1 GPU under MPS)"),
        ([0, 1], "", "cuda"),
    ],
)
def test_a_timing_says_that_ranks_share_a_gpu(monkeypatch, gpus, mps, device):
    monkeypatch.setattr(os, "environ", {"CUDA_MPS_PIPE_DIRECTORY": mps} if mps else {})
    monkeypatch.setattr(clock, "_on_gpu", lambda group: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: gpus[0])

    def all_gather_object(told, mine, group):
        host, _, measured = mine
        told[:] = [(host, gpu, measured) for gpu in gpus]

    monkeypatch.setattr(clock.dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(clock.dist, "all_gather_object", all_gather_object)
    timing = clock._together([(0.0, 1e-3), (1.0, 2e-3)], 1, None)
    assert repr(timing).endswith(f"2 ranks, NCCL on {device}")


def test_ranks_on_several_hosts_take_turns():
    engines = Engines(10.0, SimpleNamespace(mps=None, hosts=["na", "nb"], take_turns=lambda: None))
    engines.backend = "nccl"
    engines.gpu.begin([0, 0, 1, 1], [1, 1])
    assert engines.gpu.way == "turns"
    assert engines.gpu.said().endswith("slow: a lab on several hosts has no MPS daemon.")


@pytest.mark.parametrize(("patience", "asked_again"), [(60.0, True), (0.0, False)])
def test_before_a_rank_is_ended_kernels_are_waited_for_and_not_for_ever(monkeypatch, patience, asked_again):
    """Rank 1's are over when it is asked again; rank 2 does not answer, and rank 3 stands still."""
    monkeypatch.setattr(shared_gpu, "CALMING", patience)
    engines, asked = on(*["cuda:0"] * 4, mps="a daemon"), []

    def ask(do, ranks, timeout):
        asked.append((do, list(ranks)))
        over = {0: {"over": True}, 1: {"over": len(asked) > 2}, 2: None}
        return {r: over[r] if do == "kernels" else None for r in ranks}

    engines.ask, engines.is_stopped = ask, lambda rank: rank == 3
    engines.gpu.calm()
    engines.gpu.calm()  # they have left, and have not joined again
    first = [("abort", [0, 1, 2])]
    assert asked == ([*first, ("kernels", [0, 1, 2]), ("kernels", [1])] if asked_again else first)
