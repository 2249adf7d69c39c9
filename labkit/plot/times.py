"""Draw times as dots: a row per rank, a dot per repetition, the first one at the row's top; the median is a line.

Several lists of times stand one under the other, over one axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from labkit.floor.words import seconds
from labkit.plot.sheet import FULL, Scale, chip, clock, color, extent, headline, sheet, stroke, write
from labkit.plot.svg import FAINT, GRID, INK, PAGE, PLAIN

WIDE, LEFT, RIGHT, MARGIN = FULL, 1.9, 1.9, 0.4
LEGEND, TOP, HEAD, ROW, SPREAD, BOTTOM, LINE = 0.5, 0.75, 0.75, 0.95, 0.62, 1.0, 0.42
DOT = 0.075
ROUND = 4 / 3 * math.tan(math.pi / 8)  # a quarter of a circle as one Bézier curve
LOGARITHMIC = 10.0  # how many times the least the largest must be for a logarithmic scale
MOST = 250  # dots of a rank that are drawn


@dataclass(frozen=True)
class Dots:
    """`times[r]` are rank r's seconds, of which the first `warmup` do not count; `medians[r]` is None without any."""

    title: str
    times: Sequence[Sequence[float]]
    medians: Sequence[float | None]
    warmup: int = 0

    @property
    def longest(self) -> int:
        """The number of repetitions of the rank with most of them."""
        return max(map(len, self.times), default=0)

    @property
    def height(self) -> float:
        """The height of its title and its rows."""
        return HEAD + ROW * len(self.times)


def draw(lists: Sequence[Dots], shared: str = "") -> Axes:
    """Draw the lists one under the other, and a note that ranks share a GPU, where `shared` says so."""
    longest = max((dots.longest for dots in lists), default=0)
    every = math.ceil(longest / MOST)
    notes = [f"Of {longest:,} repetitions one in {every} is drawn."] * (every > 1) + [f"{shared}."] * bool(shared)
    bottom = TOP + sum(dots.height for dots in lists)
    ax = sheet(WIDE, bottom + BOTTOM + LINE * len(notes) + 0.05)
    _legend(ax, lists)
    write(ax, WIDE - MARGIN, LEGEND, "median", 8, FAINT, "right")
    x = _scale(ax, [t for dots in lists for mine in dots.times for t in mine], bottom)
    top = TOP
    for dots in lists:
        _block(ax, dots, top, x)
        top += dots.height
    for i, note in enumerate(notes):
        write(ax, MARGIN, bottom + BOTTOM + LINE * i, note, 7.5, FAINT, "left")
    return ax


def _block(ax: Axes, dots: Dots, top: float, x: Callable[[float], float]) -> None:
    """Draw one list: its title, a row per rank."""
    headline(ax, MARGIN, top + HEAD / 2, dots.title, WIDE - 2 * MARGIN, mono=True)
    for r, mine in enumerate(dots.times):
        y = top + HEAD + ROW * (r + 0.5)
        chip(ax, 0.55, y, r)
        write(ax, 0.82, y, f"rank {r}", 9, align="left")
        ax.plot([LEFT, WIDE - RIGHT], [y + ROW / 2] * 2, color=GRID, linewidth=0.7, zorder=0)
        shares = [i / (len(mine) - 1) - 0.5 for i in range(len(mine))] if len(mine) > 1 else [0.0]
        _row(ax, dots, r, [(x(t), y + SPREAD * share) for t, share in zip(mine, shares, strict=False)])
        median = dots.medians[r]
        write(ax, WIDE - MARGIN, y, "–" if median is None else seconds(median), 8, align="right")
        if median is not None:
            ax.plot([x(median)] * 2, [y - 0.42, y + 0.42], color=INK, linewidth=1.6, zorder=6)


def _scale(ax: Axes, times: Sequence[float], bottom: float) -> Callable[[float], float]:
    """Draw the axis, and return where a time lies on it."""
    low, high = min(times, default=0.0), max(times, default=0.0)
    if low > 0 and high / low > LOGARITHMIC:
        return _logarithmic(ax, low / 1.2, high * 1.2, bottom)
    x = Scale(1.05 * high or 1e-6, LEFT, WIDE - RIGHT)
    clock(ax, x, x.end, TOP, bottom, "time in {}")
    return lambda s: x(max(s, 0.0))


def _logarithmic(ax: Axes, low: float, high: float, bottom: float) -> Callable[[float], float]:
    def x(s: float) -> float:
        return LEFT + math.log(s / low) / math.log(high / low) * (WIDE - LEFT - RIGHT)

    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0, 2.0, 5.0) if len(decades) < 5 else (1.0,)
    for mark in (step * 10.0**k for k in decades for step in steps):
        if low <= mark <= high:
            ax.plot([x(mark)] * 2, [TOP, bottom], color=GRID, linewidth=0.7, zorder=0)
            write(ax, x(mark), bottom + 0.28, seconds(mark), 7.5, FAINT)
    write(ax, (LEFT + WIDE - RIGHT) / 2, bottom + 0.68, "time, on a logarithmic scale", 8, FAINT)
    return x


def _row(ax: Axes, dots: Dots, rank: int, places: Sequence[tuple[float, float]]) -> None:
    """Draw a row's dots, the warm-ups as one path and the others as one, so that the SVG stays small."""
    every = math.ceil(len(places) / MOST) or 1
    warm = places[: dots.warmup]
    rest = places[dots.warmup :: every]
    if warm:
        _dots(ax, warm, PAGE, stroke(rank), 1.3)
    if rest:
        _dots(ax, rest, color(rank), INK, 0.4)


def _dots(ax: Axes, places: Sequence[tuple[float, float]], fill: str, edge: str, width: float) -> None:
    path = Path.make_compound_path(*(_dot(x, y) for x, y in places))
    ax.add_artist(PathPatch(path, facecolor=fill, edgecolor=edge, linewidth=width, zorder=4))


def _dot(x: float, y: float) -> Path:
    """Return a circle of four curves."""
    places, codes = [(x + DOT, y)], [Path.MOVETO]
    for ux, uy in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        vx, vy = -uy, ux
        for u, v in ((1, ROUND), (ROUND, 1), (0, 1)):
            places.append((x + DOT * (u * ux + v * vx), y + DOT * (u * uy + v * vy)))
        codes += [Path.CURVE4] * 3
    return Path(places, codes)


def _legend(ax: Axes, lists: Sequence[Dots]) -> None:
    """Say what the dots are."""
    warm = max((min(dots.warmup, dots.longest) for dots in lists), default=0)
    x = MARGIN + 0.1
    entries = [(PLAIN, 0.5, "one repetition; the first is at the top of its row")]
    entries += [(PAGE, 1.3, f"one of {warm} to warm up, not in the median")] * bool(warm)
    for fill, edge, words in entries:
        _dots(ax, [(x, LEGEND)], fill, INK, edge)
        write(ax, x + 0.2, LEGEND, words, 8, FAINT, "left")
        x += 0.2 + extent(words, 8) + 0.6
