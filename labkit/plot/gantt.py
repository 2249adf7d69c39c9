"""Draw a Gantt chart of passes: one lane per rank, a box for each pass, and nothing where a rank stands idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from labkit.plot.sheet import FULL, Scale, chip, clock, extent, in_lines, sheet, wrapped, write
from labkit.plot.svg import EDGE, FAINT, GRID, INK, PAGE, PLAIN

WIDE, LEFT, RIGHT, MARGIN = FULL, 2.1, 0.3, 0.4
LANE, HIGH, BOTTOM, LINE = 0.62, 0.46, 1.0, 0.42
LETTERS = 7.5  # points
CLEAR = 0.035  # beside a label, to the edge of its box
LOOKS = {"forward": (PLAIN, ""), "backward": (PAGE, "----"), "weights": (PAGE, "||||"), "": (PAGE, "")}  # greys
WORDS = {
    "forward": "forward pass", "backward": "backward pass", "weights": "gradients of the weights", "": "other",
    "nothing": "nothing is computed", "chunk": "through the second chunk (b)",
}  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """One pass of the kind `of`, from `start` to `end`; `names` are what may be written on it, the longest first.

    One through a later chunk of a rank's layers has so many heavy lines below it.
    """

    of: str
    names: tuple[str, ...]
    start: float
    end: float
    chunk: int = 0


@dataclass(frozen=True)
class Chart:
    """Rank r's bars, `lanes[r]`, and what stands below its name, `heads[r]`; the axis has `seconds`, or units."""

    lanes: Sequence[Sequence[Bar]]
    heads: Sequence[str]
    axis: str
    seconds: bool
    notes: Sequence[str] = ()


def draw(chart: Chart) -> Axes:
    """Draw the chart, its axis and a legend of its passes."""
    legend = _legend(chart)
    top = LINE * (1 + legend[-1][1]) + 0.73
    bottom = top + LANE * len(chart.lanes)
    notes = [line for note in chart.notes for line in wrapped(note, WIDE - RIGHT - MARGIN, 7.5)]
    ax = sheet(WIDE, bottom + BOTTOM + LINE * len(notes))
    end = max([1e-9, *(bar.end for lane in chart.lanes for bar in lane)])
    x = Scale(1.01 * end, LEFT, WIDE - RIGHT)
    _axis(ax, chart, x, end, top, bottom)
    for left, line, what in legend:
        _sample(ax, what, left, 0.5 + LINE * line)
    for r, (lane, head) in enumerate(zip(chart.lanes, chart.heads, strict=True)):
        middle = top + LANE * (r + 0.5)
        chip(ax, 0.55, middle - 0.11, r)
        write(ax, 0.82, middle - 0.11, f"rank {r}", 9, align="left")
        write(ax, 0.82, middle + 0.16, head, LETTERS, FAINT, "left")
        ax.plot([LEFT, WIDE - RIGHT], [middle] * 2, color=EDGE, linewidth=0.8, zorder=1)
        for bar in lane:
            _bar(ax, x, bar, middle)
    for i, note in enumerate(notes):
        write(ax, MARGIN, bottom + BOTTOM + LINE * (i + 0.2), note, 7.5, FAINT, "left")
    return ax


def _axis(ax: Axes, chart: Chart, x: Scale, end: float, top: float, bottom: float) -> None:
    if chart.seconds:
        clock(ax, x, end, top - 0.05, bottom + 0.05, chart.axis)
        return
    for mark in MaxNLocator(10, integer=True).tick_values(0, end):
        if 0 <= mark <= end:
            ax.plot([x(mark)] * 2, [top - 0.05, bottom + 0.05], color=GRID, linewidth=0.7, zorder=0)
            write(ax, x(mark), bottom + 0.33, f"{mark:g}", 7.5, FAINT)
    write(ax, (x(0) + x(end)) / 2, bottom + 0.73, chart.axis, 8, FAINT)


def _legend(chart: Chart) -> list[tuple[float, int, str]]:
    """Return what the chart has: where it stands, in which line, what it is."""
    bars = [bar for lane in chart.lanes for bar in lane]
    shown = [*(of for of in LOOKS if any(bar.of == of for bar in bars)), "nothing"]
    shown += ["chunk"] * any(bar.chunk for bar in bars)
    places = in_lines([0.62 + extent(WORDS[what], 8) for what in shown], MARGIN, WIDE - RIGHT, 0.38)
    return [(x, line, what) for (x, line), what in zip(places, shown, strict=True)]


def _sample(ax: Axes, what: str, x: float, y: float) -> None:
    """Draw a small box that looks as in the chart, with its words."""
    if what == "nothing":
        ax.plot([x, x + 0.5], [y, y], color=EDGE, linewidth=0.8)
    else:
        _box(ax, (x, x + 0.5), (y - 0.14, y + 0.14), "" if what == "chunk" else what, what == "chunk")
    write(ax, x + 0.62, y, WORDS[what], 8, align="left")


def _bar(ax: Axes, x: Scale, bar: Bar, middle: float) -> None:
    a, b = x(bar.start), x(bar.end)
    _box(ax, (a, b), (middle - HIGH / 2, middle + HIGH / 2), bar.of, bar.chunk)
    hatched = bool(LOOKS[bar.of][1])
    for name in bar.names:
        if extent(name, LETTERS) + 2 * CLEAR * (1 + hatched) <= b - a:
            label = write(ax, (a + b) / 2, middle, name, LETTERS, INK)
            if hatched:
                label.set_bbox({"boxstyle": "round,pad=0.08", "facecolor": PAGE, "edgecolor": "none"})
            return


def _box(ax: Axes, xs: tuple[float, float], ys: tuple[float, float], of: str, chunk: int = 0) -> None:
    face, hatch = LOOKS[of]
    where = ((xs[0], ys[0]), max(xs[1] - xs[0], 0.02), ys[1] - ys[0])
    ax.add_artist(Rectangle(*where, facecolor=face, edgecolor=EDGE, hatch=hatch or None, linewidth=0, zorder=3))
    ax.add_artist(Rectangle(*where, facecolor="none", edgecolor=INK, linewidth=0.5, zorder=4))
    for i in range(chunk):
        y = ys[1] - 0.02 - 0.09 * i
        ax.plot(xs, [y, y], color=INK, linewidth=2.2, zorder=5, solid_capstyle="butt")
