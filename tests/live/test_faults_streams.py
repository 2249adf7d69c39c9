"""A cell that takes the streams away through which a rank prints: its reply leaves all the same, the next prints."""

from __future__ import annotations

import pytest

from labkit import CellError

ALIVE = "y = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), keep)"


@pytest.fixture(autouse=True)
def _variables(lab):
    lab.run("import io, sys\nkeep = 100 + rank")


def alive(lab):
    assert lab.run(ALIVE) == [f"3 {100 + r}\n" for r in range(3)]


@pytest.mark.parametrize(
    "what",
    [
        "sys.stdout = None",
        "sys.stdout = sys.stderr = None",
        "sys.stderr = 3",
        "sys.stdout.close()",
        "sys.stdout = io.StringIO(); sys.stdout.close()",
    ],
)
@pytest.mark.parametrize("then", ["", "1 / 0"], ids=["a good end", "an error"])
def test_a_rank_without_a_stream_ends_its_cell_and_prints_in_the_next(lab, what, then):
    code = f"if rank == 1:\n    {what}\n    {then or 'pass'}"
    if then:
        with pytest.raises(CellError) as caught:
            lab.run(code)
        assert str(caught.value) == "rank 1: ZeroDivisionError: division by zero"
    else:
        lab.run(code)
    alive(lab)


def test_a_rank_whose_stream_is_gone_is_told_so_in_the_same_cell(lab):
    with pytest.raises(CellError, match="rank 1: AttributeError: module 'sys' has no attribute 'stdout'"):
        lab.run("if rank == 1:\n    del sys.stdout\n    sys.stdout.flush()")
    alive(lab)


def test_a_stream_of_the_learners_own_stays(lab):
    lab.run("kept = sys.stdout\nsys.stdout = mine = io.StringIO()")
    lab.run("print('for me')")
    lab.run("sys.stdout = kept")
    assert lab.pull("mine.getvalue()") == ["for me\n"] * 3
    alive(lab)
