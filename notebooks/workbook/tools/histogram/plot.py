"""Draw how many times each whole number occurs: bars side by side, one a rank, panels below each other on one scale.

The ranks stand in their order within a value, each in its colour; a triangle marks a rank's mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Polygon, Rectangle

from labkit.plot.sheet import FULL, chip, color, extent, headline, sheet, shortened, write
from labkit.plot.svg import EDGE, FAINT, GRID, INK

WIDE, LEFT, RIGHT, MARGIN = FULL, 1.3, 11.6, 0.4  # the bars end at RIGHT, where the words begin
TOP, HEAD, HIGH, ROW, BOTTOM = 0.25, 1.1, 3.6, 0.5, 1.35
MOST = 160  # bars of all ranks together; of more values, several share one
SHARE = 0.8  # of a value's room that its bars take
WIDEST = 0.7  # a bar of a rank, where there are few


@dataclass(frozen=True)
class Counts:
    """`counts[r][v]` is how many times rank r has the value v; `means[r]` are the means, `notes[r]` a rank's words."""

    title: str
    counts: Mapping[int, Mapping[int, int]]
    means: Mapping[int, float]
    notes: Mapping[int, str]

    @property
    def high(self) -> float:
        """The height of the bars, and of the words beside them."""
        return max(HIGH, ROW * (len(self.counts) + 1))

    @property
    def height(self) -> float:
        """The height of the panel."""
        return HEAD + self.high + BOTTOM


@dataclass(frozen=True)
class Values:
    """The axis: from the value `first` to `last`, `width` values to a bar."""

    first: int
    last: int
    width: int = 1

    @property
    def many(self) -> int:
        """The number of one rank's bars that stand side by side."""
        return (self.last - self.first) // self.width + 1

    def said(self, i: int) -> str:
        """Return the values of the i-th bar, in words."""
        first = self.first + self.width * i
        return f"{first:,}" if self.width == 1 else f"{first:,}–{first + self.width - 1:,}"

    def counted(self, counts: Mapping[int, int]) -> list[int]:
        """Count how many times a rank has the values of each bar."""
        tall = [0] * self.many
        for value, times in counts.items():
            tall[(value - self.first) // self.width] += times
        return tall


def values(panels: Sequence[Counts], most: int | None = None) -> Values:
    """Return an axis from 0, or from the least value if that is less, with about `most` bars of a rank at most."""
    most = most or MOST // max(4, *(len(panel.counts) for panel in panels))
    found = [v for panel in panels for counts in panel.counts.values() for v in counts]
    low, high = min(0, *found, 0), max(0, *found, 0)
    width = _round((high - low + 1) / most)
    first = math.floor(low / width) * width
    return Values(first, max(high, first), width)


def draw(panels: Sequence[Counts]) -> Axes:
    """Draw the panels one under the other, on one scale."""
    ax = sheet(WIDE, TOP + sum(panel.height for panel in panels))
    across = values(panels)
    tallest = max((t for p in panels for c in p.counts.values() for t in across.counted(c)), default=1)
    top = TOP
    for panel in panels:
        _panel(ax, panel, top, across, max(1, tallest))
        top += panel.height
    return ax


def _panel(ax: Axes, panel: Counts, top: float, across: Values, tallest: int) -> None:
    floor = top + HEAD + panel.high

    def y(times: float) -> float:
        return floor - panel.high * times / tallest

    room = (RIGHT - LEFT) / across.many

    def x(value: float) -> float:
        """Return the middle of a value's own room, also between two values."""
        return LEFT + room * ((value - across.first) / across.width + 0.5 / across.width)

    headline(ax, MARGIN, top + 0.3, panel.title, RIGHT - MARGIN, mono=True)
    for mark in up(tallest):
        ax.plot([LEFT, RIGHT], [y(mark)] * 2, color=GRID if mark else EDGE, linewidth=0.7, zorder=0)
        write(ax, LEFT - 0.15, y(mark), f"{mark:,}", 7.5, FAINT, "right")
    write(ax, MARGIN, top + 0.75, "how many times", 7.5, FAINT, "left")
    _across(ax, panel, across, floor, room)
    tall = {r: across.counted(counts) for r, counts in panel.counts.items()}
    wide = min(WIDEST, SHARE * room / max(1, len(tall)))
    for i in range(across.many):
        _side_by_side(ax, LEFT + room * (i + 0.5), wide, {r: t[i] for r, t in tall.items() if t[i]}, y)
    for nth, r in enumerate(panel.counts):
        row = top + HEAD + ROW * (nth + 0.5)
        chip(ax, RIGHT + 0.6, row, r)
        write(ax, RIGHT + 0.87, row, f"rank {r}", 9, align="left")
        write(ax, WIDE - MARGIN, row, panel.notes[r], 8, align="right")
        if r in panel.means:
            middle, tip = x(panel.means[r]), floor + 0.04
            corners = [(middle, tip), (middle - 0.13, tip + 0.2), (middle + 0.13, tip + 0.2)]
            ax.add_artist(Polygon(corners, facecolor=color(r), edgecolor=INK, linewidth=0.5, zorder=6 + nth / 100))
    if not panel.means:
        return
    row = top + HEAD + ROW * (len(panel.counts) + 0.5)
    corners = [(RIGHT + 0.6, row - 0.1), (RIGHT + 0.47, row + 0.1), (RIGHT + 0.73, row + 0.1)]
    ax.add_artist(Polygon(corners, facecolor="none", edgecolor=INK, linewidth=0.7))
    write(ax, RIGHT + 0.87, row, "a rank's mean", 8, FAINT, "left")


def _side_by_side(ax: Axes, middle: float, wide: float, times: Mapping[int, int], y: Callable[[float], float]) -> None:
    """Draw the bars of one value: of the ranks that have it, in their order."""
    left = middle - wide * len(times) / 2
    for nth, (r, tall) in enumerate(times.items()):
        box = Rectangle((left + wide * nth, y(tall)), wide, y(0) - y(tall), facecolor=color(r), edgecolor=INK, zorder=3)
        box.set_linewidth(0.5 if wide > 0.12 else 0.25)
        ax.add_artist(box)


def _across(ax: Axes, panel: Counts, across: Values, floor: float, room: float) -> None:
    """Write the figures below, as many as there is room for, and what they are."""
    said = [across.said(i) for i in range(across.many)]
    every = _round((max(extent(words, 7.5) for words in said) + 0.25) / room)
    for i, words in enumerate(said):
        if (across.first // across.width + i) % every == 0:
            write(ax, LEFT + room * (i + 0.5), floor + 0.48, words, 7.5, FAINT)
    write(ax, (LEFT + RIGHT) / 2, floor + 0.92, shortened(panel.title, RIGHT - LEFT, 8, mono=True), 8, FAINT, mono=True)


def up(tallest: int) -> list[int]:
    """Return whole numbers from 0, up to six of them, none above the tallest bar.

    >>> up(3), up(47)
    ([0, 1, 2, 3], [0, 10, 20, 30, 40])
    """
    return list(range(0, tallest + 1, _round(tallest / 5)))


def _round(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, … that is not less."""
    power = 10 ** max(0, math.floor(math.log10(least))) if least > 1 else 1
    return next(k * power for k in (1, 2, 5, 10) if k * power >= least)
