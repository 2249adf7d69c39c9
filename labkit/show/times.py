"""Show the times that each rank has kept, repetition by repetition, for `lab.times`. No torch, no cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from labkit.floor.errors import LabError
from labkit.floor.words import count, seconds
from labkit.plot import times
from labkit.show.picture import EachRank


class Times(EachRank):
    """Each rank's times as dots, a row per rank; its text has each rank's median and how far its times reach.

    `seconds[name][r]` are rank r's, the first `warmup` of them hollow and not in `medians[name][r]`, which is None
    where there are no others. `shared` says that ranks share a GPU, where they do.
    """

    what = "Times, a dot for each repetition and a row for each rank."

    def __init__(self, kept: Mapping[str, Sequence[Sequence[float]]], warmup: int = 0, shared: str = "") -> None:
        if not isinstance(warmup, int) or warmup < 0:
            raise LabError(f"warmup={warmup!r} is not a number of repetitions. Give a whole number, such as warmup=3.")
        for name, ranks in kept.items():
            if any(not math.isfinite(s) for mine in ranks for s in mine):
                raise LabError(f"Some values in {name!r} are not times. Give finite numbers of seconds.")
        self.warmup, self.shared = warmup, shared
        self.seconds = {name: [list(mine) for mine in ranks] for name, ranks in kept.items()}
        self.medians = {name: [self._median(mine) for mine in ranks] for name, ranks in self.seconds.items()}

    def _median(self, mine: Sequence[float]) -> float | None:
        return median(mine[self.warmup :]) if len(mine) > self.warmup else None

    @property
    def says(self) -> dict[str, dict[int, str]]:
        return {name: {r: self._said(mine) for r, mine in enumerate(ranks)} for name, ranks in self.seconds.items()}

    def _said(self, mine: Sequence[float]) -> str:
        counted, middle = mine[self.warmup :], self._median(mine)
        warm = len(mine) - len(counted)
        before = f" after {count(warm, 'warm-up')}" if warm else ""
        if middle is None:
            return f"no repetitions{before}"
        reach = f"{seconds(min(counted))} to {seconds(max(counted))}"
        return f"median {seconds(middle)}, from {reach}, {count(len(counted), 'repetition')}{before}"

    def _drawn(self) -> Any:
        lists = [times.Dots(n, ranks, self.medians[n], self.warmup) for n, ranks in self.seconds.items()]
        return times.draw(lists, self.shared)
