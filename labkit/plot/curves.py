"""Values over steps, a line a rank, panels side by side on one scale: what ranks recorded while they trained.

A line has its rank's colour and mark. Where lines lie upon one another their marks take turns, so all can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from labkit.plot.sheet import color, extent, sheet, shortened, stroke, write
from labkit.plot.svg import FAINT, GRID, INK

WIDE, HIGH = 8.6, 6.4  # of a panel with its margins
LEFT, TOP, BOTTOM, RIGHT = 1.1, 0.95, 5.5, 0.25
LEGEND, MARGIN = 1.0, 0.5
ACROSS = 2  # panels in a row
MARKED = 20  # places of a panel at most that bear a mark
MARKS = ("o", "s", "^", "D", "v", "p", "P", "X")

Panel = tuple[str, Mapping[int, Sequence[float]], str]  # its heading, each rank's values, and a note


def axes(panels: Sequence[Panel]) -> Axes:
    """Axes that are large enough."""
    return sheet(WIDE * min(ACROSS, len(panels)) + 0.3, LEGEND + HIGH * math.ceil(len(panels) / ACROSS))


def draw(ax: Axes, panels: Sequence[Panel], every: int = 1) -> Axes:
    """Draw on axes as `axes` makes them; value i of a line belongs to step `every · (i + 1)`."""
    _legend(ax, sorted({r for _, lines, _ in panels for r in lines}), WIDE * min(ACROSS, len(panels)))
    finite = [v for _, lines, _ in panels for line in lines.values() for v in line if math.isfinite(v)]
    longest = max((len(line) for _, lines, _ in panels for line in lines.values()), default=1)
    across = ticks(every, every * max(2, longest))
    up = ticks(min(finite, default=0.0), max(finite, default=1.0))
    for i, panel in enumerate(panels):
        row, column = divmod(i, ACROSS)
        _panel(ax, WIDE * column, LEGEND + HIGH * row, panel, every, across, up)
    return ax


def ticks(low: float, high: float) -> list[float]:
    """Round numbers, four to seven of them, that enclose low and high.

    >>> ticks(2.5, 3.6), ticks(5, 100)
    ([2.4, 2.6, 2.8, 3.0, 3.2, 3.4, 3.6], [0.0, 20.0, 40.0, 60.0, 80.0, 100.0])
    """
    room = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(room / 5))
    step = next(step for k in (1, 2, 5, 10) if room / (step := k * power) <= 5.5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, -math.floor(math.log10(step)))
    return [round(k * step, digits) for k in range(first, max(last, first + 1) + 1)]


def _legend(ax: Axes, ranks: Sequence[int], room: float) -> None:
    """As many ranks as there is room for, and the last."""
    x = MARGIN
    for r in ranks:
        ax.plot([x, x + 0.7], [0.5, 0.5], color=stroke(r), linewidth=1.6)
        _mark(ax, x + 0.35, 0.5, r)
        write(ax, x + 0.85, 0.5, f"rank {r}", 8, align="left")
        x += 1.25 + extent(f"rank {r}", 8)
        if x > room - 2 and r != ranks[-1]:
            write(ax, x, 0.5, f"… rank {ranks[-1]}", 8, align="left")
            return


def _panel(
    ax: Axes, x: float, y: float, panel: Panel, every: int, across: Sequence[float], up: Sequence[float]
) -> None:
    heading, lines, note = panel
    left, right, top, bottom = x + LEFT, x + WIDE - RIGHT, y + TOP, y + BOTTOM

    def place(step: float, value: float) -> tuple[float, float]:
        return (
            left + (right - left) * (step - across[0]) / (across[-1] - across[0]),
            bottom - (bottom - top) * (value - up[0]) / (up[-1] - up[0]),
        )

    write(ax, left, y + 0.25, shortened(heading, right - left, 9, mono=True), 9, align="left", mono=True)
    write(ax, left, y + 0.62, shortened(note, right - left, 7.5), 7.5, FAINT, "left")
    for value in up:
        _, level = place(0, value)
        ax.plot([left, right], [level, level], color=GRID, linewidth=0.7, zorder=0)
        write(ax, left - 0.15, level, f"{value:.6g}", 7.5, FAINT, "right")
    for step in across:
        upright, _ = place(step, up[0])
        write(ax, upright, bottom + 0.28, f"{step:.6g}", 7.5, FAINT)
    write(ax, (left + right) / 2, bottom + 0.68, "step", 8, FAINT)
    for nth, (r, line) in enumerate(sorted(lines.items())):
        places = [place(every * (i + 1), v) if math.isfinite(v) else (math.nan, math.nan) for i, v in enumerate(line)]
        ax.plot(*zip(*places, strict=True), color=stroke(r), linewidth=1.6, zorder=2)
        gap = math.ceil(len(places) / MARKED)
        for i, (across_, level) in enumerate(places[gap - 1 :: gap]):
            if i % len(lines) == nth and math.isfinite(level):
                _mark(ax, across_, level, r)


def _mark(ax: Axes, x: float, y: float, r: int) -> None:
    ax.plot(
        [x], [y], marker=MARKS[r % len(MARKS)], markersize=6, color=color(r), markeredgecolor=INK,
        markeredgewidth=0.6, zorder=4,
    )  # fmt: skip
