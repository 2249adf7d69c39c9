"""Stop at any moment of anything that the lab does: it ends, and the next cell is right, with the ranks' variables."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from random import Random

import pytest

from tests.live.notebook import Notebook
from tests.live.processes import eventually

SEED = int(os.environ.get("LABKIT_STOP_SEED", "0"))
ROUNDS = int(os.environ.get("LABKIT_STOP_MOMENTS", "2"))  # of each; more by hand
START = "lab = start(3, timeout=20)"
MY_SUM = "%%px\ndef my_sum(x):\n    dist.all_reduce(x)\n    return x"
RIGHT = "%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nassert y == 3 == world_size, y"
STOPPED = ("StoppedError: You", "KeyboardInterrupt")
# What runs, for how many seconds at most until Stop, and as what it may end beside a stop.
DOES = {
    "a cell": ("%%px\nimport time\nfor _ in range(9):\n    dist.barrier()\n    time.sleep(0.05)", 0.6, ()),
    "a hang": ("%%px\nif rank: dist.barrier()", 2.0, ("StuckError: rank 0 is missing",)),
    "an error that is healed": ("%%px\nif rank == 1: 1 / 0\ndist.barrier()", 0.6, ("CellError: rank 1: ZeroDivision",)),
    "a rank that is replaced": (
        "%%px\nimport os\nif rank == 1: os._exit(1)\ndist.barrier()",
        1.0,
        ("CellError: rank 1",),
    ),
    "check": ("lab.check('my_sum', means='all_reduce')", 1.0, ()),
    "sweep": ("lab.sweep('all_reduce', sizes=[64, 2**20])", 1.0, ()),
    "calls without a pause": ("%%px\nwhile True: dist.all_reduce(torch.ones(5000))", 1.0, ()),
    "timed": ("%%px\ntimed(dist.barrier, repeat=3000)", 1.0, ()),
    "flow": ("lab.flow('dist.all_reduce(x)', 'x')", 1.0, ()),
    "late": ("%%late 1\ndist.barrier()\ndist.broadcast(x, 0)", 1.0, ()),
    "pull": ("for _ in range(40): assert lab.pull('keep') == [100, 101, 102]", 0.6, ()),
    "push": ("for _ in range(40): lab.push(got=[7, 8, 9])", 0.6, ()),
    "stop": ("lab.stop()", 0.3, ()),
    "start": (f"lab.stop()\n{START}", 4.0, ()),
}
MAY_DIE = {"a rank that is replaced": {1}}


@pytest.fixture(scope="module")
def notebook():
    with Notebook() as notebook:
        notebook.value(f"from labkit import start\n{START}")
        yield notebook


def there(notebook):
    """Have ranks with a variable and a function; their processes' numbers."""
    assert notebook.run(START).error == ""
    assert notebook.run(f"{MY_SUM}\nx, keep = torch.ones(2), 100 + rank").error == ""
    return pids(notebook)


def pids(notebook):
    return eval(notebook.value("[m.pid for m in lab._engines.members]"))


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("what", DOES)
def test_stop_at_any_moment_leaves_ranks_that_are_right(notebook, what, number):
    code, span, ends = DOES[what]
    random = Random(f"{SEED} {what} {number}")
    moments = sorted(random.uniform(0, span) for _ in range(random.randint(1, 3)))
    said = f"LABKIT_STOP_SEED={SEED}, {what}, number {number}: Stop after {moments} s"
    before = there(notebook)
    running = notebook.send(code)
    notebook.until_begun(running)
    began = time.monotonic()
    for moment in moments:
        time.sleep(max(0.0, began + moment - time.monotonic()))  # the fault itself, and no waiting for something
        notebook.interrupt()
    cell = notebook.wait(running)
    assert cell.error.startswith((*STOPPED, *ends)) or (cell.error == "" and not ends), f"{said}: {cell}"
    if what in ("stop", "start"):
        assert notebook.run(START).error == "", said
        assert eventually(lambda: len(list(Path(tempfile.gettempdir()).glob("labkit-*"))) == 1), said
    right = notebook.run(RIGHT)
    assert right.error == "", f"{said}: {cell} {right}"
    if what not in ("stop", "start"):
        live = [r for r, pid in enumerate(pids(notebook)) if pid == before[r]]
        assert {0, 1, 2} - {*live} <= MAY_DIE.get(what, set()), f"{said}: {cell}"
        assert len(live) == 3 or "started anew" in cell.traceback + right.stdout, f"{said}: {cell} {right}"
        kept = eval(notebook.value("lab.run('print(globals().get(\\'keep\\'))')"))
        assert all(kept[r] == f"{100 + r}\n" for r in live), f"{said}: {kept} {cell}"
