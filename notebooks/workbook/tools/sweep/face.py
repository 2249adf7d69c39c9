"""`lab.sweep`: the time of one operation by size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbook.tools.sweep.measure import measure
from workbook.tools.sweep.show import Sweep


def sweep(
    lab: Any,
    op: str = "all_reduce",
    sizes: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    dtype: str = "float32",
    repeat: int = 15,
) -> Sweep:
    """Time one operation over sizes: time, algbw and busbw as nccl-tests defines them, with the fitted α and β.

    >>> lab.sweep("all_gather", sizes=[2**10, 2**20])
    >>> lab.sweep("barrier").rows[0].median

    `sizes` are nccl-tests' S in bytes, by default 64 B to 16 MiB; where ranks get parts, S is rounded to them.
    `ranks` measures some of the ranks, in a group of their own. Stop keeps what was measured so far.
    """
    return Sweep(measure(lab._console, op, sizes, ranks, dtype, repeat))
