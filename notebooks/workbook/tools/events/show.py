"""Show where the time of simulated steps or training runs goes, as stacked bars. No torch, no cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.floor.words import seconds
from labkit.show.picture import Picture
from workbook.tools.events import plot
from workbook.tools.events.failures import Training
from workbook.tools.events.step import Run


class Spent(Picture):
    """One bar for each step, in seconds, or for each training run, in per cent of its time.

    >>> from workbook.tools import events
    >>> Spent({"64 ranks": events.all_reduce("hierarchical, ring", events.H100S, 64, 1e9)})
    64 ranks: 9.34 ms: latency 244 µs, bytes inside hosts 4.72 ms, bytes between hosts 4.38 ms
    """

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self.runs = dict(runs)

    @property
    def whole(self) -> bool:
        """Tell whether these are training runs."""
        return any(isinstance(run, Training) for run in self.runs.values())

    @property
    def bars(self) -> dict[str, dict[str, float]]:
        """Seconds by what they went into, without what takes none in any of the runs."""
        used = {kind for run in self.runs.values() for kind, value in run.parts.items() if value > 0}
        return {name: {k: v for k, v in run.parts.items() if k in used} for name, run in self.runs.items()}

    @property
    def heads(self) -> dict[str, str]:
        """The words behind each bar."""
        return {
            name: f"{100 * run.computing:.1f} % computing" if self.whole else seconds(run.seconds)
            for name, run in self.runs.items()
        }

    def __repr__(self) -> str:
        lines = []
        for name, bar in self.bars.items():
            total = self.runs[name].seconds
            each = [f"{k} {100 * v / total:.1f} %" if self.whole else f"{k} {_said(v)}" for k, v in bar.items()]
            lines.append(f"{name}: {self.heads[name]}: {', '.join(each)}")
        return "\n".join(lines)

    def _drawn(self) -> Any:
        axis = "per cent of the run's time, computed" if self.whole else "{} since the step began, computed"
        return plot.draw(self.bars, self.heads, axis, self.whole)

    @property
    def alt(self) -> str:
        """The picture in words."""
        return f"Where the time goes, computed, a stacked bar each. {self!r}".replace("\n", ". ")


def _said(s: float) -> str:
    return seconds(s) if s > 0 else "0 s"
