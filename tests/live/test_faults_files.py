"""A rank, or the notebook, that opens files until it may open no more: it is told so, and all goes on once it can."""

from __future__ import annotations

import pytest

from labkit import CellError, StuckError
from tests.live.notebook import Notebook

ALIVE = "y = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), keep)"
ALL = "while True: files.append(open(os.devnull))"


@pytest.fixture
def few(lab):
    """Rank 1 may open few files."""
    lab.run("import os, resource\nkeep = 100 + rank\nfiles = []\nwhole = resource.getrlimit(resource.RLIMIT_NOFILE)")
    lab.run("resource.setrlimit(resource.RLIMIT_NOFILE, (256, whole[1]))", 1)
    yield lab
    lab.run("del files\nresource.setrlimit(resource.RLIMIT_NOFILE, whole)")


def test_a_loop_that_opens_files_ends_in_its_own_error_and_the_ranks_are_joined_again(few):
    with pytest.raises(CellError) as caught:
        few.run(f"if rank == 1:\n    {ALL}\ndist.barrier()")
    assert str(caught.value) == "rank 1: OSError: [Errno 24] Too many open files: '/dev/null'"
    assert "the process group is joined again; all variables are kept" in caught.value.notes
    assert few.run(ALIVE) == [f"3 {100 + r}\n" for r in range(3)]


def test_a_rank_without_a_descriptor_left_takes_part_in_all_that_follows(few):
    few.run(f"if rank == 1:\n    try:\n        {ALL}\n    except OSError: pass")
    assert few.run(ALIVE) == [f"3 {100 + r}\n" for r in range(3)]
    with pytest.raises(StuckError, match="rank 0 waits in barrier"):
        few.run("if rank == 0: dist.barrier()")
    assert few.run(ALIVE) == [f"3 {100 + r}\n" for r in range(3)]


# -- descriptors that the learner has closed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "closes",
    [
        *("os.close(0)", "os.close(1)", "os.close(2)", "os.closerange(0, 3)"),
        "os.closerange(0, 3)\nheld = [open(os.devnull) for _ in range(3)]",
        "if rank == 1: os.close(0)",
    ],
)
def test_standard_descriptors_that_were_closed_are_put_back_and_all_goes_on(lab, closes):
    lab.run(f"import os\nkeep = 100 + rank\n{closes}")
    assert lab.pull("[os.fstat(fd).st_ino > 0 for fd in range(3)]") == [[True] * 3] * 3
    assert lab.run(ALIVE) == [f"3 {100 + r}\n" for r in range(3)]
    with pytest.raises(StuckError, match="rank 0 waits in barrier") as caught:
        lab.run("if rank == 0: dist.barrier()")
    assert "the process group is joined again; all variables are kept" in caught.value.notes
    assert lab.run(ALIVE) == [f"3 {100 + r}\n" for r in range(3)]


def test_a_rank_that_closes_what_it_speaks_through_dies_and_the_others_keep_their_variables(lab):
    lab.run("import os\nkeep = 100 + rank")
    with pytest.raises(CellError, match=r"^rank 1 died \(SIGABRT\)"):
        lab.run("if rank == 1: os.closerange(3, 256)")
    lab.run("keep = 101", 1)
    assert lab.run(ALIVE) == [f"3 {100 + r}\n" for r in range(3)]


# -- the notebook's own process --------------------------------------------------------------------------------------

FILL = """
import os, resource
from labkit import start
whole = resource.getrlimit(resource.RLIMIT_NOFILE)
files = []

def fill(hard):
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        while True: files.append(os.open(os.devnull, os.O_RDONLY))
    except OSError: pass

def free():
    while files: os.close(files.pop())
"""
START = "lab = start(2, timeout=2)\nlab.run('keep = 100 + rank')"
PX = f"%%px\n{ALIVE}"
EACH = "rank 0 │ 2 100\nrank 1 │ 2 101\n"


@pytest.fixture
def notebook():
    with Notebook() as notebook:
        notebook.value(FILL)
        yield notebook


def test_a_notebook_without_a_descriptor_left_starts_runs_heals_and_checks(notebook):
    """The lab raises the limit as far as it may."""
    assert notebook.run(f"fill(whole[1])\n{START}").error == ""
    notebook.run("%%px\ndef my_sum(x):\n    dist.all_reduce(x)\n    return x")
    notebook.value("fill(whole[1])")
    assert EACH in notebook.run(PX).stdout
    assert "rank 1 waits in barrier" in notebook.run("%%px\nif rank: dist.barrier()").error
    assert "Rank 0 is missing" in notebook.run("print(lab.why().why)").stdout
    assert "✓" in notebook.value("lab.check('my_sum', means='all_reduce')")
    assert notebook.run(PX).stdout == EACH


def test_a_notebook_that_may_not_have_one_more_is_told_what_to_do_and_works_once_files_are_closed(notebook):
    full = "LabError: This notebook has 300 files open, and no more may be. Close some, restart the kernel, or raise"
    assert notebook.run(f"fill(300)\n{START}").error.startswith(full)
    assert notebook.run(f"free()\n{START}").error == ""
    notebook.value("fill(300)")
    for code in (PX, "%%px\nif rank: dist.barrier()", "lab.why()", "lab.look('keep')", "lab.late('x', rank=1)"):
        assert notebook.run(code).error.startswith(full)
    notebook.value("free()")
    assert notebook.run(PX).stdout == EACH
    notebook.value("fill(300)\nlab.stop()")


def test_a_rank_that_may_not_have_one_more_works_on_and_is_named_where_it_cannot_be_joined_again(notebook):
    """It keeps its files, and the lab cannot raise the limit: cells need none, a new group needs some."""
    notebook.value(START)
    notebook.value(f"%%px\n{FILL.replace('from labkit import start', '')}\nif rank: fill(300)")
    cell = notebook.run(PX)
    assert cell.stdout == EACH, cell
    hung = notebook.run("%%px\nif not rank: dist.barrier()")
    assert "rank 1: LabError: this rank has 300 files open, and no more may be. Call lab.stop()" in hung.error
    assert notebook.run(f"lab.stop()\n{START}").error == ""
    assert notebook.run(PX).stdout == EACH
