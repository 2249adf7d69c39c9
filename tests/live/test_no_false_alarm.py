"""Cells in which ranks compute, or wait for what is their own, for longer than the limit: no wait for another rank."""

from __future__ import annotations

import pytest

from labkit.cluster.run import Running

LIMIT = 1.0
BEGIN = """
import time
LONG = 2.5
until = time.monotonic() + LONG
"""
LATER = "import threading\ndef later(act): threading.Timer(LONG, act).start()\n"
KINDS = {
    "Python": "while time.monotonic() < until: pass",
    "numpy": "import numpy\na = numpy.ones((300, 300))\nwhile time.monotonic() < until: a @ a",
    "torch, several threads": """
threads, a = torch.get_num_threads(), torch.ones(700, 700)
torch.set_num_threads(2)
while time.monotonic() < until: a @ a
torch.set_num_threads(threads)""",
    "a call of C that lets others run": "import hashlib\n_ = hashlib.pbkdf2_hmac('sha256', b'', b'', 6_000_000)",
    "a call of C that lets nobody run": "import ctypes\n_ = ctypes.PyDLL(None).usleep(int(LONG * 1e6))",
    "a backward pass in Python": """
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1
    @staticmethod
    def backward(ctx, gradient):
        while time.monotonic() < until: pass
        return gradient
Slow.apply(torch.ones(1, requires_grad=True)).backward()""",
    "a backward pass in C++": """
a = torch.eye(700, requires_grad=True)
began, y = time.monotonic(), a @ a
for _ in range(int(LONG / (time.monotonic() - began))): y = y @ a
y.sum().backward()""",
    "sleep": "time.sleep(LONG)",
    "a process": "import subprocess\n_ = subprocess.run(['sleep', str(LONG)])",
    "what a process writes": "import subprocess\n_ = subprocess.Popen(['sleep', str(LONG)], stdout=-1).communicate()",
    "a lock": f"{LATER}lock = threading.Lock()\n_ = lock.acquire()\nlater(lock.release)\n_ = lock.acquire()",
    "an event": f"{LATER}event = threading.Event()\nlater(event.set)\n_ = event.wait()",
    "a queue": f"{LATER}import queue\nq = queue.Queue()\nlater(lambda: q.put(1))\n_ = q.get()",
    "a thread": "import threading\nt = threading.Thread(target=time.sleep, args=(LONG,))\nt.start()\nt.join()",
    "a pool of threads": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor() as pool: pool.submit(time.sleep, LONG).result()""",
    "a pipe": f"{LATER}import os\nr, w = os.pipe()\nlater(lambda: os.close(w))\n_ = os.read(r, 1), os.close(r)",
    "a socket": f"{LATER}import socket\na, b = socket.socketpair()\nlater(lambda: b.send(b'1'))\n_ = a.recv(1)",
    "await": "import asyncio\nawait asyncio.sleep(LONG)",
    "a thread of asyncio": "import asyncio\nawait asyncio.to_thread(time.sleep, LONG)",
    "select": "import select\n_ = select.select([], [], [], LONG)",
    "a DataLoader's worker": """
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 1
    def __getitem__(self, i):
        time.sleep(LONG)
        return i
_ = list(DataLoader(Slow(), num_workers=1))""",
    "some ranks only": "if rank: time.sleep(LONG)",
}
FLYING = {
    "a collective": "work = [dist.all_reduce(torch.ones(4), async_op=True)]",
    "a collective in a sub-group": """
group = dist.new_group([0, 1])
work = [dist.all_reduce(torch.ones(4), group=group, async_op=True)] if rank < 2 else []""",
    "sends and receives": """
right, left = (rank + 1) % world_size, (rank - 1) % world_size
work = [dist.isend(torch.ones(4), right), dist.irecv(torch.zeros(4), left)]""",
    "threads in a group of their own": """
import threading
group = dist.new_group()
def talk():
    for _ in range(50):
        dist.barrier(group=group)
        time.sleep(LONG / 50)
thread = threading.Thread(target=talk)
thread.start()
work = []""",
}
MEANWHILE = {name: KINDS[name] for name in ("Python", "torch, several threads", "sleep", "a lock")}


@pytest.fixture
def told(lab, monkeypatch):
    """The waits that the lab was told of, on ranks that may wait no longer than a second."""
    found = []
    stuck = Running.stuck

    def looked(running):
        answer = stuck(running)
        found.extend(where for where in running.where.values() if where["state"] == "collective")
        return answer

    monkeypatch.setattr(Running, "stuck", looked)
    monkeypatch.setattr(lab._engines, "limit", LIMIT)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_is_told_to_wait_for_another_rank_who_is_busy_for_long_with(lab, told, kind):
    assert lab.run(f"{BEGIN}{KINDS[kind]}\nprint('done')") == ["done\n"] * lab.n
    assert told == []


def test_ranks_that_make_one_group_after_another_get_on(lab, told):
    """Each waits half a second for the rank that comes later, in the same line; its bytes go with the group.

    Only the number of groups tells that such a rank takes its steps.
    """
    makes = "group = dist.new_group(range(1, world_size))"
    goes = "if rank: dist.destroy_process_group(group)"
    six = f"if not rank: time.sleep(2 * LONG)\nfor _ in range(6):\n    {makes}\n    {goes}"
    assert lab.run(f"{BEGIN}{six}\nprint('done')") == ["done\n"] * lab.n
    assert {where["op"] for where in told} == {"new_group"}
    assert len({where["steps"][1] for where in told}) > 3


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("flying", FLYING)
def test_nobody_is_freed_who_is_busy_for_long_beside(lab, told, flying, meanwhile):
    code = f"{BEGIN}{FLYING[flying]}\n{MEANWHILE[meanwhile]}\nfor one in work: one.wait()\nprint('done')"
    assert lab.run(code) == ["done\n"] * lab.n
    if "threads" in flying:
        lab.run("thread.join()")


def test_nobody_is_freed_whose_thread_talks_for_long_while_it_waits_for_that_thread(lab, told):
    code = f"{BEGIN}{FLYING['threads in a group of their own']}\nthread.join()\nprint('done')"
    assert lab.run(code) == ["done\n"] * lab.n
