"""Draw where the time goes: a stacked bar a run, a look for each thing that time goes into, all on one scale.

No colours, for these mean ranks: greys and hatches, as in `plot.bars`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes

from labkit.floor.words import seconds
from labkit.plot.bars import part, swatch
from labkit.plot.sheet import clock, extent, sheet, shortened, write
from labkit.plot.svg import FAINT, GRID
from workbook.tools.events.training import WHOLE

LEFT, PLOT, RIGHT, MARGIN = 6.3, 9.1, 3.6, 0.4  # LEFT is the most that names take
TOP, LINE, ROW, BAR, BOTTOM, SWATCH = 0.5, 0.5, 0.72, 0.46, 1.05, 0.6
LEAST = 0.002  # of the axis: thinner parts have no place


@dataclass(frozen=True)
class Spent:
    """`bars[name]` are seconds by what they went into; `heads[name]` stands behind the bar.

    The axis is in seconds, or in per cent of each bar where `whole`.
    """

    bars: Mapping[str, Mapping[str, float]]
    heads: Mapping[str, str]
    axis: str
    whole: bool = False


def draw(spent: Spent) -> Axes:
    """Draw the bars below their legend, y downwards."""
    ax = sheet(_wide(spent), _top(spent) + ROW * len(spent.bars) + BOTTOM)
    for x, line, kind in _legend(spent):
        swatch(ax, x, TOP + LINE * line, SWATCH, 0.34, WHOLE.index(kind))
        write(ax, x + SWATCH + 0.15, TOP + LINE * line, kind, 8, align="left")
    top, bottom = _top(spent), _top(spent) + ROW * len(spent.bars)
    left = _left(spent)
    end = 1.0 if spent.whole else max((sum(bar.values()) for bar in spent.bars.values()), default=0.0) or 1.0

    def place(moment: float) -> float:
        return left + moment / end * PLOT

    if spent.whole:
        for mark in range(0, 101, 20):
            ax.plot([place(mark / 100)] * 2, [top, bottom], color=GRID, linewidth=0.7, zorder=0)
            write(ax, place(mark / 100), bottom + 0.28, f"{mark}", 7.5, FAINT)
        write(ax, (place(0) + place(1)) / 2, bottom + 0.68, spent.axis, 8, FAINT)
    else:
        clock(ax, place, end, top, bottom, spent.axis)
    for row, (name, bar) in enumerate(spent.bars.items()):
        y = top + ROW * (row + 0.5)
        write(ax, MARGIN, y, shortened(name, left - MARGIN - 0.3, 9), 9, align="left")
        scale = sum(bar.values()) or 1.0 if spent.whole else 1.0
        _bar(ax, {kind: value / scale for kind, value in bar.items()}, y, place, end, spent.whole)
        write(ax, place(sum(bar.values()) / scale) + 0.16, y, spent.heads[name], 8.5, align="left", bold=True)
    return ax


def _bar(
    ax: Axes, widths: Mapping[str, float], y: float, place: Callable[[float], float], end: float,
    whole: bool,
) -> None:  # fmt: skip
    before = 0.0
    for kind, width in widths.items():
        if width > LEAST * end:
            said = f"{100 * width:.0f} %" if whole else seconds(width)
            part(ax, place(before), place(before + width), y, WHOLE.index(kind), said, 7.5, BAR, 0.16, 0.32, 0.02)
        before += width


def _kinds(spent: Spent) -> list[str]:
    """Return everything that takes time in one of the bars."""
    return list(dict.fromkeys(kind for bar in spent.bars.values() for kind in bar))


def _left(spent: Spent) -> float:
    """Return where the bars begin: behind the longest name, so that a narrow page need not shrink the picture."""
    return min(LEFT, MARGIN + max((extent(name, 9) for name in spent.bars), default=0.0) + 0.5)


def _wide(spent: Spent) -> float:
    return _left(spent) + PLOT + RIGHT


def _legend(spent: Spent) -> list[tuple[float, int, str]]:
    found = []
    x, line = MARGIN, 0
    for kind in _kinds(spent):
        width = SWATCH + 0.15 + extent(kind, 8)
        if x > MARGIN and x + width > _wide(spent) - MARGIN:
            x, line = MARGIN, line + 1
        found.append((x, line, kind))
        x += width + 0.55
    return found


def _top(spent: Spent) -> float:
    return TOP + LINE * max((line for _, line, _ in _legend(spent)), default=0) + 0.45
