"""What a lab takes of a machine that learners share: few threads, and next to no processor while it is idle."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from tests.live.processes import Trace
from tests.live.versions import GLOOS_LOOP

GROUPS = 2  # the world and one more
OF_A_GROUP = {**dict.fromkeys(GLOOS_LOOP, 1), "pt_gloo_runloop": 2}  # threads by which Gloo connects, and carries out
OF_SOCKETS = 4  # ZeroMQ's two, of the engine and of the kernel in it
OF_PYTHON = 6  # the main one; ipykernel's for output, control, heart, shell and history
WORKSHOP = 40


def threads(pid):
    """How many threads of each name a process has."""
    found = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        found[(task / "comm").read_text().strip()] += 1
    return found


def busy(pids):
    """Seconds that processors have worked for all threads of these processes."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) / 1e9
        for p in pids
        for task in Path(f"/proc/{p}/task").iterdir()
    )


def test_a_rank_has_no_thread_beyond_its_sockets_its_groups_and_pythons(lab):
    lab.run("""import torch.distributed.nn
group = dist.new_group(list(range(world_size)))
w = torch.randn(300, 300, requires_grad=True)
for _ in range(3): (w @ w).relu().sum().backward()
dist.all_reduce(w.grad, group=group)
threads = torch.get_num_threads()""")
    assert lab.pull("threads") == [1] * lab.n
    for member in lab._engines.members:
        found = threads(member.pid)
        for name, each in OF_A_GROUP.items():
            assert found.pop(name) == GROUPS * each
        sockets = sum(found.pop(name) for name in list(found) if name.startswith("ZMQbg"))
        assert sockets <= OF_SOCKETS
        nameless = 0 if GLOOS_LOOP else GROUPS
        assert found.total() <= OF_PYTHON + nameless, found


def test_the_other_processes_of_a_lab_have_few_threads_however_many_cores_there_are(lab):
    ranks = {m.pid for m in lab._engines.members}
    others = [p for p in Trace.of(lab._address).processes() if p.pid not in ranks]
    each = sorted(threads(p.pid).total() for p in others)
    assert (
        len(each) == 3
    )  # the reaper, the fork server, which may have no other thread when it forks, and the controller
    assert each[:2] == [1, 1]
    assert each[2] <= OF_PYTHON


def test_forty_idle_labs_leave_a_core_to_others(lab):
    """Processor time, not the clock's: other work on the machine makes it no longer, or a little."""
    pids = [p.pid for p in Trace.of(lab._address).processes()]
    before, since = busy(pids), time.monotonic()
    time.sleep(5)
    share = (busy(pids) - before) / (time.monotonic() - since)
    assert WORKSHOP * share < 1, f"{WORKSHOP} labs would take {WORKSHOP * share:.2f} cores"
