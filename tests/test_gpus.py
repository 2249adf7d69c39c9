"""Ranks on GPUs, as far as a machine without one can tell: who gets which, who shares one, and how that is said."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from labkit import LabError
from labkit.cluster.engines import Engines, Member
from labkit.cluster.spread import Ssh
from labkit.floor import time_limits
from labkit.rank import cell_record, clock, group, probe, recorder, spans, stream
from labkit.show.table import LabTable
from labkit.show.timeline import Timeline
from labkit.show.times import Times
from labkit.show.waits import Waits
from labkit.starting import StartRequest, _choose, _choose_far
from labkit.theory import gpu_sharing
from labkit.theory.log import Op
from labkit.theory.record import read
from workbook.tools.rank import nccl_trial
from workbook.tools.sweep.measure import where


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
    *what, why = _choose(n, backend, gpus)
    assert tuple(what) == chosen
    assert why.startswith(said)


def test_without_a_gpu_nccl_is_refused():
    with pytest.raises(LabError, match=r"no GPU here\. Call start\(\)"):
        _choose(2, "nccl", 0)


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
    wish = StartRequest(None, backend, "ssh", 10.0)
    at, with_backend, why = _choose_far(wish, Ssh(("na", "nb"), (each, each)), gpus, "")
    assert with_backend == chosen
    assert why.startswith(said)
    assert at == sorted(at)


def test_nccl_wants_a_gpu_on_each_host():
    wish = StartRequest(None, "nccl", "ssh", 10.0)
    with pytest.raises(LabError, match="2 on host 0 and 0 on host 1"):
        _choose_far(wish, Ssh(("na", "nb"), (2, 2)), [2, 0], "")


def test_ranks_that_share_a_gpu_are_told_that_they_are_on_hosts_of_their_own():
    told = [gpu_sharing.settings(r) for r in range(4)]
    assert len({its.pop("NCCL_HOSTID") for its in told}) == 4
    assert told == [{"NCCL_NET": "Socket", "NCCL_MAX_NCHANNELS": "2"} | gpu_sharing.SYMMETRIC] * 4


def test_where_nccl_takes_several_ranks_a_gpu_it_is_asked_to_with_so_few_channels_that_all_fit():
    told = gpu_sharing.settings(3, direct=4)
    assert "NCCL_HOSTID" not in told
    assert (told["NCCL_MULTI_RANK_GPU_ENABLE"], told["NCCL_NVLS_ENABLE"], told["NCCL_MAX_CTAS"]) == ("1", "0", "2")
    assert [gpu_sharing.settings(0, n)["NCCL_MAX_CTAS"] for n in (2, 3, 8, 16)] == ["4", "2", "1", "1"]


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
    engines = Engines(10.0, SimpleNamespace(mps=mps, client=SimpleNamespace(ids=range(len(gpus)))))
    engines.members = [
        Member(r, r, 100 + r, "box", gpu, "gloo + nccl" if gpu != "cpu" else "gloo", 2**20, "box")
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


class Gpu:
    """A GPU's stream with its events and its clock, as torch.cuda shows them: work is enqueued, and done later.

    `work(name, s)` enqueues what takes so many seconds. The GPU does it `until` a moment that a test chooses, or
    when somebody synchronizes; an event that it has not come to has no time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.gpu, self.done = 100.0, 100.0, []
        self.queue: list[tuple[str, float, Any]] = []
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at: float | None = None

            def record(self, stream: Any = None) -> None:
                if stream is None:
                    gpu.queue.append(("event", 0.0, self))
                else:  # nothing else is on that one
                    self.at = gpu.now

            def query(self) -> bool:
                return self.at is not None

            def synchronize(self) -> None:
                gpu.until(float("inf"))

            def elapsed_time(self, end: Event) -> float:
                if self.at is None or end.at is None:
                    raise RuntimeError("both events must be recorded")
                return 1e3 * (end.at - self.at)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", lambda: "beside")
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.until(float("inf")))
        monkeypatch.setattr(time, "perf_counter", self.read)
        monkeypatch.setattr(time, "sleep", self.sleep)
        self.goes_on = False

    def read(self) -> float:
        """The host's clock, which goes on by a microsecond a look."""
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass, for the GPU as well if it goes on."""
        self.now += seconds
        if self.goes_on:
            self.until(self.now)

    def work(self, name: str, seconds: float) -> None:
        """Enqueue work; the call returns at once."""
        self.queue.append((name, seconds, None))

    def until(self, moment: float) -> None:
        """Let the GPU do what is enqueued, as far as it comes until then."""
        self.gpu = max(self.gpu, self.now) if not self.done else self.gpu
        while self.queue and self.gpu + self.queue[0][1] <= moment:
            name, seconds, event = self.queue.pop(0)
            self.gpu += seconds
            self.done.append(name)
            if event is not None:
                event.at = self.gpu
        self.now = max(self.now, min(moment, self.gpu))


def test_calls_on_a_gpu_are_timed_by_its_own_events(monkeypatch):
    gpu = Gpu(monkeypatch)
    gpu.work("earlier", 5.0)
    began, took = clock.stopwatch(lambda: gpu.work("call", 0.006), 2, True)
    assert took == pytest.approx(0.012)
    assert began > 105, "what was enqueued before is over"
    assert gpu.done == ["earlier", "event", "call", "call", "event"]
    assert clock.stopwatch(lambda: gpu.work("call", 0.006), 2, False)[1] < 1e-4, "by the host's clock: enqueued"


def test_a_trial_of_nccl_takes_the_gpus_time(monkeypatch):
    """The host's wait is not part of it, nor what the GPU did before."""
    gpu = Gpu(monkeypatch)
    x = torch.empty(5)
    monkeypatch.setattr(nccl_trial.torch, "empty", lambda *_, device: x)
    monkeypatch.setattr(nccl_trial.dist, "new_group", lambda backend: None)
    monkeypatch.setattr(nccl_trial.dist, "destroy_process_group", lambda group: None)
    monkeypatch.setattr(nccl_trial.dist, "barrier", lambda group: setattr(gpu, "now", gpu.now + 3.0))

    def all_reduce(x, group):
        gpu.work("all_reduce", 0.25)
        x.fill_(3)

    monkeypatch.setattr(nccl_trial.dist, "all_reduce", all_reduce)
    monkeypatch.setattr(nccl_trial.torch_internals, "forecast", lambda call, group, device: 0.2)
    order = {"backend": "nccl", "nbytes": 16, "rank": 0, "ranks": 2}
    told = nccl_trial.trial(order, 1, {}, None)
    assert told["seconds"] == pytest.approx([0.25] * nccl_trial.REPEAT)
    assert told["right"]
    assert told["forecast"] == 0.2


def test_a_run_for_the_picture_takes_as_long_as_its_result_is_on_its_way(monkeypatch):
    """The time says how many runs there is time for: enqueueing them is not enough."""
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr(probe, "_kept", {})
    monkeypatch.setattr(probe, "_untouched", contextlib.nullcontext)
    monkeypatch.setattr(probe, "shell", lambda: SimpleNamespace(user_ns="mine"))
    monkeypatch.setattr(probe, "_run", lambda _: gpu.work("cell", 0.5) or "copy")
    monkeypatch.setattr(probe, "_result", lambda y, space: [gpu.until(float("inf")) or 1.0])
    assert probe.again("y") == {"seconds": pytest.approx(0.5, abs=1e-3), "steady": True}


def told(monkeypatch: pytest.MonkeyPatch, rank: int, compute: float, reduce: float, **how: Any) -> dict[str, Any]:
    """What a rank on a GPU tells of a cell that computes in a span, then calls an all_reduce; of both the seconds.

    `asynchronous`: it calls `.wait()` for that. `until`: so far has the GPU come when the rank is asked; `goes_on`: it
    works on then.
    """
    gpu, cell = Gpu(monkeypatch), cell_record.Cell(on=True, rank=rank, began=100.0, gpu="cuda:0")
    cell.tally = SimpleNamespace(done=lambda *_: None, end=lambda: None, missing=lambda *_: ([], 0))
    monkeypatch.setattr(cell_record, "current", cell)
    record = Op(rank, 0, "all_reduce", "collective", (0, 1), group="0", enqueued=True, line=3)

    def begun(*_: Any) -> Any:
        cell.ops.append(record)
        cell.made += 1
        return record, None, None

    monkeypatch.setattr(recorder, "begun", begun)

    def all_reduce(tensor: Any, async_op: bool = False) -> Any:
        if not async_op:
            gpu.work("all_reduce", reduce)

    stream.forget()
    with spans.span("compute"):
        gpu.work("compute", compute)
    asynchronous = how.get("asynchronous", False)
    recorder._recording(all_reduce, "all_reduce", "collective", "tensor", "")(torch.ones(1), async_op=asynchronous)
    if asynchronous:
        work = Work()
        cell.works[id(work)] = (weakref.ref(work), [record])
        gpu.work("compute", 0.5)
        recorder._waiting(lambda self: gpu.work("wait", reduce - 0.5))(work)
    gpu.until(how.get("until", float("inf")))
    gpu.goes_on = how.get("goes_on", False)
    recorder.end()
    return recorder.records()


class Work:
    """What an asynchronous call returns."""


def test_a_record_has_the_gpus_times_where_calls_return_at_once(monkeypatch):
    """Rank 1 computes for 3 s and rank 0 for 1 s: on the host neither takes a millisecond, and nobody waits."""
    record = read([told(monkeypatch, 0, 1.0, 3.0), told(monkeypatch, 1, 3.0, 1.0)])
    first, second = (ops[0] for ops in record.ops)
    assert first.left - first.entered == pytest.approx(3.0, abs=1e-3)
    assert second.left - second.entered == pytest.approx(1.0, abs=1e-3)
    assert [(w.op.rank, w.for_, round(w.seconds, 2)) for w in record.waits] == [(0, 1, 2.0)]
    assert [s.left - s.entered for (s,) in record.spans] == pytest.approx([1.0, 3.0], abs=1e-3)
    assert all(log.ended >= ops[0].left for log, ops in zip(record.logs, record.ops, strict=True))
    assert record.notes == (
        "times on a GPU are the GPU's: from when it came to a call until the data had moved (CUDA events)",
        "2 ranks share 1 GPU by turns: the times say nothing about GPUs that are not shared",
    )


def test_whatever_shows_times_of_a_record_says_that_ranks_share_a_gpu(monkeypatch):
    logs = [told(monkeypatch, 0, 1.0, 3.0), told(monkeypatch, 1, 3.0, 1.0)]
    timeline = Timeline(logs)
    waits = Waits(logs, None)
    assert waits.why == "Nothing was stuck. The longest wait: 2 s (2 ranks share 1 GPU by turns)."
    assert repr(timeline.gantt).endswith("2 ranks share 1 GPU by turns.")
    for said in (repr(timeline), waits.svg.decode(), timeline.svg.decode(), timeline.gantt.svg.decode()):
        assert "2 ranks share 1 GPU" in said
    assert "2 ranks share 1 GPU under MPS" in repr(Timeline([log | {"together": True} for log in logs]))
    own = [log | {"gpu": f"cuda:{r}"} for r, log in enumerate(logs)]
    for shown in (Timeline(own), Timeline(own).gantt, Waits(own, None)):
        assert "share" not in repr(shown) + shown.svg.decode()


def test_of_a_handle_the_gpus_wait_is_recorded(monkeypatch):
    """It computes 0.5 s of the 2 s that the all-reduce takes."""
    record = read([told(monkeypatch, 0, 1.0, 2.0, asynchronous=True)])
    ((op,),) = record.ops
    assert op.waited[1] - op.waited[0] == pytest.approx(1.5, abs=1e-3)
    assert op.ended - op.entered == pytest.approx(3.0, abs=1e-3), "under way from its call on"


def test_what_the_gpu_has_not_done_is_said_to_be_enqueued(monkeypatch):
    """Rank 0's GPU stands in the all_reduce when somebody asks: nothing waits for it."""
    record = read([told(monkeypatch, 0, 1.0, 3.0, until=102.0)])
    ((op,),), ((span,),) = record.ops, record.spans
    assert op.ran is None
    assert op.left - op.entered < 1e-3
    assert span.left - span.entered == pytest.approx(1.0, abs=1e-3)
    assert "calls on a GPU return when they are enqueued: some bars end before the data has moved" in record.notes


def test_what_the_gpu_is_about_to_do_is_waited_for(monkeypatch):
    """All calls have returned, and the GPU needs 30 ms more: ranks that share it take turns."""
    ((op,),) = read([told(monkeypatch, 0, 0.0, 0.03, until=100.0, goes_on=True)]).ops
    assert op.left - op.entered == pytest.approx(0.03, abs=1e-3)


def test_without_a_gpu_nothing_is_marked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", None)
    stream.forget()
    stream.mark_start(op := Op(0, 0, "all_reduce", "collective", (0,)))
    stream.mark_end(op)
    stream.read_times()
    assert (op.ran, stream.gpu()) == (None, "")


def test_times_say_that_ranks_share_a_gpu():
    times = Times({"readings": [[0.1, 0.2]] * 2}, shared=gpu_sharing.said(["cuda:0"] * 2))
    assert repr(times).endswith("\n2 ranks share 1 GPU by turns.")
    assert times.alt.endswith(" 2 ranks share 1 GPU by turns.")
    assert b"2 ranks share 1 GPU" in times.svg
    assert "GPU" not in repr(Times({"readings": [[0.1, 0.2]]}))


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
    monkeypatch.setattr(time_limits, "KERNELS_OVER", patience)
    engines, asked = on(*["cuda:0"] * 4, mps="a daemon"), []

    def ask(do, ranks, timeout):
        asked.append((do, list(ranks)))
        over = {0: {"over": True}, 1: {"over": len(asked) > 2}, 2: None}
        return {r: over[r] if do == "kernels" else None for r in ranks}

    engines.ask, engines.is_stopped = ask, lambda rank: rank == 3
    engines.calm()
    engines.calm()  # they have left, and have not joined again
    first = [("abort", [0, 1, 2])]
    assert asked == ([*first, ("kernels", [0, 1, 2]), ("kernels", [1])] if asked_again else first)
