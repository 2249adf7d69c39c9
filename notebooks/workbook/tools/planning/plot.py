"""Draw a plan: what the fullest GPU holds beside its room, where a step's time goes, what each link carries.

Greys and hatches tell the parts apart, as in `labkit.plot.bars`: colours mean ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from labkit.plot.bars import part, swatch
from labkit.plot.sheet import FULL, TITLE, extent, headline, sheet, write
from labkit.plot.svg import EDGE, FAINT, GRID, INK, PAGE, WRONG

WIDE, LEFT, RIGHT = FULL, 0.4, 2.1
BAR, BLOCK, ROW, TOP = 0.62, 2.85, 0.58, 0.3
COLUMNS = (6.4, 11.4, 16.6)  # right ends of the table's columns
MARK = (0, (4, 2.5))


@dataclass(frozen=True)
class Stack:
    """A bar of parts in `unit`, with a mark at `limit`, which says what it is."""

    title: str
    parts: Mapping[str, float]
    unit: str
    limit: float | None = None
    mark: str = ""
    over: bool = False  # beyond the limit is a fault


def draw(stacks: Sequence[Stack], head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Axes:
    """Draw the bars, and below them a table of (name, cells) with its head, y downwards."""
    ax = sheet(WIDE, TOP + BLOCK * len(stacks) + ROW * (len(rows) + 1) + 0.4)
    top = TOP
    for stack in stacks:
        _stack(ax, stack, top)
        top += BLOCK
    y = top + ROW / 2
    for x, words in zip(COLUMNS, head, strict=True):
        write(ax, x, y, words, 8, FAINT, "right")
    for name, cells in rows:
        y += ROW
        ax.plot([LEFT, COLUMNS[-1] + 0.1], [y - ROW / 2] * 2, color=GRID, linewidth=0.7)
        write(ax, LEFT, y, name, 9, INK, "left")
        for x, words in zip(COLUMNS, cells, strict=True):
            write(ax, x, y, words, 9, INK, "right")
    return ax


def _stack(ax: Axes, stack: Stack, top: float) -> None:
    """Draw a title, the bar, its figures, and a legend below."""
    whole = sum(stack.parts.values())
    end = max(whole, stack.limit or 0.0) or 1.0
    headline(ax, LEFT, top + 0.3, stack.title, ink=WRONG if stack.over else INK)
    y = top + 1.15

    def x(size: float) -> float:
        return LEFT + size / end * (WIDE - LEFT - RIGHT)

    before = 0.0
    for i, size in enumerate(stack.parts.values()):
        if size > 0:
            part(ax, x(before), x(before + size), y, i, figure(size), 8, BAR, 0.2, 0.4, 0.03)
            before += size
    said = f"{figure(whole)} {stack.unit}"
    free = x(before)
    if stack.limit is not None and free < x(stack.limit) < free + 0.3 + extent(said, 9, True):
        free = x(stack.limit)  # behind the mark, which would go through the words
    write(ax, free + 0.16, y, said, 9, INK, "left", bold=True)
    if stack.limit is not None:
        at = x(stack.limit)
        ax.plot([at, at], [y - 0.5, y + 0.5], color=PAGE, linewidth=3.2, zorder=5)
        ax.plot([at, at], [y - 0.5, y + 0.5], color=INK, linewidth=1.8, linestyle=MARK, zorder=6)
        room = extent(stack.mark, 8)
        write(ax, min(max(at, LEFT + extent(stack.title, TITLE, True) + 0.4 + room), WIDE - 0.2), top + 0.3, stack.mark,
              8, FAINT, "right")  # fmt: skip
    left = LEFT
    for i, (name, size) in enumerate(stack.parts.items()):
        words = f"{name} {figure(size)}"
        swatch(ax, left, y + 0.85, 0.45, 0.34, i)
        write(ax, left + 0.6, y + 0.85, words, 8.5, INK if size else FAINT, "left")
        left += 0.6 + extent(words, 8.5) + 0.6


def figure(size: float) -> str:
    """Say how large a part is, with two digits or more.

    >>> [figure(s) for s in (0, 0.0224, 8.34, 42.39, 1234.5)]
    ['0', '0.02', '8.3', '42', '1,234']
    """
    return "0" if size < 0.005 else f"{size:,.0f}" if size >= 10 else f"{size:.1f}" if size >= 1 else f"{size:.2f}"


# -- each parallelism by itself on two kinds of link ------------------------------------------------------------------


NAMES, RISE = 6.2, 0.95


def draw_links(rows: Sequence[tuple[str, str, float, float]], limit: float) -> Axes:
    """Draw two marks a row on an axis of seconds in powers of ten, joined by a line, and a dashed line at the limit.

    A row has its name, what is sent in words, and the seconds that it takes over NVLink and over a NIC; the limit is
    the seconds of computing.
    """
    ax = sheet(WIDE, 1.5 + RISE * len(rows) + 1.2)
    times = [t for *_, a, b in rows for t in (a, b)] + [limit]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def x(seconds: float) -> float:
        return NAMES + (math.log10(seconds) - low) / (high - low) * (WIDE - NAMES - RIGHT)

    bottom = 1.3 + RISE * len(rows)
    for power in range(low, high + 1):
        ax.plot([x(10.0**power)] * 2, [1.2, bottom], color=GRID, linewidth=0.7, zorder=0)
        name = f"{10**power:,} s" if power >= 0 else f"{10 ** (power + 3):g} ms"
        write(ax, x(10.0**power), bottom + 0.3, name, 8, FAINT)
    middle = (x(10.0**low) + x(10.0**high)) / 2
    write(ax, middle, bottom + 0.8, "seconds of a training step, in powers of ten", 8, FAINT)
    ax.plot([x(limit)] * 2, [1.0, bottom], color=INK, linewidth=1.5, linestyle=MARK, zorder=1)
    write(ax, x(limit), 0.75, f"computing {limit:.0f} s", 8, INK)
    for i, (name, said, fast, slow) in enumerate(rows):
        y = 1.3 + RISE * (i + 0.5)
        write(ax, LEFT, y - 0.17, name, 9.5, INK, "left", bold=True)
        write(ax, LEFT, y + 0.24, said, 8, FAINT, "left")
        ax.plot([x(fast), x(slow)], [y, y], color=EDGE, linewidth=2, zorder=2)
        ax.plot([x(fast)], [y], "o", color=INK, markersize=7, zorder=3)
        ax.plot([x(slow)], [y], "s", markerfacecolor=PAGE, markeredgecolor=INK, markersize=7, zorder=3)
    left = LEFT
    for marker, words, face in (("o", "over NVLink", INK), ("s", "over a GPU's own NIC", PAGE)):
        ax.plot([left + 0.15], [0.3], marker, markerfacecolor=face, markeredgecolor=INK, markersize=7)
        write(ax, left + 0.5, 0.3, words, 8.5, INK, "left")
        left += 0.5 + extent(words, 8.5) + 0.8
    return ax
