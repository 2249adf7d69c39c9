"""Draw where the time goes: a stacked bar a run, a look for each thing that time goes into, all on one scale.

No colours, for these mean ranks: greys and hatches, as in `plot.bars`.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from labkit.floor.words import seconds
from labkit.plot.bars import part, swatch
from labkit.plot.sheet import Scale, clock, extent, in_lines, sheet, shortened, write
from labkit.plot.svg import FAINT, GRID
from workbook.tools.events.failures import WHOLE

LEFT, PLOT, RIGHT, MARGIN = 6.3, 9.1, 3.6, 0.4  # LEFT is the most that names take
TOP, LINE, ROW, BAR, BOTTOM, SWATCH = 0.5, 0.5, 0.72, 0.46, 1.05, 0.6
LEAST = 0.002  # of the axis: thinner parts have no place


def draw(bars: Mapping[str, Mapping[str, float]], heads: Mapping[str, str], axis: str, whole: bool = False) -> Axes:
    """Draw the bars below their legend, y downwards.

    `bars[name]` are seconds by what they went into; `heads[name]` stands behind the bar. The axis is in seconds, or in
    per cent of each bar where `whole`.
    """
    # The bars begin behind the longest name, so that a narrow page need not shrink the picture.
    left = min(LEFT, MARGIN + max((extent(name, 9) for name in bars), default=0.0) + 0.5)
    wide = left + PLOT + RIGHT
    kinds = list(dict.fromkeys(kind for bar in bars.values() for kind in bar))
    places = in_lines([SWATCH + 0.15 + extent(kind, 8) for kind in kinds], MARGIN, wide - MARGIN, 0.55)
    top = TOP + LINE * max((line for _, line in places), default=0) + 0.45
    bottom = top + ROW * len(bars)
    ax = sheet(wide, bottom + BOTTOM)
    for (x, line), kind in zip(places, kinds, strict=True):
        swatch(ax, x, TOP + LINE * line, SWATCH, 0.34, WHOLE.index(kind))
        write(ax, x + SWATCH + 0.15, TOP + LINE * line, kind, 8, align="left")
    end = 1.0 if whole else max((sum(bar.values()) for bar in bars.values()), default=0.0) or 1.0
    place = Scale(end, left, left + PLOT)
    if whole:
        for mark in range(0, 101, 20):
            ax.plot([place(mark / 100)] * 2, [top, bottom], color=GRID, linewidth=0.7, zorder=0)
            write(ax, place(mark / 100), bottom + 0.28, f"{mark}", 7.5, FAINT)
        write(ax, (place.left + place.right) / 2, bottom + 0.68, axis, 8, FAINT)
    else:
        clock(ax, place, end, top, bottom, axis)
    for row, (name, bar) in enumerate(bars.items()):
        y = top + ROW * (row + 0.5)
        write(ax, MARGIN, y, shortened(name, left - MARGIN - 0.3, 9), 9, align="left")
        scale = sum(bar.values()) or 1.0 if whole else 1.0
        _bar(ax, {kind: value / scale for kind, value in bar.items()}, y, place, whole)
        write(ax, place(sum(bar.values()) / scale) + 0.16, y, heads[name], 8.5, align="left", bold=True)
    return ax


def _bar(ax: Axes, widths: Mapping[str, float], y: float, place: Scale, whole: bool) -> None:
    before = 0.0
    for kind, width in widths.items():
        if width > LEAST * place.end:
            said = f"{100 * width:.0f} %" if whole else seconds(width)
            part(ax, place(before), place(before + width), y, WHOLE.index(kind), said, 7.5, BAR, 0.16, 0.32, 0.02)
        before += width
