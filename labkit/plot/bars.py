"""Draw stacked bars of bytes: a block per expression, a bar per rank, a look per kind, all on one scale.

Where all ranks hold the same, one bar stands for all of them.

Colours mean ranks and stand at the foot of a bar; what lies in it is told apart by greys and hatches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.floor.words import nbytes
from labkit.plot.sheet import FULL, TITLE, Scale, chip, extent, headline, in_lines, sheet, shortened, write
from labkit.plot.svg import EDGE, FAINT, GRID, INK, PAGE, PLAIN

WIDE, LEFT, RIGHT, MARGIN = FULL, 2.15, 1.9, 0.4
TOP, LINE, HEAD, ROW, BAR, GAP, BOTTOM = 0.55, 0.5, 0.8, 0.6, 0.42, 0.3, 1.05
SWATCH = 0.6
# A kind's ground, hatch, and the ink on it: no colours, for these mean ranks.
LOOKS = (
    (FAINT, "", PAGE),
    (PAGE, "////", INK),
    (PLAIN, "", INK),
    (PAGE, "..", INK),
    (PLAIN, "\\\\\\\\", INK),
    (PAGE, "xx", INK),
    (EDGE, "", INK),
    (PAGE, "---", INK),
    (PAGE, "||||", INK),
)
MARK = (0, (4, 2.5))  # the dashes of a formula


@dataclass(frozen=True)
class Held:
    """`bars[r]` are the bytes of rank r by kind; `formula[r]` is what they should be in all, None without one."""

    title: str
    bars: Sequence[Mapping[str, float]]
    formula: Sequence[float] | None = None

    @property
    def alike(self) -> bool:
        """True if all of several ranks hold the same, and should."""
        return 1 < len(self.bars) == self.bars.count(self.bars[0]) and len(set(self.formula or [0])) == 1

    @property
    def rows(self) -> int:
        """The number of bars that are drawn."""
        return 1 if self.alike else len(self.bars)

    @property
    def height(self) -> float:
        """The height of its title and its bars."""
        return HEAD + ROW * self.rows + GAP


def look(i: int) -> tuple[str, str, str]:
    """Return ground, hatch and ink of the i-th kind; beyond the last look they come again, and the text tells them."""
    return LOOKS[i % len(LOOKS)]


def draw(blocks: Sequence[Held]) -> Axes:
    """Draw the blocks one under the other, under a legend of the kinds."""
    kinds = list(dict.fromkeys(kind for block in blocks for bar in block.bars for kind in bar))
    legend = [(shortened(kind, 8, 8), SWATCH) for kind in kinds]
    legend += [("what the formula says", 0.15)] * any(block.formula is not None for block in blocks)
    places = in_lines([wide + 0.15 + extent(said, 8) for said, wide in legend], MARGIN, WIDE - MARGIN, 0.55)
    top = TOP + LINE * max((line for _, line in places), default=0) + 0.4
    bottom = top + sum(block.height for block in blocks)
    ax = sheet(WIDE, bottom + BOTTOM)
    for i, ((left, line), (said, wide)) in enumerate(zip(places, legend, strict=True)):
        y = TOP + LINE * line
        if i < len(kinds):
            swatch(ax, left, y, SWATCH, 0.34, i)
        else:
            ax.plot([left + 0.07] * 2, [y - 0.25, y + 0.25], color=INK, linewidth=1.5, linestyle=MARK)
        write(ax, left + wide + 0.15, y, said, 8, align="left")
    x = _scale(ax, blocks, top, bottom)
    for block in blocks:
        _block(ax, block, top, x, kinds)
        top += block.height
    return ax


def _block(ax: Axes, block: Held, top: float, x: Scale, names: Sequence[str]) -> None:
    """Draw one expression: its title, a bar per rank, and the formula across them."""
    headline(ax, MARGIN, top + HEAD / 2, block.title, 0.55 * WIDE, mono=True)
    for r, bar in enumerate(block.bars[: block.rows]):
        y = top + HEAD + ROW * (r + 0.5)
        if block.alike:
            write(ax, MARGIN, y, "each rank", 9, align="left")
        else:
            chip(ax, 0.6, y, r)
            write(ax, 0.87, y, f"rank {r}", 9, align="left")
        before = 0.0
        for kind, size in bar.items():
            if size > 0:
                part(ax, x(before), x(before + size), y, names.index(kind), nbytes(size))
                before += size
        write(ax, max(x(before), _mark(block, r, x, before)) + 0.16, y, nbytes(before), 8.5, align="left", bold=True)
    if block.formula is not None:
        _formula(ax, block, top, x)


def _mark(block: Held, r: int, x: Scale, end: float) -> float:
    """Return where the formula's mark stands, if the total would lie upon it, else 0."""
    if block.formula is None:
        return 0.0
    mark = x(block.formula[r])
    reach = extent(nbytes(end), 8.5, bold=True) + 0.3
    return mark if x(end) <= mark <= x(end) + reach else 0.0


def part(
    ax: Axes, left: float, right: float, y: float, i: int, said: str, size: float = 7.5, high: float = BAR,
    room: float = 0.14, spare: float = 0.3, inset: float = 0.0,
) -> None:  # fmt: skip
    """Draw the i-th kind's piece of a bar, `high`, with its figure where it has `room` around it and `spare` beyond."""
    ground, hatch, ink = look(i)
    swatch(ax, left, y, right - left, high, i)
    words = extent(said, size)
    if right - left > words + spare:
        if hatch:  # ends beside the figure
            corner = ((left + right - words - room) / 2, y - high / 2 + inset)
            clear = Rectangle(corner, words + room, high - 2 * inset, facecolor=ground, edgecolor="none", zorder=3.5)
            ax.add_artist(clear)
        write(ax, (left + right) / 2, y, said, size, ink)


def swatch(ax: Axes, left: float, y: float, wide: float, high: float, i: int) -> None:
    """Draw a box in the look of the i-th kind."""
    ground, hatch, _ = look(i)
    for face, edge, line, zorder in ((ground, "none", None, 3), ("none", FAINT, 0, 3), ("none", INK, 0.7, 4)):
        if edge != FAINT or hatch:
            box = Rectangle((left, y - high / 2), wide, high, facecolor=face, edgecolor=edge, zorder=zorder)
            ax.add_artist(box)
            box.set(linewidth=line, hatch=hatch if edge == FAINT else None)


def _formula(ax: Axes, block: Held, top: float, x: Scale) -> None:
    """Draw a dashed line where each bar should end, and its figure above."""
    assert block.formula is not None
    first = top + HEAD
    for size, run in groupby(enumerate(block.formula[: block.rows]), key=lambda rank_and_size: rank_and_size[1]):
        ranks = [r for r, _ in run]
        ends = [first + ROW * ranks[0], first + ROW * (ranks[-1] + 1)]
        ax.plot([x(size)] * 2, ends, color=PAGE, linewidth=2.4, zorder=5)  # or it is lost on the end of a bar
        ax.plot([x(size)] * 2, ends, color=INK, linewidth=1.5, linestyle=MARK, zorder=6)
    least, most = min(block.formula), max(block.formula)
    said = nbytes(most) if nbytes(least) == nbytes(most) else f"{nbytes(least)} to {nbytes(most)}"
    words = f"formula: {said}"
    room = extent(words, 8) / 2
    named = MARGIN + min(extent(block.title, TITLE, True, True), 0.55 * WIDE)
    middle = min(max(x(most), named + 0.5 + room), WIDE - MARGIN - room)
    write(ax, middle, top + HEAD - 0.2, words, 8, FAINT)


def _scale(ax: Axes, blocks: Sequence[Held], top: float, bottom: float) -> Scale:
    """Draw the axis, from 0, and return it."""
    ends = [sum(bar.values()) for block in blocks for bar in block.bars]
    ends += [size for block in blocks for size in block.formula or ()]
    marks = ticks(max(ends, default=0.0))
    x = Scale(max(marks[-1], *ends, 0.0), LEFT, WIDE - RIGHT)
    for mark in marks:
        ax.plot([x(mark)] * 2, [top, bottom], color=GRID, linewidth=0.7, zorder=0)
        write(ax, x(mark), bottom + 0.28, nbytes(mark) if mark else "0", 7.5, FAINT)
    write(ax, (x.left + x.right) / 2, bottom + 0.7, "bytes that a rank holds", 8, FAINT)
    return x


def ticks(most: float) -> list[float]:
    """Return round numbers of bytes from 0, three to seven of them; the last one is not beyond `most`.

    >>> ticks(100), [int(t) >> 10 for t in ticks(450 * 1024)]
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0, 100, 200, 300, 400])
    """
    most = most or 1.0
    unit = 1024.0 ** max(0, min(3, math.floor(math.log(most, 1024))))
    power = 10.0 ** math.floor(math.log10(most / unit / 6))
    step = next(s for k in (1, 2, 5, 10) if most / unit / (s := k * power) <= 6 + 1e-9)
    step = step if unit > 1 else max(1.0, step)  # no half bytes
    return [k * step * unit for k in range(math.floor(most / unit / step + 1e-9) + 1)]
