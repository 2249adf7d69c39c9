"""What a race measured: who took how long at which size, who was wrong, who is fastest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

REFERENCE = "dist.all_reduce(x)"
MPI = "MPI"
COPY = "one copy of S"  # no contestant: each rank copies as many bytes in its own memory, all at once


@dataclass(frozen=True)
class Lap:
    """One contestant at one size: the slowest rank's seconds a call in each repetition, or why they do not count."""

    samples: tuple[float, ...] = ()
    why: str = ""

    @property
    def median(self) -> float:
        """The median repetition, in seconds a call."""
        return median(self.samples)

    @property
    def min(self) -> float:
        """The fastest repetition, in seconds a call."""
        return min(self.samples)

    def and_(self, later: Lap) -> Lap:
        """With the repetitions of a later turn."""
        return Lap(self.samples + later.samples, self.why or later.why)


@dataclass
class Raced:
    """The laps by contestant and size in bytes; `out`: why one counts nowhere, `note`: why laps are missing."""

    names: Sequence[str]
    sizes: Sequence[int]
    n: int
    where: str
    dtype: str = "float32"
    laps: dict[tuple[str, int], Lap] = field(default_factory=dict)
    out: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def add(self, name: str, size: int, lap: Lap) -> None:
        """Put a turn's repetitions to those before."""
        before = self.laps.get((name, size))
        self.laps[name, size] = before.and_(lap) if before else lap

    def lap(self, name: str, size: int) -> Lap | None:
        """The lap that counts: None where there is none, or where its result was wrong."""
        lap = self.laps.get((name, size))
        return lap if lap and lap.samples and not lap.why and name not in self.out else None

    def fastest(self, size: int) -> str | None:
        """Who took the shortest time at this size, by medians; None where nobody counts."""
        laps = {name: lap.median for name in self.names if (lap := self.lap(name, size))}
        return min(laps, key=lambda name: laps[name]) if laps else None

    def ratio(self, name: str, size: int, to: str = REFERENCE, least: bool = False) -> float | None:
        """How many times as fast as `to` it is at this size, by medians, or by the fastest repetitions of both.

        >>> raced = Raced([REFERENCE, "mine"], [4], 2, "")
        >>> raced.add(REFERENCE, 4, Lap((3.0, 4.0, 6.0))); raced.add("mine", 4, Lap((1.0, 1.0, 4.0)))
        >>> raced.ratio("mine", 4), raced.ratio("mine", 4, least=True)
        (4.0, 3.0)
        """
        mine, other = self.lap(name, size), self.lap(to, size)
        if not (mine and other):
            return None
        return other.min / mine.min if least else other.median / mine.median
