"""A row a call, a column a rank: who waits for a late rank and who goes on, in words, colours and patterns."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

from labkit.plot.svg import CARD, FAINT, INK, card
from labkit.plot.tiles import color

COLUMN, ROW, TOP, MARGIN = 2.1, 0.72, 1.75, 0.5
LETTER = 0.142  # the width of a letter of code
LONGEST = 60
LOOKS = {  # state → colour of the box (Okabe and Ito's, light), pattern, words
    "waits": ("#f3c489", "////", "waits"),
    "goes on": ("#b9dff5", "", "goes on →"),
    "late": ("#d9d9d4", "", "comes late"),
}

Rows = Sequence[tuple[str, Sequence[str]]]


def axes(rows: Rows, n: int) -> Axes:
    """Axes that are large enough."""
    return card(_left(rows) + COLUMN * n + MARGIN, TOP + ROW * len(rows) + 0.4)


def draw(ax: Axes, rows: Rows, late: int) -> Axes:
    """Draw on axes as `axes` makes them."""
    left = _left(rows)
    n = len(rows[0][1]) if rows else 0
    _text(ax, MARGIN, 0.6, f"Who waits for rank {late}, which comes late to each call?", 10, INK, "left")
    for r in range(n):
        x = left + COLUMN * (r + 0.5)
        ax.add_patch(Circle((x - 0.55, TOP - 0.42), 0.15, facecolor=color(r), edgecolor=INK, linewidth=0.5))
        _text(ax, x - 0.28, TOP - 0.42, f"rank {r}", 9, INK, "left")
    for i, (call, states) in enumerate(rows):
        y = TOP + ROW * i
        short = call if len(call) <= LONGEST else call[: LONGEST - 1] + "…"
        _text(ax, MARGIN, y + ROW / 2, short, 8, INK, "left", family="monospace")
        for r, state in enumerate(states):
            _box(ax, left + COLUMN * r, y, state)
    return ax


def _box(ax: Axes, x: float, y: float, state: str) -> None:
    if not state:
        _text(ax, x + COLUMN / 2, y + ROW / 2, "–", 8, FAINT)
        return
    paint, hatch, words = LOOKS[state]
    corner, size = (x + 0.06, y + 0.06), (COLUMN - 0.12, ROW - 0.12)
    ax.add_patch(Rectangle(corner, *size, facecolor=paint, edgecolor="none"))
    if hatch:
        ax.add_patch(Rectangle(corner, *size, facecolor="none", edgecolor="#9c5a00", linewidth=0.6, hatch=hatch))
    box = {"boxstyle": "round,pad=0.12", "facecolor": CARD, "edgecolor": "none"} if hatch else None
    _text(ax, x + COLUMN / 2, y + ROW / 2, words, 8, INK, bbox=box)


def _left(rows: Rows) -> float:
    return MARGIN + 0.4 + LETTER * min(LONGEST, max((len(call) for call, _ in rows), default=0))


def _text(
    ax: Axes, x: float, y: float, text: str, points: float, ink: str = INK, align: str = "center", **look: object
) -> None:
    ax.text(x, y, text, size=points, color=ink, ha=align, va="center_baseline", zorder=8, parse_math=False, **look)  # type: ignore[arg-type]
