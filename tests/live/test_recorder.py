"""What the ranks record of a cell, and what `lab.last.timeline` and `lab.last.steps` make of it, on four live ranks."""

from __future__ import annotations

import time

import pytest

import labkit
from labkit import CellError, LabError, StuckError
from tests.live.versions import GLOO_ALL_TO_ALL

RING = """
def ring_all_reduce(x):
    chunks = list(x.chunk(world_size))
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size - 1):
        request = dist.isend(chunks[(rank - step) % world_size], right)
        got = torch.empty_like(chunks[0])
        dist.recv(got, left)
        request.wait()
        chunks[(rank - step - 1) % world_size] += got
    for step in range(world_size - 1):
        request = dist.isend(chunks[(rank - step + 1) % world_size], right)
        dist.recv(chunks[(rank - step) % world_size], left)
        request.wait()

x = torch.arange(4.) + 10 * rank
ring_all_reduce(x)
"""


@pytest.fixture(scope="module")
def lab():
    with labkit.start(4, timeout=4) as lab:
        yield lab


def recorded(lab, code, ranks=None):
    lab.run(code, ranks)
    return lab.last.timeline().record


def ops(record, rank):
    return [(o.op, o.peer, o.bytes, o.line) for o in record.ops[rank]]


COLLECTIVES = {
    "dist.broadcast(x, src=2)": ("broadcast", 2, 16),
    "dist.broadcast(x, 2)": ("broadcast", 2, 16),
    "dist.broadcast(x, group_src=1)": ("broadcast", 1, 16),
    "dist.reduce(x, dst=1)": ("reduce", 1, 16),
    "dist.all_reduce(x, op=dist.ReduceOp.MAX)": ("all_reduce", None, 16),
    "dist.gather(x, l if rank == 0 else None)": ("gather", 0, 16),
    "dist.all_gather(l, x)": ("all_gather", None, 16),
    "dist.scatter(x, l if rank == 3 else None, src=3)": ("scatter", 3, 16),
    "dist.reduce_scatter(x, l)": ("reduce_scatter", None, 64),
    "dist.all_to_all(l, [t.clone() for t in l])": ("all_to_all", None, 64),
    "dist.all_to_all_single(torch.empty(4), x)": ("all_to_all_single", None, 16),
    "dist.barrier()": ("barrier", None, None),
    "dist.monitored_barrier()": ("monitored_barrier", None, None),
    # an object's bytes are those of what carries it: its pickle (5 bytes) and the sizes before it (8 each)
    "dist.broadcast_object_list([rank], src=1)": ("broadcast_object_list", 1, 5 + 8),
    "dist.all_gather_object([None] * 4, rank)": ("all_gather_object", None, 5 + 8),
    "dist.gather_object(rank, [None] * 4 if rank == 2 else None, dst=2)": ("gather_object", 2, 5 + 8),
    "dist.scatter_object_list([None], [0, 1, 2, 3], src=0)": ("scatter_object_list", 0, 5 + 2 * 8),
    "comms.all_reduce(x)": ("comms.all_reduce", None, 16),
    "comms.reduce(x)": ("comms.reduce", 0, 16),
    "comms.broadcast(rank, src=3)": ("comms.broadcast", 3, 5),
    # what passes by torch's Python functions: the process group notes no root
    "dist.group.WORLD.allreduce(x).wait()": ("ProcessGroup.all_reduce", None, 16),
    "dist.group.WORLD.allreduce([x.double()]).wait()": ("ProcessGroup.all_reduce", None, 32),
    "dist.group.WORLD.broadcast(x, 2).wait()": ("ProcessGroup.broadcast", None, 16),
    "dist.group.WORLD.barrier().wait()": ("ProcessGroup.barrier", None, None),
    "funcol.all_reduce(x, 'sum', dist.group.WORLD) + 1": ("funcol.all_reduce", None, 16),
    "funcol.broadcast(x, 3, dist.group.WORLD) + 1": ("funcol.broadcast", None, 16),
    "funcol.all_to_all_single(x, None, None, dist.group.WORLD) + 1": ("funcol.all_to_all_single", None, 16),
}


@pytest.mark.parametrize(
    "call", [pytest.param(c, marks=GLOO_ALL_TO_ALL if "all_to_all(" in c else ()) for c in COLLECTIVES]
)
def test_each_collective_is_recorded_once_with_its_root_and_bytes(lab, call):
    before = "import torch.distributed._functional_collectives as funcol; x = torch.ones(4)\n"
    record = recorded(lab, f"{before}l = [torch.ones(4) for _ in range(4)]\n{call}")
    op, root, size = COLLECTIVES[call]
    assert [ops(record, r) for r in range(4)] == [[(op, root, size, 3)]] * 4
    assert record.meetings[0].ranks == (0, 1, 2, 3)


def test_the_single_forms_are_recorded_under_the_name_that_was_called(lab):
    code = (
        "x = torch.ones(4)\ndist.all_gather_single(torch.empty(16), x)\ndist.reduce_scatter_single(torch.empty(1), x)"
    )
    record = recorded(lab, code)
    assert [o.op for o in record.ops[0]] == ["all_gather_single", "reduce_scatter_single"]
    assert [o.bytes for o in record.ops[0]] == [16, 16]


def test_sends_and_receives_know_their_peers_lines_and_functions(lab):
    record = recorded(
        lab,
        "x = torch.ones(2)\ndef hand_on(x):\n    if rank == 0:\n        dist.send(x, 1, tag=7)\n"
        "    if rank == 1:\n        dist.recv(x, src=0, tag=7)\nhand_on(x)",
    )
    (send,), (recv,) = record.ops[0], record.ops[1]
    assert (send.op, send.peer, send.tag, send.line, send.function) == ("send", 1, 7, 7, ("hand_on", 4))
    assert (recv.op, recv.peer, recv.dtype, recv.shape, recv.bytes) == ("recv", 0, "float32", (2,), 8)
    assert [(m.send, m.recv) for m in record.messages] == [(send, recv)]
    assert record.ops[2] == record.ops[3] == ()


def test_asynchronous_ones_know_where_they_were_waited_for(lab):
    code = (
        "x = torch.ones(2) * rank\na = dist.isend(x, (rank + 1) % 4)\nb = dist.irecv(x.clone(), (rank - 1) % 4)\n"
        "a.wait()\nb.wait()\nc = dist.all_reduce(x, async_op=True)\nc.wait()\nd = dist.all_reduce(x, async_op=True)"
    )
    record = recorded(lab, code)
    assert [o.waited and o.waited[2] for o in record.ops[0]] == [4, 5, 7, None]
    assert all(o.asynchronous for o in record.ops[0])
    lab.run("d.wait()")


@pytest.mark.parametrize(
    "future", ["all_reduce(x, async_op=True).get_future()", "all_reduce_coalesced([x], async_op=True)"]
)
def test_a_call_of_which_one_has_the_future_is_not_said_to_be_never_waited_for(lab, future):
    calls = recorded(lab, f"x = torch.ones(4)\n_ = dist.{future}.wait()").calls
    assert [op.asked and not op.waited for op in calls] == [True] * lab.n
    facts = lab.last.timeline().facts
    assert "without a .wait()" in facts
    assert "never waited for" not in facts


def test_a_batch_is_recorded_message_by_message(lab):
    record = recorded(
        lab,
        "x, y = torch.ones(2) * rank, torch.empty(2)\n"
        "send, recv = dist.P2POp(dist.isend, x, (rank + 1) % 4), dist.P2POp(dist.irecv, y, (rank - 1) % 4)\n"
        "for work in dist.batch_isend_irecv([send, recv]):\n    work.wait()",
    )
    assert [(o.op, o.peer, o.batch) for o in record.ops[1]] == [("isend", 2, True), ("irecv", 0, True)]
    assert len(record.messages) == 4


def test_a_wait_is_told_with_the_function_that_it_stands_in(lab):
    ring = (
        "def ring(x):\n    y = torch.empty_like(x)\n"
        "    ops = [dist.P2POp(dist.isend, x, (rank + 1) % 4), dist.P2POp(dist.irecv, y, (rank - 1) % 4)]\n"
        "    works = dist.batch_isend_irecv(ops)\n    for work in works:\n        work.wait()\n    return y\n\n"
    )
    record = recorded(lab, ring + "y = ring(torch.ones(2))")
    assert {o.wait_place for o in record.ops[0]} == {"line 6 of ring"}
    record = recorded(lab, "def end(work):\n    work.wait()\n\n\nend(dist.all_reduce(y, async_op=True))")
    assert record.ops[0][0].wait_place == "line 2 of end, called in line 5"
    record = recorded(lab, "work = dist.all_reduce(y, async_op=True)\nwork.wait()")
    assert record.ops[0][0].wait_place == "line 2"


def test_a_receive_from_anybody_learns_who_it_was(lab):
    code = "x = torch.ones(1)\nif rank == 3: dist.send(x, 0)\nif rank == 0: dist.recv(x)\ndist.barrier()"
    assert recorded(lab, code).ops[0][0].peer == 3


def test_a_sub_group_is_told_in_ranks_of_the_world(lab):
    code = "pair = dist.new_group([1, 3])\nx = torch.ones(1)\nif rank in (1, 3): dist.broadcast(x, src=3, group=pair)"
    record = recorded(lab, code)
    assert [(m.ranks, m.ops[0].peer) for m in record.meetings if m.names == ["broadcast"]] == [((1, 3), 3)]


def test_only_the_last_cell_is_remembered_and_nothing_between_cells(lab):
    lab.run("dist.barrier()")
    lab.run("x = torch.ones(1)\ndist.all_reduce(x)")
    lab.look("x")
    assert [o.op for o in lab.last.timeline().record.ops[0]] == ["all_reduce"]


BELOW = "import torch.distributed._functional_collectives as funcol\nx, world = torch.ones(4), dist.group.WORLD\n"


def test_what_is_seen_by_two_witnesses_is_one_operation(lab):
    calls = "dist.all_reduce(x)\nfuncol.all_reduce(x, 'sum', world) + 1\nworld.allreduce(x).wait()\ndist.barrier()"
    record = recorded(lab, BELOW + calls)
    assert [(o.op, o.line, o.witnessed) for o in record.ops[1]] == [
        ("all_reduce", 3, False),
        ("funcol.all_reduce", 4, True),
        ("ProcessGroup.all_reduce", 5, True),
        ("barrier", 6, False),
    ]
    assert [(m.nth, len(m.ops), m.mixed) for m in record.meetings] == [(k, 4, False) for k in range(4)]
    assert record.notes == ()


def test_a_functional_reduce_scatter_is_called_that_though_gloo_runs_an_all_reduce(lab):
    code = "def half(x):\n    return funcol.reduce_scatter_tensor(x.double(), 'sum', 0, world) + 1\nhalf(x)"
    (op,) = recorded(lab, BELOW + code).ops[3]
    assert (op.primitive.name, op.dtype, op.bytes, op.line) == ("reduce_scatter", "float64", 32, 5)
    assert op.function == ("half", 4)


def test_ddps_buckets_and_what_it_checks_first_are_seen(lab):
    code = "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))\nmodel(torch.ones(1, 3)).sum()"
    record = recorded(lab, code + ".backward()")
    buckets = [o for o in record.ops[0] if o.primitive.name == "all_reduce"]
    assert [(o.op, o.dtype, o.bytes, o.line) for o in buckets] == [("ProcessGroup.all_reduce", "float32", 32, 2)]
    assert {o.line for o in record.ops[0]} == {1, 2}
    assert all(len(m.ops) == 4 for m in record.meetings)


def test_dtensors_redistribution_is_seen(lab):
    record = recorded(
        lab,
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.tensor import Replicate, Shard, distribute_tensor\n"
        "parts = distribute_tensor(torch.arange(8.), init_device_mesh('cpu', (4,)), [Shard(0)])\n"
        "parts.redistribute(placements=[Replicate()]).to_local() + 1",
    )
    assert [(o.primitive.name, o.bytes, o.line) for o in record.ops[2]] == [("scatter", 8, 3), ("all_gather", 8, 4)]


def test_what_a_sub_group_does_by_itself_is_seen_in_ranks_of_the_world(lab):
    code = "pair = dist.new_group([1, 3])\nif rank in (1, 3):\n    dist.barrier(pair)\n    pair.allreduce(x).wait()"
    record = recorded(lab, BELOW + code)
    assert [(m.ranks, m.nth, m.names) for m in record.meetings] == [
        ((1, 3), 0, ["barrier"]),
        ((1, 3), 1, ["ProcessGroup.all_reduce"]),
    ]


def test_what_a_group_did_that_is_gone_again_is_seen(lab):
    code = "all_of_us = dist.new_group()\nall_of_us.allreduce(x).wait()\ndist.destroy_process_group(all_of_us)"
    assert ops(recorded(lab, BELOW + code), 0) == [("ProcessGroup.all_reduce", None, 16, 4)]


def test_a_process_groups_own_sends_and_receives_are_seen(lab):
    code = (
        "if rank == 0: world.send([x], 1, 3).wait()\nif rank == 1: world.recv([x], 0, 3).wait()\n"
        "if rank == 2: dist.send(x, 3)\nif rank == 3: world.recv_anysource([x], 0).wait()"
    )
    record = recorded(lab, BELOW + code)
    assert [(m.send.op, m.recv.op, m.src, m.dst, m.send.bytes) for m in record.messages] == [
        ("ProcessGroup.send", "ProcessGroup.recv", 0, 1, 16),
        ("send", "ProcessGroup.recv_anysource", 2, 3, 16),
    ]
    assert [o.waited and o.waited[2] for o in record.ops[0]] == [3]


def test_what_is_sent_as_an_object_has_its_bytes(lab):
    record = recorded(
        lab, "if rank == 0: dist.send_object_list([7], 1)\nif rank == 1: dist.recv_object_list([None], 0)"
    )
    sizes = {o.bytes for mine in record.ops for o in mine}
    assert [o.op for o in record.ops[0]] == ["send_object_list"]
    assert len(sizes) == 1
    assert sizes.pop() >= 8 + 5


def test_calls_that_a_group_counts_and_nobody_notes_are_counted(lab):
    record = recorded(lab, BELOW + "world.monitored_barrier()")
    assert record.ops == ((),) * 4
    assert "of which nothing else is known" in record.notes[0]


def test_what_labkit_itself_calls_in_a_cell_is_nobodys(lab):
    record = recorded(lab, "timed(lambda: dist.group.WORLD.allreduce(torch.ones(1)).wait(), repeat=1)\ndist.barrier()")
    assert [[o.op for o in mine] for mine in record.ops] == [["barrier"]] * 4
    assert record.notes == ()


def test_the_bytes_on_the_wire_are_those_of_the_cell(lab):
    record = recorded(lab, "x = torch.ones(1000)\nif rank == 0: dist.send(x, 1)\nif rank == 1: dist.recv(x, 0)")
    sent = [log.sent for log in record.logs]
    if sent[0] is not None:  # not counted where this is no Linux
        assert 4000 < sent[0] <= 4000 + 144
        assert sent[1] <= 144
        assert sent[2:] == [0, 0]


def test_ranks_that_had_no_part_in_the_cell_have_no_record(lab):
    lab.run("dist.barrier()")
    record = recorded(lab, "x = torch.ones(1)\nif rank == 1: dist.send(x, 2)\nelse: dist.recv(x, 1)", [1, 2])
    assert [len(mine) for mine in record.ops] == [0, 1, 1, 0]
    assert record.notes == ()


def test_a_call_that_raises_is_recorded_and_raises_the_same(lab):
    with pytest.raises(CellError, match="ValueError"):
        lab.run("dist.send(torch.ones(1), dst=rank)")
    assert [o.error for o in lab.last.timeline().record.ops[2]] == ["ValueError"]


def test_torchs_own_complaints_stay_as_they_are(lab):
    with pytest.raises(CellError, match="missing 1 required positional argument: 'tensor'"):
        lab.run("dist.all_reduce()")


def test_after_a_hang_the_diagram_names_who_never_came(lab):
    with pytest.raises(StuckError):
        lab.run("if rank != 2: dist.barrier()")
    timeline = lab.last.timeline()
    assert "rank 2 never came to barrier (line 1) of ranks 0, 1, 3" in timeline.facts
    assert "for rank 2, which never came" in timeline.times


def test_a_late_rank_is_waited_for(lab):
    began = time.monotonic()
    lab.run("import time\nx = torch.ones(1)\nif rank == 2: time.sleep(1)\ndist.all_reduce(x)")
    took = time.monotonic() - began
    longest = lab.last.timeline().record.waits[:3]
    assert {w.op.rank for w in longest} == {0, 1, 3}
    assert {w.for_ for w in longest} == {2}
    assert all(0.1 < w.seconds < took for w in longest)


def test_wrapped_functions_still_show_torchs_source_and_signature(lab):
    said = lab.run(
        "import inspect\nfrom IPython.core.oinspect import getsource\n"
        "print('def all_reduce(' in getsource(dist.all_reduce), [*inspect.signature(dist.recv).parameters])",
        0,
    )[0]
    assert said == "True ['tensor', 'src', 'group', 'tag', 'group_src']\n"


def test_a_handle_is_torchs_own_and_wait_returns_what_it_returned(lab):
    said = lab.run("w = dist.all_reduce(torch.ones(1), async_op=True)\nprint(type(w) is dist.Work, w.wait())")
    assert said == ["True True\n"] * 4


def test_ddp_and_backward_leave_no_trace_in_the_results(lab):
    code = (
        "torch.manual_seed(0)\nmodel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "model(torch.ones(1, 2) * rank).sum().backward()\nprint(model.module.weight.grad.tolist())"
    )
    assert lab.run(code) == ["[[1.5, 1.5]]\n"] * 4


def test_more_operations_than_are_kept_are_counted(lab):
    lab.run("x = torch.ones(1)\nmine = [dist.new_group([r]) for r in range(4)][rank]\n")
    record = recorded(lab, "for _ in range(2100): dist.all_reduce(x, group=mine)")
    assert len(record.ops[0]) == 2000
    assert "up to 100 earlier ones" in record.notes[0]


def test_a_ring_all_reduce_steps_through_two_times_n_minus_one_rounds(lab):
    lab.run(RING)
    steps = lab.last.steps()
    assert steps.count == 6
    assert repr(steps).splitlines() == [
        "step 1: 0→1 [0] · 1→2 [11] · 2→3 [22] · 3→0 [33]",
        "step 2: 0→1 [36] · 1→2 [10] · 2→3 [32] · 3→0 [54]",
        "step 3: 0→1 [56] · 1→2 [49] · 2→3 [30] · 3→0 [63]",
        "step 4: 0→1 [64] · 1→2 [68] · 2→3 [72] · 3→0 [60]",
        "step 5: 0→1 [60] · 1→2 [64] · 2→3 [68] · 3→0 [72]",
        "step 6: 0→1 [72] · 1→2 [60] · 2→3 [64] · 3→0 [68]",
        "after step 6: ranks 0–3: x = [60, 64, 68, 72]",
    ]
    for r in range(4):
        left = steps.film.replay.contents(r, 0, 6)
        assert [sorted(e.origin.counts.values()) for e in left] == [[1, 1, 1, 1]] * 4
        assert [e.origin.ranks for e in left] == [[0, 1, 2, 3]] * 4


def test_the_same_cell_has_the_same_picture_again(lab):
    lab.run(RING)
    first = lab.last.steps()._repr_html_()
    lab.run(RING)
    assert lab.last.steps()._repr_html_() == first


def test_a_gather_by_hand_fills_the_roots_list_step_by_step(lab):
    lab.run(
        "x = torch.arange(2.) + 10 * rank\nif rank == 0:\n    out = [x.clone()] + [torch.empty(2) for _ in range(3)]\n"
        "    for r in range(1, 4): dist.recv(out[r], r)\nelse:\n    dist.send(x, 0)"
    )
    steps = lab.last.steps()
    assert repr(steps).splitlines()[:3] == ["step 1: 1→0 [10, 11]", "step 2: 2→0 [20, 21]", "step 3: 3→0 [30, 31]"]
    assert "out[1] = [10, 11], out[2] = [20, 21], out[3] = [30, 31]" in steps.film.told(3)


def test_a_cell_without_messages_has_no_steps(lab):
    lab.run("dist.barrier()")
    with pytest.raises(LabError, match="sent nothing from rank to rank"):
        lab.last.steps()


def test_what_timed_measures_is_torch_with_nothing_around_it(lab):
    lab.run("""
def ours():
    functions = (dist.barrier, dist.distributed_c10d.barrier, comms.barrier, dist.Work.wait)
    return [hasattr(f, "recorded") for f in functions]

def fails():
    1 / 0

seen = []
timed(lambda: seen.append(ours()), repeat=1, calls=1)
seen.append(ours())
try:
    timed(fails, repeat=1)
except ZeroDivisionError:
    seen.append(ours())
dist.barrier()
""")
    assert lab.pull("seen[0]") == [[False] * 4] * 4
    assert lab.pull("seen[-2:]") == [[[True] * 4] * 2] * 4
    assert [[o.op for o in ops] for ops in lab.last.timeline().record.ops] == [["barrier"]] * 4


def test_a_stop_in_the_wrong_moment_costs_no_later_cell_its_record(lab):
    lab.run("from labkit.rank import recorder\nrecorder._inside.call = True\nrecorder._put(ours=False)")
    assert recorded(lab, "dist.barrier()").ops[0][0].op == "barrier"


def test_reading_the_process_groups_record_does_not_import_torchs_compiler():
    with labkit.start(2) as two:
        two.run("dist.group.WORLD.allreduce(torch.ones(4)).wait()")
        assert [o.line for o in two.last.timeline().record.ops[0]] == [1]
        assert two.pull("'torch._inductor' in __import__('sys').modules") == [False, False]
        assert two.pull("'_inductor' in vars(torch)") == [False, False]
