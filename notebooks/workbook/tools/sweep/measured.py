"""What a sweep measured: one row a size, times and bandwidths. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from labkit.theory.samples import Timing
from workbook.tools import timing


@dataclass(frozen=True)
class Row:
    """One size: times in seconds a call, bandwidths in GB/s (10⁹ bytes a second); `nbytes` is nccl-tests' S.

    A barrier has no bytes, and None for all bandwidths. `right` says that the result was checked and was right.
    """

    op: str
    n: int
    nbytes: int
    timing: Timing
    copied: Timing | None
    right: bool

    def and_(self, later: Row) -> Row:
        """Return the row with the repetitions of a later pass added."""
        copied = self.copied and later.copied and self.copied.and_(later.copied)
        return replace(self, timing=self.timing.and_(later.timing), copied=copied, right=self.right and later.right)

    @property
    def median(self) -> float:
        """The median repetition's slowest rank, in seconds a call."""
        return self.timing.median

    @property
    def min(self) -> float:
        """The fastest repetition's slowest rank, in seconds a call."""
        return self.timing.min

    @property
    def p90(self) -> float:
        """A tenth of the repetitions took longer, in seconds a call."""
        return self.timing.p90

    @property
    def algbw(self) -> float | None:
        """S over the median time, in GB/s."""
        return timing.algbw(self.nbytes, self.median) if self.nbytes else None

    @property
    def busbw(self) -> float | None:
        """algbw times nccl-tests' factor for this operation and number of ranks, in GB/s."""
        return timing.busbw(self.op, self.n, self.nbytes, self.median) if self.nbytes else None

    @property
    def copy(self) -> float | None:
        """What each rank copies in its own memory, as many bytes and all ranks at once, in GB/s."""
        return timing.algbw(self.nbytes, self.copied.median) if self.copied else None


@dataclass(frozen=True)
class Measured:
    """The rows of a sweep, what was measured on what, and why there are no more rows where some are missing."""

    op: str
    n: int
    dtype: str
    where: str
    rows: list[Row]
    note: str = ""
