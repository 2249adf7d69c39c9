"""Times that ranks measured together → one figure, how far it spreads, and who came late. Knows no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from labkit.floor.words import seconds

NOTABLE = 0.1  # of a repetition: a rank that starts so much later than the first one is told


@dataclass(frozen=True)
class Timing:
    """The same on every rank: `samples[i][r]` is what a call took rank r in repetition i, in seconds.

    `arrivals[i][r]` is how long after the first rank it began the repetition; empty where the ranks are on several
    hosts, whose clocks cannot be compared.
    """

    samples: tuple[tuple[float, ...], ...]
    calls: int  # back to back in each repetition
    backend: str
    device: str
    arrivals: tuple[tuple[float, ...], ...] = ()

    @property
    def slowest(self) -> list[float]:
        """Each repetition's slowest rank: the collective is over when the last rank has it."""
        return [max(ranks) for ranks in self.samples]

    @property
    def median(self) -> float:
        """The median repetition, in seconds per call."""
        return self.quantile(0.5)

    @property
    def min(self) -> float:
        """The fastest repetition: nearest to what the machine can do undisturbed."""
        return min(self.slowest)

    @property
    def p90(self) -> float:
        """The time that a tenth of the repetitions exceeded."""
        return self.quantile(0.9)

    @property
    def late(self) -> list[float]:
        """The seconds by which each rank began after the first one, in its median repetition."""
        return [float(np.median(rank)) for rank in zip(*self.arrivals, strict=True)]

    @property
    def transfer(self) -> float:
        """The time from the last rank's start to the last one's end, in seconds per call: what no waiting explains."""
        times = []
        for i, took in enumerate(self.samples):
            begun = self.arrivals[i] if self.arrivals else (0.0,) * len(took)
            ended = [b + self.calls * s for b, s in zip(begun, took, strict=True)]
            times.append((max(ended) - max(begun)) / self.calls)
        return float(np.median(times))

    def quantile(self, q: float) -> float:
        """Return the time that a share q of the repetitions stayed within, in seconds per call."""
        return float(np.quantile(self.slowest, q))

    def and_(self, later: Timing) -> Timing:
        """Add the repetitions of a later measurement of the same calls."""
        arrivals = self.arrivals + later.arrivals if self.arrivals and later.arrivals else ()
        return replace(self, samples=self.samples + later.samples, arrivals=arrivals)

    def __repr__(self) -> str:
        many = "s" * (self.calls > 1)
        late = ""
        if self.arrivals and max(self.late) > NOTABLE * self.median * self.calls:
            last = int(np.argmax(self.late))
            late = f"; rank {last} came {seconds(max(self.late))} late, then a call took {seconds(self.transfer)}"
        return (
            f"median {seconds(self.median)} (min {seconds(self.min)}, p90 {seconds(self.p90)}), "
            f"slowest rank of each of {len(self.samples)} repeats of {self.calls} call{many}, "
            f"{len(self.samples[0])} ranks, {self.backend} on {self.device}{late}"
        )
