"""Give all pictures a sheet to draw on, letters and how wide they are, places, and the colours of the ranks.

A unit is UNIT points; y goes down. No pyplot, no global style: a learner may be drawing in another thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Circle
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator

from labkit.plot.svg import FAINT, GRID, HALO, INK, YELLOW

UNIT = 36.0  # points that one unit takes
LEAST = 7.0  # points of the smallest letters: more than 9 px at 100 %
FULL = 17.0  # units: of a picture with letters of 7.5 points, all is seen beside the file browser of a 1,200 px window
CARD = 15.25  # units: of a picture with the smallest letters, all is seen on a card in that window
TITLE = 9.5  # points of a title's
# Okabe and Ito's colours, neighbours far apart; beyond 8 ranks they come again, and the labels tell.
RANKS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999")
BLACK, WHITE = "#000000", "#fefefe"  # on colours, which are the same in both themes
Align = Literal["left", "center", "right"]


@dataclass(frozen=True)
class Scale:
    """A map from values between 0 and `end` to units of a picture, between its edges `left` and `right`."""

    end: float
    left: float
    right: float

    def __call__(self, value: float) -> float:
        return self.left + value / self.end * (self.right - self.left)


def sheet(width: float, height: float) -> Axes:
    """Return axes of a new figure, `width` × `height` units."""
    figure = Figure(figsize=(width * UNIT / 72, height * UNIT / 72), dpi=72)
    figure.set_layout_engine("none")
    figure.patch.set_visible(False)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    ax.axis("off")
    return ax


def write(
    ax: Axes, x: float, y: float, text: str, points: float, ink: str = INK, align: Align = "center",
    bold: bool = False, mono: bool = False, zorder: float = 8, halo: bool = False,
) -> Text:  # fmt: skip
    """Write a line whose letters' middle is at y; with a halo, what it crosses ends before it."""
    return ax.text(
        x, y, text, color=ink, ha=align, va="center_baseline", zorder=zorder, parse_math=False,
        gid=HALO if halo else None, fontproperties=_font(points, bold, mono),
    )  # fmt: skip


def headline(
    ax: Axes, x: float, y: float, words: str, room: float = math.inf, ink: str = INK, align: Align = "left",
    mono: bool = False,
) -> None:  # fmt: skip
    """Write what a picture, or a part of it, is called, as much as there is room for: the same look in all of them."""
    write(ax, x, y, shortened(words, room, TITLE, True, mono), TITLE, ink, align, True, mono)


@cache
def extent(text: str, points: float, bold: bool = False, mono: bool = False) -> float:
    """Return how many units a line takes, by matplotlib's own letters."""
    return float(text_to_path.get_text_width_height_descent(text, _font(points, bold, mono), False)[0]) / UNIT


def shortened(text: str, room: float, points: float, bold: bool = False, mono: bool = False) -> str:
    """Return the text, or as much of its beginning as the room has place for."""
    if extent(text, points, bold, mono) <= room:
        return text
    return next((s for i in range(len(text), 0, -1) if extent(s := text[:i] + "…", points, bold, mono) <= room), "…")


def wrapped(text: str, room: float, points: float, bold: bool = False) -> list[str]:
    """Break the text between words into lines that the room has place for."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and extent(longer, points, bold) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def in_lines(widths: Sequence[float], left: float, right: float, gap: float) -> list[tuple[float, int]]:
    """Place pieces of these widths side by side, as many in a line as there is room for: where each begins, its line.

    >>> in_lines([2, 3, 4], left=1, right=8, gap=1)
    [(1, 0), (4, 0), (1, 1)]
    """
    places = []
    x, line = left, 0
    for width in widths:
        if x > left and x + width > right:
            x, line = left, line + 1
        places.append((x, line))
        x += width + gap
    return places


def clock(ax: Axes, x: Callable[[float], float], end: float, top: float, bottom: float, what: str) -> None:
    """Draw an axis of time from 0 to `end` seconds: a grid, figures, and `what` it is, with the unit in place of {}."""
    name, per_second = ("s", 1.0) if end >= 1 else ("ms", 1e3) if end >= 1e-3 else ("µs", 1e6)
    every = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]).tick_values(0, end * per_second)
    marks = [m for m in every if 0 <= m <= end * per_second]
    places = max((len(f"{m:.6g}".partition(".")[2]) for m in marks), default=0)
    for m in marks:
        ax.plot([x(m / per_second)] * 2, [top, bottom], color=GRID, linewidth=0.7, zorder=0)
        write(ax, x(m / per_second), bottom + 0.28, f"{m:.{places}f}", 7.5, FAINT)
    write(ax, (x(0) + x(end)) / 2, bottom + 0.68, what.format(name), 8, FAINT)


def color(rank: int) -> str:
    """Return a rank's colour."""
    return RANKS[rank % len(RANKS)]


def stroke(rank: int) -> str:
    """Return the colour of a rank's lines, a darker yellow for yellow, which would vanish on a light page."""
    return YELLOW if color(rank) == "#F0E442" else color(rank)


def on(rank: int) -> str:
    """Return the ink that can be read on a rank's colour."""
    return WHITE if color(rank) == "#0072B2" else BLACK


def chip(ax: Axes, x: float, y: float, rank: int, radius: float = 0.15) -> None:
    """Draw a small circle in a rank's colour."""
    ax.add_artist(Circle((x, y), radius, facecolor=color(rank), edgecolor=INK, linewidth=0.5, zorder=4))


def circle(n: int, radius: float, x: float, y: float) -> list[tuple[float, float]]:
    """Return where ranks stand in a circle around a point, clockwise from the top; two stand side by side."""
    turn = math.pi if n == 2 else -math.pi / 2
    angles = [turn + 2 * math.pi * r / n for r in range(n)]
    return [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles]


def _font(points: float, bold: bool, mono: bool) -> FontProperties:
    """Return DejaVu, which comes with matplotlib: the same widths on every machine, under any style of a learner's."""
    return FontProperties(
        family="DejaVu Sans Mono" if mono else "DejaVu Sans", size=points, weight="bold" if bold else "normal"
    )
