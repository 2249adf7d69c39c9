"""A cell that ranks are refused: it ends as an error, and the ranks live on with their variables."""

from __future__ import annotations

from typing import Any

import pytest

from labkit import CellError

ALIVE = "y = torch.ones(1)\ndist.all_reduce(y)\nprint(rank, int(y), keep)"


def refusal(lab: Any, code: str) -> CellError:
    """Run a cell that must be refused; the next one finds the same processes, and `keep`, which is 100 + rank."""
    pids = [row["pid"] for row in lab._engines.table()]
    with pytest.raises(CellError) as caught:
        lab.run(code)
    assert [row["pid"] for row in lab._engines.table()] == pids
    assert lab.run(ALIVE) == [f"{r} {lab.n} {100 + r}\n" for r in range(lab.n)]
    return caught.value
