"""A rank that opens files until it may open no more: it is told so, and joins the others again all the same."""

from __future__ import annotations

import pytest

from labkit import CellError, StuckError

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
