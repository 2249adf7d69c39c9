"""A laptop that slept: everything stood still for a while, and nothing is amiss (its clock: test_faults_clock.py)."""

from __future__ import annotations

import time

import psutil
import pytest

from labkit.cluster.processes import MISSES
from labkit.floor import time_limits
from tests.live.notebook import Notebook
from tests.live.processes import Trace, eventually

ALIVE = "%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), keep)"
EACH = "rank 0 │ 3 100\nrank 1 │ 3 101\nrank 2 │ 3 102\n"
LIMIT = 8  # seconds that a rank may wait in this lab
NIGHT = max(LIMIT, MISSES) + 2.0  # seconds: longer than the hearts may be missed and ranks may wait


@pytest.fixture(scope="module")
def notebook():
    with Notebook() as notebook:
        notebook.value(f"from labkit import start\nlab = start(3, timeout={LIMIT})")
        notebook.run("%%px\nkeep = 100 + rank")
        yield notebook


@pytest.fixture
def sleep(notebook):
    """Let the kernel and all that its lab has started stand still, as in a sleep, and then go on."""
    everyone = [psutil.Process(notebook.pid), *Trace.of(eval(notebook.value("lab._address"))).processes()]

    def stand_still():
        try:
            for process in everyone:
                process.suspend()
            assert eventually(lambda: all(p.status() == psutil.STATUS_STOPPED for p in everyone))
            time.sleep(NIGHT)  # the fault itself, and no waiting for something
        finally:
            for process in everyone:
                process.resume()

    return stand_still


def test_ranks_that_slept_between_two_cells_are_the_same_afterwards(notebook, sleep):
    ranks = notebook.value("[(m.pid, m.engine) for m in lab._engines.members]")
    sleep()
    assert notebook.run(ALIVE).stdout == EACH
    assert notebook.value("[(m.pid, m.engine) for m in lab._engines.members]") == ranks


@pytest.mark.parametrize("who", ["True", "rank == 1"], ids=["all compute", "two wait for one that computes"])
def test_a_cell_in_which_all_slept_goes_on(notebook, sleep, tmp_path, who):
    begun, morning = f"Path('{tmp_path}', str(rank))", f"Path('{tmp_path}', 'morning')"
    code = f"from pathlib import Path\n{begun}.touch()\nwhile {who} and not {morning}.exists(): pass"
    cell = notebook.send(ALIVE.replace("%%px", f"%%px\n{code}"))
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 3)
    # for which nobody waits too long: the lab looks at the ranks, and once more after it
    time.sleep(4 * time_limits.RANKS_LOOK)
    sleep()
    time.sleep(4 * time_limits.RANKS_LOOK)
    (tmp_path / "morning").touch()
    ended = notebook.wait(cell)
    assert (ended.stdout, ended.error) == (EACH, "")
