"""Travelling through a cell on live ranks: what tensors held before and after each call, and who stood where."""

from __future__ import annotations

import pytest

import labkit
from labkit import LabError, StuckError
from tests.live.versions import GLOO_ALL_TO_ALL

N = 4


@pytest.fixture(scope="module")
def lab():
    with labkit.start(N, timeout=4) as lab:
        yield lab


def held(lab, rank, nth=0):
    """The tensors of a rank's operation: name → (before, after)."""
    return {h.name: (h.before, h.after) for h in lab.last.travel().record.ops[rank][nth].held}


def numbered(name, values):
    return {f"{name}[{i}]": value for i, value in enumerate(values)}


GIVEN = "x = torch.tensor([rank, 10.0])\nxs = [torch.tensor([10.0 * rank + i]) for i in range(4)]\n"
GIVEN += "ys = [torch.zeros(1) for _ in range(4)]\ny, out = torch.zeros(1), torch.zeros(8)\n"
X = [[float(r), 10.0] for r in range(N)]
XS = [[[10.0 * r + i] for i in range(N)] for r in range(N)]
SUM = [6.0, 40.0]
ZERO = [0.0]


def flat(lists):
    return [value for values in lists for value in values]


MINE = {r: numbered("xs", [(v, v) for v in XS[r]]) for r in range(N)}  # what a rank brings stays
CALLS = {
    "dist.broadcast(x, src=2)": lambda r: {"x": (X[r], X[2])},
    "dist.broadcast(tensor=x, src=1)": lambda r: {"x": (X[r], X[1])},
    "dist.all_reduce(x)": lambda r: {"x": (X[r], SUM)},
    "dist.all_reduce(x[:1], op=dist.ReduceOp.MAX)": lambda r: {"x[:1]": ([float(r)], [3.0])},
    "dist.all_reduce(x, async_op=True).wait()": lambda r: {"x": (X[r], SUM)},
    "dist.all_gather(ys, xs[0])": lambda r: {
        **numbered("ys", [(ZERO, XS[i][0]) for i in range(N)]),
        "xs[0]": (XS[r][0], XS[r][0]),
    },
    "dist.all_gather_into_tensor(out, x)": lambda r: {"out": ([0.0] * 8, flat(X)), "x": (X[r], X[r])},
    "dist.reduce_scatter(y, xs)": lambda r: {"y": (ZERO, [60.0 + 4 * r]), **MINE[r]},
    "dist.reduce_scatter_tensor(\n    y, torch.cat(xs))": lambda r: {
        "y": (ZERO, [60.0 + 4 * r]),
        "torch.cat(xs)": (flat(XS[r]), flat(XS[r])),
    },
    "dist.scatter(y, xs if rank == 3 else None, src=3)": lambda r: {
        "y": (ZERO, XS[3][r]),
        **({f"xs if rank == 3 else None[{i}]": (v, v) for i, v in enumerate(XS[3])} if r == 3 else {}),
    },
    "dist.gather(xs[0], ys if rank == 1 else None, dst=1)": lambda r: {
        "xs[0]": (XS[r][0], XS[r][0]),
        **({f"ys if rank == 1 else None[{i}]": (ZERO, XS[i][0]) for i in range(N)} if r == 1 else {}),
    },
    "dist.all_to_all(ys, xs)": lambda r: {**numbered("ys", [(ZERO, XS[i][r]) for i in range(N)]), **MINE[r]},
    "dist.all_to_all_single(out[:4], torch.cat(xs))": lambda r: {
        "out[:4]": ([0.0] * 4, [XS[i][r][0] for i in range(N)]),
        "torch.cat(xs)": (flat(XS[r]), flat(XS[r])),
    },
    "comms.all_reduce(x)": lambda r: {"x": (X[r], X[r]), "returned": (None, SUM)},
    "comms.all_gather(xs[0])": lambda r: {
        "xs[0]": (XS[r][0], XS[r][0]),
        **numbered("returned", [(None, XS[i][0]) for i in range(N)]),
    },
    "comms.scatter(xs if rank == 0 else None)": lambda r: {
        "returned": (None, XS[0][r]),
        **({f"xs if rank == 0 else None[{i}]": (v, v) for i, v in enumerate(XS[0])} if r == 0 else {}),
    },
    "dist.barrier()": lambda r: {},
    "dist.broadcast_object_list([x], src=1)": lambda r: {},
    "dist.all_reduce(torch.ones(65))": lambda r: {},
}


@pytest.mark.parametrize("call", [pytest.param(c, marks=GLOO_ALL_TO_ALL if "all_to_all(" in c else ()) for c in CALLS])
def test_each_collective_notes_what_its_tensors_held_before_and_after(lab, call):
    lab.run(GIVEN + call)
    assert [held(lab, r) for r in range(N)] == [CALLS[call](r) for r in range(N)]


def test_sends_and_receives_note_what_they_carry(lab):
    code = "y = torch.zeros(2)\nif rank == 0: dist.send(x, dst=1)\nif rank == 1: dist.recv(y, src=0)\n"
    lab.run(GIVEN + code + "if rank == 2: work = dist.isend(x, 3)\nif rank == 3: work = dist.irecv(y, 2)\n"
            "if rank > 1: work.wait()")  # fmt: skip
    assert held(lab, 0) == {"x": (X[0], X[0])}
    assert held(lab, 1) == {"y": ([0.0, 0.0], X[0])}
    assert held(lab, 3) == {"y": ([0.0, 0.0], X[2])}


def test_an_asynchronous_call_changes_its_tensor_at_its_wait_and_keeps_none_alive(lab):
    code = (
        "import gc, time, weakref\nz = torch.ones(3)\nwork = dist.all_reduce(z, async_op=True)\nwork.wait()\n"
        "work = dist.all_reduce(lost := torch.ones(3), async_op=True)\nwork.wait()\n"
        "gone = weakref.ref(lost)\ndel lost, work\nuntil = time.monotonic() + 30\n"
        "while gone() is not None and time.monotonic() < until: gc.collect()\n"  # Gloo's thread lets go of it too
        "assert gone() is None"
    )
    lab.run(code)
    travel = lab.last.travel()
    events = travel.moments.events
    changed = [
        k for k in range(len(events)) for v in travel.moments.values(k, 1) if v.name == "z" and v.values == [4.0] * 3
    ]
    came = next(k for k, e in enumerate(events) if e.rank == 1 and e.what == "leaves")
    assert min(changed) == came
    assert events[came - 1 : came + 1][-1].op.waited


def test_a_call_in_a_function_and_one_in_a_sub_group_are_named_as_they_are_written(lab):
    lab.run(
        "pair = dist.new_group([1, 3])\ndef total(parts):\n    if rank in (1, 3):\n"
        "        dist.all_reduce(parts[0], group=pair)\ntotal([torch.ones(1) * rank])"
    )
    travel = lab.last.travel()
    mine = [op for op in travel.record.ops[3] if op.held]
    assert [(h.name, h.before, h.after) for h in mine[0].held] == [("parts[0]", [3.0], [4.0])]
    called = next(k for k, e in enumerate(travel.moments.events) if e.op and e.op.ranks == (1, 3))
    assert travel.moments.doing(called, travel.moments.events[called].rank).whom == (
        4 - travel.moments.events[called].rank,
    )


def test_what_runs_while_the_recorder_pauses_is_noted_nowhere(lab):
    lab.run("from labkit.rank import recorder\nx = torch.ones(1)\nwith recorder.paused(): dist.all_reduce(x)\n"
            "dist.all_reduce(x)")  # fmt: skip
    assert held(lab, 0) == {"x": ([4.0], [16.0])}


def test_after_a_hang_the_last_moment_shows_who_stands_where(lab):
    with pytest.raises(StuckError):
        lab.run("x = torch.ones(1) * rank\ndist.all_reduce(x)\nif rank != 2:\n    dist.all_reduce(x)")
    travel = lab.last.travel()
    for r in (0, 1, 3):
        doing = travel.moments.doing(travel.count, r)
        assert (doing.op.line, doing.whom, doing.done, doing.of) == (4, (2,), 1, 2)
        assert [(v.name, v.values, v.open) for v in travel.moments.values(travel.count, r)] == [("x", [6.0], True)]
    assert travel.does(travel.count, 2) == "finished the cell"
    assert "waiting for rank 2; x = [6]" in repr(travel)


def test_of_thousands_of_operations_the_last_moments_are_shown_and_the_others_counted(lab):
    lab.run("x = torch.zeros(1)\nfor i in range(2500):\n    x.fill_(i)\n    dist.all_reduce(x, op=dist.ReduceOp.MAX)")
    travel = lab.last.travel()
    assert len(travel.moments) == 400
    assert travel.moments.left_out == N * 2000 * 2 + N + 1 - 400
    assert travel.moments.values(travel.count, 0)[0].values == [2499.0]
    assert travel.moments.doing(travel.count, 0).done == 2500
    assert f"{travel.moments.left_out:,} before them are left out" in repr(travel)


def test_a_cell_that_called_nothing_says_what_to_do(lab):
    lab.run("x = 1")
    with pytest.raises(LabError, match=r"Run one that communicates first"):
        lab.last.travel()


def test_a_rank_that_was_stopped_is_shown_beside_those_that_wait_for_it(lab):
    with pytest.raises(LabError):
        lab.run(
            "import os, signal\nx = torch.ones(1)\ndist.all_reduce(x)\n"
            "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ndist.all_reduce(x)"
        )
    travel = lab.last.travel()
    for r in (0, 2, 3):
        assert travel.moments.doing(travel.count, r).whom == (1,)
        assert [v.values for v in travel.moments.values(travel.count, r)] == [[4.0]]
    assert travel.does(travel.count, 1).startswith("died")
