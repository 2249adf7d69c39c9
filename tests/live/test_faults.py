"""What a learner's cell can do to the ranks, and that the next cell works: same ranks, variables kept."""

from __future__ import annotations

import re

import pytest

from labkit import CellError, StuckError
from labkit.rank.cell_end import SHOWN

ALIVE = """
y = torch.ones(1)
dist.all_reduce(y)
print(rank, world_size, int(y), keep)
"""


@pytest.fixture(autouse=True)
def _variables(lab):
    lab.run("keep = 100 + rank")


def ended(lab, code, kind=CellError, ranks=None):
    """Run a cell that must end as an error; the next one must find all ranks with their variables."""
    with pytest.raises(kind) as caught:
        lab.run(code, ranks)
    assert type(caught.value) is kind
    assert lab.run(ALIVE) == [f"{r} {lab.n} {lab.n} {100 + r}\n" for r in range(lab.n)]
    return caught.value


def rejoined(error):
    return any("the process group is joined again; all variables are kept" in note for note in error.notes)


# -- exceptions ---------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_an_exception_on_one_rank_is_the_cause_and_frees_the_others(lab):
    error = ended(lab, "if rank == 1:\n    1 / 0\ndist.barrier()")
    assert str(error) == "rank 1: ZeroDivisionError: division by zero"
    assert error.traceback.startswith("This cell, line 2\n")
    assert error.traceback.count("----> 2") == 1
    assert error.notes[0] == "ranks 0, 2 waited in barrier (line 3) and were freed"
    assert rejoined(error)


def test_an_exception_on_all_ranks_is_told_once_and_breaks_no_group(lab):
    error = ended(lab, "raise KeyError('weights')")
    assert str(error) == "ranks 0–2: KeyError: 'weights'"
    assert error.notes == []


@pytest.mark.parametrize(
    "call", ["send(torch.ones(1), rank)", "recv(torch.ones(1), rank)", "isend(torch.ones(1), rank)"]
)
def test_a_rank_that_exchanges_with_itself_is_told_what_to_do(lab, call):
    error = ended(lab, f"if rank == 1:\n    dist.{call}")
    assert str(error).startswith("rank 1: ")
    assert error.notes[0].startswith("no rank can send to itself or receive from itself: choose a different rank")
    error = ended(lab, "raise ValueError('my peer should not be the same as my rank')")
    assert error.notes == []


def test_different_exceptions_on_the_ranks_are_all_told(lab):
    error = ended(lab, "if rank == 0: raise ValueError('low')\nraise TypeError('high')")
    assert str(error) == "rank 0: ValueError: low"
    assert error.notes == ["ranks 1, 2: TypeError: high"]


def test_an_exception_after_a_collective_leaves_the_group_as_it_is(lab):
    error = ended(lab, "dist.barrier()\nif rank == 2: raise RuntimeError('later')")
    assert str(error) == "rank 2: RuntimeError: later"
    assert error.notes == []


def test_an_exception_before_a_collective_that_needs_no_answer_joins_the_group_anew(lab):
    """The root of a broadcast does not wait, yet its group is one collective ahead."""
    error = ended(lab, "if rank: raise RuntimeError('no')\nwork = dist.broadcast(torch.ones(1), 0, async_op=True)")
    assert str(error) == "ranks 1, 2: RuntimeError: no"
    assert rejoined(error)


def test_a_syntax_error_is_told_once(lab):
    error = ended(lab, "x = (1,\nfor")
    assert re.match(r"ranks 0–2: SyntaxError: ", str(error))


def test_an_unknown_name_is_told_once_with_its_line(lab):
    error = ended(lab, "a = 1\nundefined_name")
    assert str(error) == "ranks 0–2: NameError: name 'undefined_name' is not defined"
    assert "----> 2 undefined_name" in error.traceback
    assert error.notes == ["if an earlier cell makes undefined_name, run that cell first"]


def test_an_error_in_a_function_of_an_earlier_cell_shows_both_lines(lab):
    lab.run("def f(a):\n    return a / 0")
    error = ended(lab, "b = 2\nf(b)")
    assert "This cell, line 2" in error.traceback
    assert "An earlier cell, line 2" in error.traceback


def test_a_recursion_without_end_is_told_in_a_few_frames_which_take_no_seconds_to_render(lab):
    error = ended(lab, "def deep():\n    return deep() + 1\n\nif rank == 1: deep()\ndist.barrier()")
    assert str(error).startswith("rank 1: RecursionError: maximum recursion depth exceeded")
    # IPython 8 says itself "skipping similar frames: deep at line 2 (36 times)".
    assert int(re.search(r"frame.* \(?(\d+) (?:more )?times", error.traceback)[1]) < 2 * SHOWN


# -- waiting ------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_rank_that_never_joins_is_named(lab):
    error = ended(lab, "x = torch.ones(3)\nif rank != 2:\n    dist.all_reduce(x)", StuckError)
    assert str(error) == "rank 2 is missing: it finished the cell, while ranks 0, 1 wait in all_reduce (line 3)"
    assert rejoined(error)


@pytest.mark.parametrize(
    ("waits", "where"),
    [
        ("await f()", "line 3 of f, called in line 4"),
        ("await asyncio.gather(f(), asyncio.sleep(0))", "line 3"),
        ("task = asyncio.create_task(f())\nawait task", "line 3"),
    ],
)
def test_a_hang_inside_a_coroutine_is_told_with_its_line_and_freed(lab, waits, where):
    code = f"import asyncio\nasync def f():\n    if rank != 2: dist.barrier()\n{waits}"
    error = ended(lab, code, StuckError)
    assert str(error) == f"rank 2 is missing: it finished the cell, while ranks 0, 1 wait in barrier ({where})"
    assert rejoined(error)


def test_a_rank_that_awaits_for_longer_than_the_limit_is_named(lab):
    error = ended(lab, "import asyncio\nif rank == 1: await asyncio.sleep(600)\ndist.barrier()", StuckError)
    assert str(error) == "rank 1 went on computing (line 2), while ranks 0, 2 wait in barrier (line 3)"


def test_what_a_failed_cell_has_begun_does_not_go_on_in_the_next_one(lab):
    later = "async def later():\n    await asyncio.sleep(0.01)\n    print('later')"
    ended(lab, f"import asyncio\n{later}\ntask = asyncio.create_task(later())\nawait asyncio.sleep(0)\n1 / 0")
    assert lab.run("await asyncio.sleep(0.05)\nprint(task.cancelled())") == ["True\n"] * 3


def test_a_rank_that_was_not_asked_is_named(lab):
    error = ended(lab, "dist.barrier()", StuckError, ranks=0)
    assert str(error) == "ranks 1, 2 are missing: they never ran the cell, while rank 0 waits in barrier (line 1)"


def test_a_rank_that_computes_for_longer_than_the_limit_is_named(lab):
    error = ended(lab, "if rank == 1:\n    while True: pass\ndist.barrier()", StuckError)
    assert str(error) == "rank 1 went on computing (line 2), while ranks 0, 2 wait in barrier (line 3)"
    assert rejoined(error)


def test_a_rank_that_sleeps_for_longer_than_the_limit_is_named(lab):
    error = ended(lab, "import time\nif rank == 1: time.sleep(600)\ndist.barrier()", StuckError)
    assert str(error) == "rank 1 went on computing (line 2), while ranks 0, 2 wait in barrier (line 3)"


def test_computing_for_longer_than_the_limit_alone_is_no_fault(lab):
    """The limit is for waiting: here all ranks compute until the lab has looked at them for longer than that."""
    code = "import time\nuntil = time.monotonic() + 3\nwhile time.monotonic() < until: pass\nprint('done')"
    assert lab.run(code) == ["done\n"] * 3


def test_waiting_for_less_than_the_limit_is_no_fault(lab, monkeypatch):
    monkeypatch.setattr(lab._engines, "limit", 5)  # two seconds more than it takes, however busy
    code = "import time\nif rank == 0: time.sleep(3)\ndist.barrier()\nprint('met')"
    assert lab.run(code) == ["met\n"] * 3


def test_a_chain_of_ranks_that_all_send_first_is_freed(lab):
    error = ended(lab, "dist.send(torch.ones(1), (rank + 1) % world_size)", StuckError)
    assert str(error) == "ranks 0–2 wait for one another in a cycle, 0 → 1 → 2 → 0: each waits in send (line 1)"


def test_ranks_that_wait_in_different_collectives_are_told_apart(lab):
    code = "x = torch.ones(1)\nif rank == 0:\n    dist.recv(x, 1)\nelse:\n    dist.barrier()"
    error = ended(lab, code, StuckError)
    assert "rank 0 waits in recv (line 3)" in str(error)
    assert "ranks 1, 2 wait in barrier (line 5)" in str(error)


def test_an_asynchronous_operation_that_hangs_in_wait_is_freed(lab):
    code = "work = dist.all_reduce(torch.ones(1), async_op=True) if rank else None\nif rank:\n    work.wait()"
    error = ended(lab, code, StuckError)
    assert str(error) == (
        "rank 0 is missing: it finished the cell, while ranks 1, 2 wait for the handle of all_reduce (line 3)"
    )


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "if rank: work = dist.all_reduce(torch.ones(1), async_op=True)",
            "ranks 1, 2 have begun all_reduce (line 1), and rank 0 never came to it",
        ),
        (
            "works = [dist.all_gather_into_tensor(torch.ones(3), torch.ones(1), async_op=True) for _ in range(rank)]",
            "ranks 1, 2 have begun all_gather_into_tensor (",
        ),
        (
            "dist.barrier()\nif rank == 0: work = dist.broadcast(torch.ones(1), 0, async_op=True)",
            "rank 0 has begun broadcast (line 2), and ranks 1, 2 never came to it",
        ),
        (
            "from torch.distributed import _functional_collectives as fc\n"
            "if rank == 2: x = fc.all_reduce(torch.ones(1), 'sum', dist.group.WORLD)",
            "rank 2 has begun funcol.all_reduce (line 2), and ranks 0, 1 never came to it",
        ),
        (
            "group = dist.new_group([0, 2])\n"
            "if rank == 2: work = dist.all_reduce(torch.ones(1), group=group, async_op=True)",
            "rank 2 has begun all_reduce (line 2), and rank 0 never came to it",
        ),
        (
            "import threading\n"
            "open_ = lambda: dist.barrier(async_op=True)\n"
            "if rank:\n    thread = threading.Thread(target=open_)\n    thread.start()\n    thread.join()",
            "ranks 1, 2 have begun barrier (line 2), and rank 0 never came to it",
        ),
    ],
)
def test_a_collective_that_a_rank_never_came_to_is_told_at_the_cells_end_and_spoils_no_later_cell(lab, code, says):
    """Nobody waits for it: without a word the next cell would take it for one of its own, and give wrong numbers."""
    error = ended(lab, code, StuckError)
    assert says in str(error)
    assert str(error).endswith(": make each call on every rank of its group, in the same cell")
    assert rejoined(error)
    assert lab.run("x = torch.full((1,), 20.)\ndist.all_reduce(x)\nprint(int(x))") == ["60\n"] * 3
    assert lab.run(ALIVE) == [f"{r} 3 3 {100 + r}\n" for r in range(3)]


OPEN = "work = dist.all_reduce(x := torch.ones(1), async_op=True)"
LATER = """import threading
done = threading.Event()
def f():
    done.wait()
    dist.all_reduce(torch.ones(1))
if rank:
    thread = threading.Thread(target=f)
    thread.start()
else:
    work = dist.all_reduce(torch.ones(1), async_op=True)"""
TASK = """import asyncio
ready = asyncio.Event()
async def f():
    await ready.wait()
    return dist.all_reduce(torch.ones(1), async_op=True)
if rank:
    task = asyncio.create_task(f())
    await asyncio.sleep(0)
else:
    work = dist.all_reduce(torch.ones(1), async_op=True)"""


@pytest.mark.parametrize(
    "cells",
    [
        [(OPEN, None), ("work.wait()", None)],
        [(OPEN, 0), ("1 + 1", None), (OPEN, [1, 2]), ("work.wait()", None)],
        [(OPEN, [0, 1]), (f"if rank == 2: {OPEN}", None), ("work.wait()", None)],
        [("if rank == 0: work = dist.isend(torch.ones(1), 1)", None), ("if rank == 1: dist.recv(torch.ones(1), 0)", 1)],
        [(LATER, None), ("done.set()\nthread.join() if rank else work.wait()", None)],
        [(TASK, None), ("ready.set()\nif rank: work = await task\nwork.wait()", None)],
        [("group = dist.new_group([0, 1])\nif rank < 2: work = dist.barrier(group, async_op=True)", None)],
        [("group = dist.new_group([0, 1])\nif rank == 0: dist.destroy_process_group(group)", None)],
    ],
)
def test_what_all_ranks_leave_open_or_may_still_come_to_is_no_fault(lab, cells):
    for code, ranks in cells:
        lab.run(code, ranks)
    assert lab.run(ALIVE) == [f"{r} 3 3 {100 + r}\n" for r in range(3)]


def test_a_sub_group_with_a_missing_rank_is_freed(lab):
    code = """group = dist.new_group([0, 1])
if rank == 0:
    dist.all_reduce(torch.ones(1), group=group)"""
    error = ended(lab, code, StuckError)
    assert str(error) == (
        "rank 1 is missing: it finished the cell, while rank 0 waits in all_reduce among ranks 0, 1 (line 3)"
    )
    assert "sub-groups are gone with the old group: make them again" in error.notes


@pytest.mark.parametrize("call", ["barrier(group=old)", "get_rank(old)", "destroy_process_group(old)"])
def test_a_sub_group_that_went_with_the_old_group_is_called_gone(lab, call):
    lab.run("old = dist.new_group([0, 1, 2])")
    ended(lab, "if rank: dist.barrier()", StuckError)
    error = ended(lab, f"dist.{call}")
    assert error.notes == ["this process group is gone: run the cell that made it with dist.new_group again"]
    error = ended(lab, "raise KeyError('group')")
    assert error.notes == []


MADE = """
import torch.distributed._functional_collectives as funcol
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP

x = torch.ones(4, 2)
mesh = dist.DeviceMesh.from_group(dist.new_group([0, 1, 2]), "cpu")
t = distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
net, layer = DDP(torch.nn.BatchNorm1d(2)), torch.nn.Linear(2, 2)
loss = net(x).sum()
optimizer = ZeroRedundancyOptimizer(layer.parameters(), torch.optim.SGD, lr=0.1)
layer(x).sum().backward()
"""
USED = {
    "net(x)": "DistributedDataParallel",
    "loss.backward()": "call",
    "optimizer.step()": "ZeroRedundancyOptimizer",
    "t.full_tensor()": "DTensor",
    "mesh.get_local_rank()": "DeviceMesh",
    "DDP(layer, device_mesh=mesh)": "DeviceMesh",
    "funcol.all_reduce(x, 'sum', mesh)": "call",
    "1 / 0": "",
    "torch.nn.Linear(3, 3)(x)": "",
}


def test_what_was_made_with_a_group_that_is_gone_is_to_be_made_again(lab):
    lab.run(MADE)
    ended(lab, "if rank: dist.barrier()", StuckError)
    notes = {code: ended(lab, code).notes for code in USED}
    gone = "the process group of this {} is gone: run the cell that made it again"
    assert notes == {code: [gone.format(what)] if what else [] for code, what in USED.items()}
    lab.run(MADE + "net(x).sum().backward()\noptimizer.step()\nt.full_tensor()\nfuncol.all_reduce(x, 'sum', mesh)")


def test_a_group_that_is_gone_is_never_taken_for_one_that_was_made_since(lab):
    lab.run(
        "import torch.distributed._functional_collectives as funcol\nold = dist.new_group([0, 1])\nx = torch.ones(1)"
    )
    ended(lab, "if rank: dist.barrier()", StuckError)
    lab.run("new = dist.new_group([0, 2])\nassert new is dist.GroupMember.NON_GROUP_MEMBER or new.size() == 2")
    error = ended(lab, "if rank == 0: print(funcol.all_reduce(x, 'sum', old) + 1)")
    assert error.notes[0] == "this process group is gone: run the cell that made it with dist.new_group again"


def test_a_sub_group_is_made_where_a_cell_has_replaced_a_ranks_clocks(lab):
    lab.run(
        "import time\nreally = time.monotonic, time.perf_counter, time.sleep\n"
        "if rank == 2: time.monotonic = time.perf_counter = time.sleep = lambda *_: 0.0"
    )
    try:
        assert (
            lab.run("x = torch.ones(1)\n_ = dist.new_group([0, 1])\ndist.all_reduce(x)\nprint(x.item())")
            == ["3.0\n"] * 3
        )
    finally:
        lab.run("time.monotonic, time.perf_counter, time.sleep = really")


def test_a_sub_group_that_lives_is_not_called_gone_where_a_rank_is_not_in_it(lab):
    lab.run("team = dist.new_group([1, 2])\nx = torch.ones(1)")
    error = ended(lab, "if rank: dist.broadcast(x, src=0, group=team)")
    assert "Global rank 0 is not part of group" in str(error)
    assert [note[:32] for note in error.notes] == ["give src or dst as a rank of the"]
    lab.run("if rank: dist.all_reduce(x, group=team)")


def test_a_sub_group_made_by_some_ranks_only_is_freed(lab):
    error = ended(lab, "if rank < 2: dist.new_group([0, 1, 2])", StuckError)
    assert "ranks 0, 1 wait in new_group (line 1)" in str(error)


FAILS_ONCE_IT_IS_AWAITED = """
if rank == 1:
    from labkit.rank.store import MeetingStore
    wait, put, told = MeetingStore.wait, MeetingStore.set, []
    def fails(store, keys, timeout=None):
        if told:
            raise RuntimeError("not ready")
        wait(store, keys, timeout)
    def tells(store, key, value):  # where this rank listens: others wait for it now, or come to it
        if "labkit" not in key:
            told.append(key)
        put(store, key, value)
    MeetingStore.wait, MeetingStore.set = fails, tells
try:
    dist.new_group([0, 1, 2])
finally:
    if rank == 1:
        MeetingStore.wait, MeetingStore.set = wait, put
"""


def test_ranks_that_wait_in_gloo_for_the_connection_of_one_that_has_failed_are_freed(lab, capfd):
    for _ in range(4):  # who of two ranks comes to the other is left to chance
        assert str(ended(lab, FAILS_ONCE_IT_IS_AWAITED)) == "rank 1: RuntimeError: not ready"
    assert "connectFullMesh" not in capfd.readouterr().out


def test_a_call_of_comms_that_a_rank_misses_is_named(lab):
    error = ended(lab, "if rank: comms.all_reduce(torch.ones(1))", StuckError)
    assert str(error) == ("rank 0 is missing: it finished the cell, while ranks 1, 2 wait in comms.all_reduce (line 1)")


def test_a_function_that_waits_is_named_with_its_own_line(lab):
    error = ended(lab, "def f():\n    dist.barrier()\n\nif rank: f()", StuckError)
    assert str(error) == (
        "rank 0 is missing: it finished the cell, while ranks 1, 2 wait in barrier (line 2 of f, called in line 4)"
    )


# -- mismatches ---------------------------------------------------------------------------------------------------


def test_detail_mode_names_what_differs_and_its_hangs_are_freed_as_well(lab):
    lab.run("import os\nos.environ['TORCH_DISTRIBUTED_DEBUG'] = 'DETAIL'\ndist.set_debug_level_from_env()")
    lab.guard = False
    with pytest.raises(CellError):
        lab.run("if rank: dist.barrier()")  # the group that is joined now is in detail mode
    try:
        error = ended(lab, "x = torch.ones(1)\nif rank == 2:\n    dist.barrier()\nelse:\n    dist.all_reduce(x)")
        assert (
            "Detected mismatch between collectives on ranks. Rank 0 is running collective: ALLREDUCE [1] Float"
            in str(error)
        )
        stuck = ended(lab, "if rank == 1:\n    dist.barrier()", StuckError)
        assert str(stuck) == ("ranks 0, 2 are missing: they finished the cell, while rank 1 waits in barrier (line 2)")
        lone = "g = dist.new_group([0, 1])\nif rank == 0: dist.barrier(group=g)"
        assert "rank 0 waits in barrier among ranks 0, 1 (line 2)" in str(ended(lab, lone, StuckError))
    finally:
        lab.run("os.environ['TORCH_DISTRIBUTED_DEBUG'] = 'OFF'\ndist.set_debug_level_from_env()")
        with pytest.raises(StuckError):
            lab.run("if rank: dist.barrier()")
        lab.guard = True


# -- by hand ------------------------------------------------------------------------------------------------------


def test_healing_a_healthy_lab_by_hand_leaves_it_alone(lab, capsys):
    lab.run("group = dist.new_group([0, 1])")
    lab.heal()
    assert capsys.readouterr().out == ""
    lab.run("if rank < 2: dist.barrier(group=group)")


def test_a_group_that_a_learner_destroyed_on_one_rank_is_joined_again_by_hand(lab, capsys):
    lab.run("if rank == 1: dist.destroy_process_group()")
    lab.heal()
    assert "all variables are kept" in capsys.readouterr().out
    assert lab.run(ALIVE) == [f"{r} 3 3 {100 + r}\n" for r in range(3)]


@pytest.mark.smoke
def test_a_group_that_a_learner_destroyed_is_joined_again_before_the_next_cell_which_says_so(lab, capsys):
    lab.run("if rank: dist.destroy_process_group()")
    assert lab.run(ALIVE) == [f"{r} 3 3 {100 + r}\n" for r in range(3)]
    said = capsys.readouterr().out.splitlines()[0]
    assert said == (
        "The lab's process group no longer joined all ranks; the process group is joined again; all variables are kept."
    )
    lab.run(ALIVE)
    assert "no longer joined" not in capsys.readouterr().out


def test_a_learner_may_leave_the_group_and_make_one_by_hand(lab, tmp_path):
    lab.run("dist.destroy_process_group()")
    make = f"dist.init_process_group('gloo', init_method='file://{tmp_path}/met', rank=rank, world_size=world_size)"
    assert lab.run(f"{make}\ndist.barrier()\nprint('met')") == ["met\n"] * 3
    assert lab.run(ALIVE) == [f"{r} 3 3 {100 + r}\n" for r in range(3)]


# -- labkit's own -------------------------------------------------------------------------------------------------


def test_a_mistake_of_the_agents_is_said_and_the_cell_goes_on(lab):
    broken = "from labkit.rank import agent\nwhole = agent.ACTIONS['where']\nagent.ACTIONS['where'] = lambda: 1 / 0"
    lab.run(broken, [1])
    with pytest.warns(UserWarning, match="where on engine .*: ZeroDivisionError: division by zero. Please report it"):
        lab.run("import time\ntime.sleep(1)\ndone = True")
    lab.run("agent.ACTIONS['where'] = whole", [1])
    assert lab.pull("done") == [True] * lab.n
    assert lab.run(ALIVE) == [f"{r} {lab.n} {lab.n} {100 + r}\n" for r in range(lab.n)]
