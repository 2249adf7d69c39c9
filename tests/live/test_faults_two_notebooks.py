"""Two notebooks of one user at the same time: what befalls the one leaves the other alone."""

from __future__ import annotations

import pytest

from tests.live.notebook import Notebook
from tests.live.processes import Trace, eventually

ALIVE = "%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), keep)"
EACH = "rank 0 │ 2 100\nrank 1 │ 2 101\n"
PIDS = "[m.pid for m in lab._engines.members]"


STARTS = "from labkit import start\nlab = start(2, timeout=20)"
KEEPS = "%%px\nfrom pathlib import Path\nkeep = 100 + rank"


@pytest.fixture(scope="module")
def one():
    """The notebook that goes on, whatever befalls the other one."""
    with Notebook() as notebook:
        notebook.value(STARTS)
        notebook.run(KEEPS)
        yield notebook


@pytest.mark.parametrize("how", ["kill", "restart", "stop"])
def test_a_cell_of_one_notebook_goes_on_while_the_other_one_ends(one, tmp_path, how):
    with Notebook() as other:
        other.value(STARTS)
        other.run(KEEPS)
        ranks = one.value(PIDS)
        trace = Trace.of(eval(other.value("lab._address")))
        begun, on = f"Path('{tmp_path}', str(rank))", f"Path('{tmp_path}', 'on')"
        cell = one.send(f"{ALIVE}\n{begun}.touch()\nwhile rank and not {on}.exists(): pass\ndist.barrier()")
        assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
        if how == "stop":
            assert other.run("lab.stop()").status == "ok"
        else:
            busy = other.send("%%px\nif rank: dist.barrier()\nwhile True: pass")
            other.until_begun(busy)
            getattr(other, how)()
        assert eventually(trace.gone), trace.left()
        (tmp_path / "on").touch()
        ended = one.wait(cell)
        assert (ended.stdout, ended.error) == (EACH, "")
        assert one.value(PIDS) == ranks
        assert one.run(ALIVE).stdout == EACH
