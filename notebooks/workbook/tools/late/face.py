"""`lab.late` and `%%late`: who waits for a rank that comes late to each statement of a cell."""

from __future__ import annotations

from typing import Any

from labkit.faces import arguments
from workbook.tools.late.observe import SECONDS, observe
from workbook.tools.late.show import Late


def late(lab: Any, code: str, rank: int, seconds: float = SECONDS) -> Late:
    """Run a cell's statements one by one, one rank late to each, and draw who waits for it; also `%%late 1`.

    >>> lab.late("dist.barrier()\\ndist.broadcast(x, src=0)", rank=1)

    Each statement runs once, on your variables. Raises `CellError` as a `%%px` cell does.
    """
    arguments.text('lab.late("dist.barrier()", rank=1)', code)
    return Late(rank, lab.n, observe(lab._console, code, rank, seconds))
