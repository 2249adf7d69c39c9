"""What `lab.times` shows: the times that each rank has kept, repetition by repetition. No torch, no cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from labkit.errors import LabError
from labkit.outcome.text import merge
from labkit.plot import svg, times
from labkit.words import count, seconds


class Times:
    """Each rank's times as dots, a row a rank; its text has each rank's median and how far its times reach.

    `seconds[r]` are rank r's, the first `warmup` of them hollow and not in `medians[r]`, which is None without others.
    """

    def __init__(self, name: str, kept: Sequence[Sequence[float]], warmup: int = 0) -> None:
        if not isinstance(warmup, int) or warmup < 0:
            raise LabError(f"warmup={warmup!r} is no number of repetitions. Say how many come first: warmup=3.")
        if any(not math.isfinite(s) for mine in kept for s in mine):
            raise LabError(f"Some of {name!r} are no times: give finite numbers of seconds.")
        self.name, self.warmup = name, warmup
        self.seconds = [list(mine) for mine in kept]
        self.medians = [median(mine[warmup:]) if len(mine) > warmup else None for mine in self.seconds]

    @property
    def says(self) -> dict[int, str]:
        """Each rank's times in words."""
        return {r: self._said(r) for r in range(len(self.seconds))}

    def _said(self, rank: int) -> str:
        counted, middle = self.seconds[rank][self.warmup :], self.medians[rank]
        warm = len(self.seconds[rank]) - len(counted)
        before = f" after {count(warm, 'warm-up')}" if warm else ""
        if middle is None:
            return f"no repetition{before}"
        reach = f"{seconds(min(counted))} to {seconds(max(counted))}"
        return f"median {seconds(middle)}, from {reach}, {count(len(counted), 'repetition')}{before}"

    def __repr__(self) -> str:
        return f"{self.name}\n{merge(self.says)}".rstrip("\n")

    def _repr_html_(self) -> str:
        return svg.img(self.svg, self.alt)

    @property
    def alt(self) -> str:
        """The picture in words."""
        each = " ".join(f"Rank {r}: {words}." for r, words in self.says.items())
        return f"Times of {self.name}, a dot for each repetition and a row for each rank. {each}"

    @property
    def svg(self) -> bytes:
        """The picture; equal times give equal bytes."""
        dots = times.Dots(self.name, self.seconds, self.medians, self.warmup)
        return svg.svg(times.draw(times.axes(dots), dots))
