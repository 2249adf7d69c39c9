"""`lab.race`: all-reduces of the learner's against `dist.all_reduce`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbook.tools.race.measure import measure
from workbook.tools.race.show import Race


def race(
    lab: Any, *contestants: str, sizes: Sequence[int] | None = None, repeat: int = 9, dtype: str = "float32"
) -> Race:
    """Let all-reduces race against `dist.all_reduce` by size, and against MPI where it is installed: a scoreboard.

    >>> lab.race("ring_all_reduce(x)", "halving_doubling(x)")
    >>> lab.race("shared_all_reduce(x, room)", sizes=[4, 2**20])

    A contestant is an expression of `x`, a tensor with one dimension: it leaves the sum in `x` or returns it. All
    take turns in one run, by the clock of `timed`; a result that is wrong does not count, on odd lengths and other
    dtypes too. `sizes` are bytes, by default 4 B to 64 MiB. Stop keeps what was measured so far.
    """
    return Race(measure(lab._console, contestants, sizes, repeat, dtype))
