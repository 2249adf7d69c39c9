"""Processes that a rank forks: they end as any other does, and cannot take part in what the ranks do together."""

from __future__ import annotations

import psutil
import pytest

import labkit
from labkit import CellError
from tests.live.processes import eventually

CHILD = """
import contextlib, multiprocessing, os, signal, time
import torch.distributed._functional_collectives as fc
fork = multiprocessing.get_context("fork")
x = torch.ones(1)
other = (rank + 1) % world_size
work = dist.all_reduce(torch.ones(1), async_op=True)

def in_child(call):
    \"\"\"What a call raises in a process of its own.\"\"\"
    def run():
        try:
            told.put(repr(call()))
        except Exception as error:
            told.put(f"{type(error).__name__}: {error}")
    told = fork.Queue()
    child = fork.Process(target=run)
    child.start()
    try:
        return told.get(timeout=20)
    finally:
        child.terminate()
        child.join()
"""
REFUSED = "LabError: Only a rank's own process can communicate with other ranks, and this is one that it has forked"
ALIVE = "y = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y))"


@pytest.fixture(scope="module")
def family():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST")  # else ipykernel does not catch what programs of a cell write
        with labkit.start(3, timeout=2) as lab:
            lab.run(CHILD)
            yield lab


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize(
    "call",
    [
        *("dist.all_reduce(x)", "dist.all_reduce(x, async_op=True)", "dist.barrier()", "dist.monitored_barrier()"),
        *("dist.all_gather_object([None] * 3, 1)", "comms.all_reduce(x)", "dist.group.WORLD.allreduce([x])"),
        *("fc.all_reduce(x, 'sum', dist.group.WORLD)", "timed(lambda: dist.all_reduce(x))", "work.wait()"),
        *("dist.send(x, other)", "dist.recv(x)", "dist.isend(x, other)", "dist.irecv(x, other)"),
        "dist.batch_isend_irecv([dist.P2POp(dist.isend, x, other)])",
        *("timed(lambda: dist.recv(x, other))", "dist.new_group([0, 1])", "dist.destroy_process_group()"),
    ],
)
def test_what_a_forked_process_would_do_with_other_ranks_is_refused_there_at_once(family, call, guarded):
    family.guard = guarded
    try:
        assert all(said.startswith(REFUSED) for said in family.run(f"print(in_child(lambda: {call}))"))
        assert family.run(ALIVE) == ["3\n"] * 3
    finally:
        family.guard = True


@pytest.mark.parametrize("guarded", [True, False])
def test_a_dataset_that_communicates_in_a_worker_is_told_what_to_do(family, guarded):
    family.guard = guarded
    code = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        row = torch.ones(1) * i
        dist.all_reduce(row)
        return row
for batch in torch.utils.data.DataLoader(Rows(), num_workers=1, multiprocessing_context="fork"):
    print(batch)
"""
    try:
        with pytest.raises(CellError) as caught:
            family.run(code)
        assert str(caught.value).startswith(f"ranks 0–2: {REFUSED}")
        assert str(caught.value).endswith("or without such a process (num_workers=0).")
        assert family.run(ALIVE) == ["3\n"] * 3
    finally:
        family.guard = True


SLEEPS = "child = fork.Process(target=time.sleep, args=(600,))\nchild.start()\n"
BEGUN = """begun = fork.Event()
def sleep():  # for a while each: a signal that comes just before a sleep is heard after it
    begun.set()
    while True: time.sleep(0.01)
child = fork.Process(target=sleep)
child.start()
begun.wait()
"""


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (f"{SLEEPS}child.terminate()", -15),
        (f"{SLEEPS}child.kill()", -9),
        (f"{BEGUN}child.terminate()", -15),
        (f"{BEGUN}os.kill(child.pid, signal.SIGINT)", 1),
    ],
)
def test_a_forked_process_ends_as_any_other_does(family, code, how):
    assert family.run(f"{code}\nchild.join(20)\nprint(child.exitcode)") == [f"{how}\n"] * 3
    assert family.run(ALIVE) == ["3\n"] * 3


@pytest.mark.parametrize(
    ("code", "how"), [("", 0), ("if not pid: 1 / 0", 1), ("if not pid: await asyncio.sleep(0)", 0)]
)
def test_a_forked_process_ends_with_its_cell_and_is_no_second_rank(family, code, how):
    family.run(f"import asyncio\npid = os.fork()\n{code}")
    assert family.run("print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))") == [f"{how}\n"] * 3
    assert family.run(ALIVE) == ["3\n"] * 3


@pytest.mark.parametrize(
    "prints",
    [
        "print('hi')",
        "print('h', end=''), sys.stdout.write('i\\n')",
        "logging.getLogger().warning('hi')",
        "os.write(1, b'hi\\n')",
        "subprocess.run(['echo', 'hi'])",
    ],
)
def test_what_a_forked_process_prints_is_shown_and_costs_no_rank(family, capfd, prints):
    family.run("import logging, subprocess, sys\nlogging.getLogger().handlers = [logging.StreamHandler()]")
    family.run(f"child = fork.Process(target=lambda: ({prints}))\nchild.start()\nchild.join()")
    shown = capfd.readouterr()
    assert shown.out + shown.err == "ranks 0–2 │ hi\n"
    assert family.pull("child.exitcode") == [0] * 3
    assert family.run(ALIVE) == ["3\n"] * 3


SLOW = """
import sys, threading, time
write = sys.stdout.write
def late(text):
    if threading.current_thread() is sys.stdout.watch_fd_thread:
        time.sleep(0.1)  # the pipe is empty, and what was in it has not been passed on
    return write(text)
sys.stdout.write = late
"""


def test_what_a_program_writes_is_shown_by_its_own_cell(family, capfd):
    family.run(SLOW)
    try:
        family.run("_ = os.write(1, b'hi\\n')")
        assert capfd.readouterr().out == "ranks 0–2 │ hi\n"
    finally:
        family.run("sys.stdout.write = write")


def test_a_pool_works_and_ends(family):
    assert family.run("with fork.Pool(2) as pool: print(pool.map(abs, [-1, -2]))") == ["[1, 2]\n"] * 3
    assert family.run(ALIVE) == ["3\n"] * 3


def test_the_rank_itself_still_hears_that_it_should_end_and_forked_processes_end_with_it():
    with labkit.start(2, timeout=2) as lab:
        lab.run(f"{CHILD}\npid = os.fork()\nif not pid: time.sleep(600)")
        lab.run("child = fork.Process(target=time.sleep, args=(600,))\nchild.start()\npids = [pid, child.pid]")
        children = [psutil.Process(pid) for pids in lab.pull("pids") for pid in pids]
        assert lab.pull("signal.getsignal(signal.SIGTERM) is signal.SIG_DFL") == [False, False]
    assert eventually(lambda: not any(c.is_running() and c.status() != psutil.STATUS_ZOMBIE for c in children))
