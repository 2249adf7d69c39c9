"""Ranks in a row on their hosts, and the messages of a step as arcs: those that leave a host stand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from labkit.plot.sheet import FULL, TITLE, color, extent, headline, on, sheet, write
from labkit.plot.svg import EDGE, FAINT, INK

STRIDE, GAP, PAD = 0.85, 0.9, 0.3  # from rank to rank, between hosts, around the ranks of a host
HEAD, FOOT, LEFT, APART = 0.9, 0.85, 0.4, 0.7
ROOM = FULL * 8 / 7.5  # units that panels side by side may take: the smallest letters have 8 points
BEND = 0.42  # how high an arc is for its length


@dataclass(frozen=True)
class Panel:
    """Messages that go at once, (src, dst), with a title above and what they put on a link below."""

    title: str
    messages: Sequence[tuple[int, int]]
    said: str


@dataclass(frozen=True)
class Picture:
    """The host of each rank, and the panels."""

    title: str
    home: Sequence[int]
    panels: Sequence[Panel]


def draw(picture: Picture) -> Axes:
    """Draw the panels side by side below the title, as many in a row as fit."""
    across, rows = _grid(picture)
    wide = 2 * LEFT + across * (_wide(picture) + APART) - APART
    ax = sheet(max(wide, 2 * LEFT + extent(picture.title, TITLE, bold=True)), 0.8 + rows * _tall(picture))
    headline(ax, LEFT, 0.45, picture.title)
    for i, panel in enumerate(picture.panels):
        left = LEFT + (i % across) * (_wide(picture) + APART)
        _panel(ax, picture, panel, left, 0.8 + (i // across) * _tall(picture))
    return ax


def _panel(ax: Axes, picture: Picture, panel: Panel, left: float, top: float) -> None:
    write(ax, left, top + 0.35, panel.title, 8, FAINT, "left")
    middle = top + HEAD + _reach(picture)
    places = [(left + PAD + STRIDE / 2 + r * STRIDE + GAP * h, middle) for r, h in enumerate(picture.home)]
    for host in range(max(picture.home) + 1):
        mine = [places[r][0] for r, h in enumerate(picture.home) if h == host]
        corner = (mine[0] - STRIDE / 2 - PAD / 2, middle - 0.42)
        box = FancyBboxPatch(corner, mine[-1] - mine[0] + STRIDE + PAD, 0.84, boxstyle="round,pad=0,rounding_size=0.15")
        box.set(facecolor="none", edgecolor=EDGE, linewidth=1.2, zorder=1)
        ax.add_artist(box)
    for src, dst in panel.messages:
        leaves = picture.home[src] != picture.home[dst]
        up = -0.27 if src < dst else 0.27
        (a, y), (b, _) = places[src], places[dst]
        ax.add_artist(
            FancyArrowPatch(
                (a, y + up), (b, y + up), connectionstyle=f"arc3,rad={-BEND}",
                arrowstyle="-|>", mutation_scale=9 if leaves else 7, shrinkA=0, shrinkB=0,
                color=INK if leaves else FAINT, linewidth=2.2 if leaves else 0.9, zorder=3 if leaves else 2,
            )
        )  # fmt: skip
    for r, (x, y) in enumerate(places):
        ax.add_artist(Circle((x, y), 0.27, facecolor=color(r), edgecolor=INK, linewidth=0.6, zorder=5))
        write(ax, x, y, str(r), 9, on(r), bold=True)
    write(ax, left, middle + _reach(picture) + 0.4, panel.said, 8.5, INK, "left", bold=True)


def _reach(picture: Picture) -> float:
    """Return how far the highest arc goes up from the middle of the ranks."""
    longest = max((abs(s - d) for p in picture.panels for s, d in p.messages), default=1)
    crosses = GAP * max(picture.home)
    return 0.35 + BEND / 2 * (longest * STRIDE + crosses)


def _wide(picture: Picture) -> float:
    ranks = 2 * PAD + len(picture.home) * STRIDE + GAP * max(picture.home)
    return max([ranks, *(extent(p.said, 8.5, bold=True) for p in picture.panels)])


def _tall(picture: Picture) -> float:
    return HEAD + 2 * _reach(picture) + FOOT


def _grid(picture: Picture) -> tuple[int, int]:
    """Panels beside one another, and rows of them."""
    across = max(1, min(len(picture.panels), int((ROOM - 2 * LEFT + APART) / (_wide(picture) + APART))))
    return across, -(-len(picture.panels) // across)
