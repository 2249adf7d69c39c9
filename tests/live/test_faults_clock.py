"""The clock on the wall jumps by an hour, on all processes at once and in the middle of a cell: nobody notices.

A machine's clock is nobody's to set: here the function that reads it is replaced on the ranks and in this process, and
reads an hour more or less as soon as a file exists.
"""

from __future__ import annotations

import time

import pytest

from labkit import CellError, StuckError
from labkit.cluster.run import Running
from tests.live.processes import eventually

HOUR = 3600.0
ALIVE = "y = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), keep)"
CLOCK = """
import time
from pathlib import Path

def jumping(jumped, by, really={name: getattr(time, name) for name in ("time", "time_ns")}):
    time.time = lambda: really["time"]() + (by if jumped.exists() else 0.0)
    time.time_ns = lambda: really["time_ns"]() + (int(by * 1e9) if jumped.exists() else 0)
    return really
"""


@pytest.fixture(params=[HOUR, -HOUR], ids=["forwards", "backwards"])
def jump(request, lab, tmp_path, monkeypatch):
    """What lets the clock jump."""
    names: dict = {}
    exec(CLOCK, names)
    file = tmp_path / "jumped"
    monkeypatch.setattr(time, "time", time.time)
    monkeypatch.setattr(time, "time_ns", time.time_ns)
    names["jumping"](file, request.param)
    lab.run(f"{CLOCK}\nkeep, file = 100 + rank, Path({str(file)!r})\nreally = jumping(file, {request.param})")
    yield file.touch
    lab.run("time.time, time.time_ns = really.values()")


def alive(lab):
    assert lab.run(ALIVE) == [f"3 {100 + r}\n" for r in range(3)]
    assert lab.last.outcome.well


def test_the_clock_jumps_for_all(lab, jump):
    """The test's own clocks: before the jump and after it, this process and the ranks read the same hour."""
    before = time.time()
    jump()
    assert abs(abs(time.time() - before) - HOUR) < HOUR / 2
    assert all(abs(at - time.time()) < HOUR / 2 for at in lab.pull("time.time()"))
    alive(lab)


def test_the_first_error_is_the_cause_though_later_ones_seem_to_be_older(lab, jump):
    """Rank 1 raises, then the clock jumps, then rank 0 leaves the group, from which rank 2 waits for a message."""
    code = """if rank == 1: raise ValueError("first")
if rank == 0:
    while not file.exists(): time.sleep(0.01)
    dist.destroy_process_group()
if rank == 2: dist.recv(torch.ones(1), 0)"""
    sent = lab._console.send(code, range(3))
    assert eventually(lab._engines.running(sent).replies[1].done)
    jump()
    with pytest.raises(CellError) as caught:
        lab._console.collect(sent)
    assert str(caught.value) == "rank 1: ValueError: first"
    assert not any(note.startswith("rank 2: ") for note in caught.value.notes), caught.value.notes
    alive(lab)


@pytest.mark.parametrize("when", ["end", "outcome"])
def test_a_hang_is_told_with_who_waited_and_for_how_long(lab, jump, monkeypatch, when):
    """The clock jumps just before the lab frees the ranks, or just after it has."""
    went_on = getattr(Running, when)
    monkeypatch.setattr(Running, when, lambda *args, **more: (jump(), went_on(*args, **more))[1])
    began = time.perf_counter()
    with pytest.raises(StuckError) as caught:
        lab.run("x = torch.ones(3)\nif rank == 2:\n    while True: pass\ndist.all_reduce(x)")
    took = time.perf_counter() - began
    assert str(caught.value) == "rank 2 went on computing (line 3), while ranks 0, 1 wait in all_reduce (line 4)"
    seconds = lab.why().seconds
    assert seconds.keys() == {0, 1, 2}
    assert all(lab._engines.limit / 2 < s < took for s in seconds.values()), seconds
    alive(lab)


def test_a_call_that_only_torch_has_noted_stands_on_the_timeline_though_the_clock_has_jumped_since(lab, jump):
    lab.run("x = torch.ones(4)\ndist.group.WORLD.allreduce([x]).wait()\ndist.barrier()")
    jump()
    record = lab.last.timeline().record
    assert [[op.op for op in mine] for mine in record.ops] == [["ProcessGroup.all_reduce", "barrier"]] * 3
    assert record.notes == ()
    assert all(0 <= op.entered < HOUR / 2 for mine in record.ops for op in mine)
