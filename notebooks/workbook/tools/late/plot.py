"""Draw who waits for a late rank and who goes on: a row per call, a column per rank, in words, greys and patterns."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.plot.sheet import chip, extent, headline, sheet, shortened, write
from labkit.plot.svg import EDGE, FAINT, INK, PAGE, PLAIN

COLUMN, ROW, TOP, MARGIN = 2.1, 0.72, 1.75, 0.5
LONGEST = 9.0  # units of code
HATCH = "#8a8a84"
LOOKS = {  # state → ground of the box, its edge, pattern, words; no colours, for these mean ranks
    "waits": (PAGE, HATCH, "////", "waits"),
    "goes on": (PAGE, EDGE, "", "goes on →"),
    "late": (PLAIN, INK, "", "comes late"),
}

Rows = Sequence[tuple[str, Sequence[str]]]


def draw(rows: Rows, n: int, late: int) -> Axes:
    """Draw the calls of n ranks, and who waits in each for the late one."""
    left = MARGIN + 0.4 + min(LONGEST, max((extent(call, 8, mono=True) for call, _ in rows), default=0))
    ax = sheet(max(left + COLUMN * n + MARGIN, 12.5), TOP + ROW * len(rows) + 0.4)
    headline(ax, MARGIN, 0.6, f"Who waits for rank {late}, which comes late to each call?")
    for r in range(n if rows else 0):
        x = left + COLUMN * (r + 0.5)
        chip(ax, x - 0.55, TOP - 0.42, r)
        write(ax, x - 0.28, TOP - 0.42, f"rank {r}", 9, align="left")
    for i, (call, states) in enumerate(rows):
        y = TOP + ROW * i
        write(ax, MARGIN, y + ROW / 2, shortened(call, LONGEST, 8, mono=True), 8, align="left", mono=True)
        for r, state in enumerate(states):
            _box(ax, left + COLUMN * r, y, state)
    return ax


def _box(ax: Axes, x: float, y: float, state: str) -> None:
    if not state:
        write(ax, x + COLUMN / 2, y + ROW / 2, "–", 8, FAINT)
        return
    ground, edge, hatch, words = LOOKS[state]
    corner, size = (x + 0.06, y + 0.06), (COLUMN - 0.12, ROW - 0.12)
    look = {"facecolor": ground, "edgecolor": edge, "linewidth": 0.8, "hatch": hatch}
    ax.add_artist(Rectangle(corner, *size, **look))  # type: ignore[arg-type]
    label = write(ax, x + COLUMN / 2, y + ROW / 2, words, 8, INK)
    if hatch:
        label.set_bbox({"boxstyle": "round,pad=0.2", "facecolor": ground, "edgecolor": "none"})
