"""What the ranks answer stands in rank order, however late one of them is."""

from __future__ import annotations

from typing import Any


def test_a_late_rank_keeps_its_place(lab: Any) -> None:
    lab.run(
        "import time\nclass Late:\n    def __len__(self): time.sleep(0.2 * (rank == 0)); return rank\nlate = Late()"
    )
    assert lab.pull("len(late)") == list(range(lab.n))
    assert repr(lab.look("len(late)")).splitlines()[1:] == [f"rank {r} │ {r}" for r in range(lab.n)]
