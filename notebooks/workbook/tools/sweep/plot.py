"""Draw time and bus bandwidth over sizes, both axes logarithmic; and what other tools' curves over sizes share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Rectangle

from labkit.floor.words import nbytes, seconds
from labkit.plot.sheet import FULL, color, headline, on, sheet, write
from labkit.plot.svg import FAINT, GRID, INK

WIDE, HIGH = FULL, 9.4
TOP, BOTTOM, WIDTH = 2.5, 8.05, 6.4  # of a panel
LEFTS = (1.6, 10.2)
MEASURED, FITTED, COPIED = "#0072B2", "#D55E00", "#009E73"  # Okabe and Ito's
ROOM = 1.5  # beyond the least and the largest value, as a factor
LETTERS = "ABCDEFGHIJ"  # of curves
STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Curves:
    """What is drawn: bytes; seconds (min, median, p90); GB/s; α in seconds and β in seconds per byte."""

    title: str
    sizes: Sequence[float]
    times: Sequence[tuple[float, float, float]]
    busbw: Sequence[float]
    copy: Sequence[float]
    alpha: float
    beta: float
    factor: float  # busbw = factor × algbw
    letters: tuple[str, str] = ("α", "β")  # of the fitted line; a and b for an operation of several messages
    rate: str = "bus bandwidth"  # what `busbw` is called


@dataclass(frozen=True)
class Panel:
    """Two logarithmic scales: where a size and a value lie, in units of the sheet."""

    left: float
    sizes: tuple[float, float]
    values: tuple[float, float]
    width: float = WIDTH
    top: float = TOP
    bottom: float = BOTTOM

    def x(self, size: float) -> float:
        """Return where a size lies."""
        return self.left + self.width * _share(size, *self.sizes)

    def y(self, value: float) -> float:
        """Return where a value lies."""
        return self.bottom - (self.bottom - self.top) * _share(value, *self.values)

    def points(self, sizes: Iterable[float], values: Iterable[float]) -> list[tuple[float, float]]:
        """Return where values over sizes lie."""
        return [(self.x(s), self.y(v)) for s, v in zip(sizes, values, strict=True)]


def draw(curves: Curves) -> Axes:
    """Draw two panels side by side: points, the fitted line, the limit that copying sets."""
    ax = sheet(WIDE, HIGH)
    headline(ax, 0.5, 0.62, curves.title)
    sizes = list(curves.sizes)
    fine = [sizes[0] * (sizes[-1] / sizes[0]) ** (i / 60) for i in range(61)]
    fitted = [curves.alpha + curves.beta * s for s in fine]
    medians = [median for _, median, _ in curves.times]

    left = panel(ax, LEFTS[0], sizes, [*(t for row in curves.times for t in row), *fitted], seconds)
    for size, (low, _, high) in zip(sizes, curves.times, strict=True):
        ax.plot([left.x(size)] * 2, [left.y(low), left.y(high)], color=MEASURED, linewidth=1.3, zorder=3)
    line(ax, left, fine, fitted, FITTED, "--")
    _dots(ax, left, sizes, medians)
    _legend(ax, left, 0, "o", MEASURED, "time of a call: median, from min to p90")
    a, b = curves.letters
    _legend(ax, left, 1, "--", FITTED, f"fitted: {a} = {seconds(curves.alpha)}, {inverse(curves.beta, b)}")

    rates = [curves.factor * s / t / 1e9 for s, t in zip(fine, fitted, strict=True)]
    right = panel(ax, LEFTS[1], sizes, [v for v in [*curves.busbw, *curves.copy, *rates] if v > 0], rate)
    line(ax, right, sizes, curves.copy, COPIED, ":")
    for size, copy in zip(sizes, curves.copy, strict=True):
        ax.add_artist(Rectangle((right.x(size) - 0.07, right.y(copy) - 0.07), 0.14, 0.14, facecolor=COPIED, zorder=4))
    line(ax, right, fine, rates, FITTED, "--")
    _dots(ax, right, sizes, curves.busbw)
    _legend(ax, right, 0, "o", MEASURED, f"{curves.rate}; dashed: from {' and '.join(curves.letters)}")
    _legend(ax, right, 1, ":", COPIED, "what each rank copies in memory, all at once")
    return ax


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


def panel(
    ax: Axes, left: float, sizes: Sequence[float], values: Sequence[float], said: Callable[[float], str],
    width: float = WIDTH,
) -> Panel:  # fmt: skip
    """Draw a grid, with powers of two below and powers of ten at the side, and return its scales."""
    across = (min(sizes) / ROOM, max(sizes) * ROOM)
    panel = Panel(left, across, (min(values) / ROOM, max(values) * ROOM), width)
    first, last = math.ceil(math.log2(min(sizes))), math.floor(math.log2(max(sizes)))
    for k in range(first, last + 1, max(1, math.ceil((last - first) / 6))):
        x = panel.x(2.0**k)
        ax.plot([x, x], [TOP, BOTTOM], color=GRID, linewidth=0.7, zorder=0)
        write(ax, x, BOTTOM + 0.3, nbytes(2.0**k), 7.5, FAINT)
    for value in marks(*panel.values):
        y = panel.y(value)
        ax.plot([panel.left, panel.left + width], [y, y], color=GRID, linewidth=0.7, zorder=0)
        write(ax, panel.left - 0.15, y, said(value), 7.5, FAINT, "right")
    write(ax, panel.left + width / 2, BOTTOM + 0.8, "size S (both scales logarithmic)", 8, FAINT)
    return panel


def marks(low: float, high: float) -> list[float]:
    """Return powers of ten; with 2 and 5 between them where there are few, every other one where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1.0,) if last - first > 3 else (1.0, 2.0, 5.0)
    every = max(1, (last - first) // 7)
    marks = [step * 10.0**k for k in range(first, last + 1, every) for step in steps]
    return [m for m in marks if low <= m <= high]


def line(ax: Axes, panel: Panel, sizes: Sequence[float], values: Sequence[float], paint: str, style: str) -> None:
    """Join values over sizes."""
    xs, ys = [panel.x(s) for s in sizes], [panel.y(v) for v in values]
    ax.plot(xs, ys, color=paint, linewidth=1.5, linestyle=style, zorder=2)


def join(ax: Axes, points: Sequence[tuple[float, float]], **look: Any) -> None:
    """Join points by a line; `ax.plot` would look for limits that never change, ten times slower."""
    ax.add_artist(Line2D([x for x, _ in points], [y for _, y in points], **look))


def badge(ax: Axes, x: float, y: float, i: int, zorder: float = 5) -> None:
    """Put the i-th curve's letter there."""
    ax.add_artist(Circle((x, y), 0.19, facecolor=color(i), edgecolor=INK, linewidth=0.8, zorder=zorder))
    write(ax, x, y + 0.01, LETTERS[i], 7.5, on(i))


def _dots(ax: Axes, panel: Panel, sizes: Sequence[float], values: Sequence[float]) -> None:
    for size, value in zip(sizes, values, strict=True):
        ax.add_artist(Circle((panel.x(size), panel.y(value)), 0.09, facecolor=MEASURED, edgecolor="none", zorder=5))


def _legend(ax: Axes, panel: Panel, row: int, mark: str, paint: str, words: str) -> None:
    x, y = panel.left, 1.35 + 0.5 * row
    if mark == "o":
        ax.add_artist(Circle((x + 0.3, y), 0.09, facecolor=paint, edgecolor="none"))
    else:
        ax.plot([x, x + 0.6], [y, y], color=paint, linewidth=1.5, linestyle=mark)
    if mark == ":":
        ax.add_artist(Rectangle((x + 0.23, y - 0.07), 0.14, 0.14, facecolor=paint))
    write(ax, x + 0.8, y, words, 8, align="left")


def rate(gbs: float) -> str:
    """Say a bandwidth, given in GB/s, in the decimal unit that fits.

    >>> rate(0.0025), rate(12.34)
    ('2.5 MB/s', '12.3 GB/s')
    """
    for unit, size in (("GB/s", 1.0), ("MB/s", 1e-3)):
        if gbs >= 0.9995 * size:  # 999.6 MB/s read better as 1 GB/s
            return f"{gbs / size:.3g} {unit}"
    return f"{gbs * 1e6:.3g} kB/s"


def inverse(beta: float, letter: str) -> str:
    """Say 1 / β in seconds per byte as a bandwidth, by the letter that β has here.

    >>> inverse(1e-9, "b")
    '1/b = 1 GB/s'
    """
    return f"1/{letter} = {rate(1e-9 / beta)}" if beta > 0 else f"{letter} = 0"
