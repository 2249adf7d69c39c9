"""Times as dots: a row a rank, a dot a repetition, the first one at the row's top; the median is a line.

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
from labkit.plot.sheet import chip, clock, color, extent, sheet, shortened, stroke, write
from labkit.plot.svg import FAINT, GRID, INK, PAGE, PLAIN

WIDE, LEFT, RIGHT, MARGIN = 19.0, 1.9, 1.9, 0.4
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
        """How many repetitions the rank with most of them has."""
        return max(map(len, self.times), default=0)

    @property
    def height(self) -> float:
        """Of its title and its rows."""
        return HEAD + ROW * len(self.times)


def notes(lists: Sequence[Dots], shared: str = "") -> list[str]:
    """What the picture cannot say without words; `shared`, that ranks share a GPU."""
    longest = max((dots.longest for dots in lists), default=0)
    every = math.ceil(longest / MOST)
    return [f"Of {longest:,} repetitions one in {every} is drawn."] * (every > 1) + [f"{shared}."] * bool(shared)


def axes(lists: Sequence[Dots], shared: str = "") -> Axes:
    """Axes that are large enough."""
    rows = sum(dots.height for dots in lists)
    return sheet(WIDE, TOP + rows + BOTTOM + LINE * len(notes(lists, shared)) + 0.05)


def draw(ax: Axes, lists: Sequence[Dots], shared: str = "") -> Axes:
    """Draw on axes as `axes` makes them, y downwards."""
    _legend(ax, lists)
    write(ax, WIDE - MARGIN, LEGEND, "median", 8, FAINT, "right")
    bottom = TOP + sum(dots.height for dots in lists)
    x = _scale(ax, [t for dots in lists for mine in dots.times for t in mine], bottom)
    top = TOP
    for dots in lists:
        _block(ax, dots, top, x)
        top += dots.height
    for i, note in enumerate(notes(lists, shared)):
        write(ax, MARGIN, bottom + BOTTOM + LINE * i, note, 7.5, FAINT, "left")
    return ax


def _block(ax: Axes, dots: Dots, top: float, x: Callable[[float], float]) -> None:
    """One list: its title, a row a rank."""
    write(ax, MARGIN, top + HEAD / 2, shortened(dots.title, WIDE - 2 * MARGIN, 9.5), 9.5, align="left")
    for r, mine in enumerate(dots.times):
        y = top + HEAD + ROW * (r + 0.5)
        chip(ax, 0.55, y, r)
        write(ax, 0.82, y, f"rank {r}", 9, align="left")
        ax.plot([LEFT, WIDE - RIGHT], [y + ROW / 2] * 2, color=GRID, linewidth=0.7, zorder=0)
        _row(ax, dots, r, [(x(t), y + SPREAD * _share(i, len(mine))) for i, t in enumerate(mine)])
        median = dots.medians[r]
        write(ax, WIDE - MARGIN, y, "–" if median is None else seconds(median), 8, align="right")
        if median is not None:
            ax.plot([x(median)] * 2, [y - 0.42, y + 0.42], color=INK, linewidth=1.6, zorder=6)


def _share(i: int, many: int) -> float:
    """From -0.5 for the first repetition to 0.5 for the last."""
    return i / (many - 1) - 0.5 if many > 1 else 0.0


def _scale(ax: Axes, times: Sequence[float], bottom: float) -> Callable[[float], float]:
    """The axis; where a time lies on it."""
    low, high = min(times, default=0.0), max(times, default=0.0)
    if low > 0 and high / low > LOGARITHMIC:
        return _logarithmic(ax, low / 1.2, high * 1.2, bottom)
    end = 1.05 * high or 1e-6

    def x(s: float) -> float:
        return LEFT + max(s, 0.0) / end * (WIDE - LEFT - RIGHT)

    clock(ax, x, end, TOP, bottom, "time in {}")
    return x


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
    """One path for the warm-ups and one for the others keep the SVG small."""
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
    """A circle of four curves."""
    places, codes = [(x + DOT, y)], [Path.MOVETO]
    for ux, uy in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        vx, vy = -uy, ux
        for u, v in ((1, ROUND), (ROUND, 1), (0, 1)):
            places.append((x + DOT * (u * ux + v * vx), y + DOT * (u * uy + v * vy)))
        codes += [Path.CURVE4] * 3
    return Path(places, codes)


def _legend(ax: Axes, lists: Sequence[Dots]) -> None:
    """What the dots are."""
    warm = max((min(dots.warmup, dots.longest) for dots in lists), default=0)
    x = MARGIN + 0.1
    entries = [(PLAIN, 0.5, "one repetition; the first is at the top of its row")]
    entries += [(PAGE, 1.3, f"one of {warm} to warm up, not in the median")] * bool(warm)
    for fill, edge, words in entries:
        _dots(ax, [(x, LEGEND)], fill, INK, edge)
        write(ax, x + 0.2, LEGEND, words, 8, FAINT, "left")
        x += 0.2 + extent(words, 8) + 0.6
