"""Rounded tiles that show where a value came from: the colours of ranks, stripes for mixtures, gaps for what lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Circle, PathPatch
from matplotlib.path import Path

from labkit.plot.svg import FAINT, INK, UNIT

# Okabe and Ito's colours, neighbours far apart; beyond 8 ranks they come again, and the labels tell.
RANKS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999")
DARK = {"#0072B2"}  # needs light ink
LINES = {"#F0E442": "#b3a800"}  # yellow lines vanish on a light card
OWN, WRONG, KNOT = "#e2e2dc", "#9c2a00", "#8a8a84"
TILE, PITCH = 0.9, 1.0  # a tile's side, and from tile to tile


@dataclass(frozen=True)
class Tile:
    """One value: its text, where it came from in short, and how much of it each rank gave.

    `shares` are (rank, how often); `missing` ranks are drawn as dashed gaps. `kind` is "value", "plain" (nobody
    knows its origin) or "empty". `badge` marks it ("2×"), `wrong` outlines it.
    """

    text: str
    label: str = ""
    shares: tuple[tuple[int, int], ...] = ()
    missing: tuple[int, ...] = ()
    kind: str = "value"
    badge: str = ""
    wrong: bool = False
    width: float = 1.0


def color(rank: int) -> str:
    """A rank's colour."""
    return RANKS[rank % len(RANKS)]


class Pen:
    """Collects what is painted, one path a colour, so that the SVG stays small."""

    def __init__(self, ax: Axes) -> None:
        self.ax = ax
        self.fills: dict[str, list[Path]] = {}
        self.insets: list[Path] = []
        self.dashed: list[Path] = []
        self.gaps: list[Path] = []
        self.solid: dict[str, list[Path]] = {}
        self.lines: dict[bool, list[Path]] = {}

    def tile(self, x: float, y: float, tile: Tile) -> None:
        w = TILE + (tile.width - 1) * PITCH
        outline = _box(x, y, w, TILE)
        if tile.kind == "empty":
            self.dashed.append(outline)
            self.text(x + w / 2, y + (0.36 if tile.label else 0.45), tile.text, _fitting(tile.text, w - 0.14, 8), FAINT)
            self.text(x + w / 2, y + 0.62, tile.label, _fitting(tile.label, w - 0.14, 6), FAINT)
            return
        stripes = [(r, True) for r, count in tile.shares for _ in range(count)]
        stripes = sorted(stripes + [(r, False) for r in tile.missing])
        mixed = len(stripes) > 1
        if mixed or tile.wrong:
            self.lines.setdefault(tile.wrong, []).append(outline)
        if not mixed:
            paint = color(stripes[0][0]) if stripes else "#ffffff" if tile.kind == "plain" else OWN
            self.solid.setdefault(paint, []).append(outline)
        for i, (r, there) in enumerate(stripes if mixed else []):
            a, step, last = x + w * i / len(stripes), w / len(stripes), i == len(stripes) - 1
            if there:  # a hair of card between stripes, so that two of one colour are two
                stripe = _box(a, y, step - 0.03 * (not last), TILE, i == 0, last)
                self.fills.setdefault(color(r), []).append(stripe)
            else:
                self.gaps.append(_box(a + 0.03, y + 0.05, step - 0.06, TILE - 0.1, radius=0.05))
        if mixed:
            self.insets.append(_box(x + 0.05, y + 0.19, w - 0.1, TILE - 0.38, radius=0))
        ink = "#ffffff" if not mixed and stripes and color(stripes[0][0]) in DARK else INK
        room = w - 0.14
        value = y + (0.36 if tile.label else 0.45)
        self.text(x + w / 2, value, tile.text, _fitting(tile.text, room, 10 if not mixed else 9, 0.7), ink, bold=True)
        if tile.label:
            self.text(x + w / 2, y + (0.6 if tile.text else 0.45), tile.label, _fitting(tile.label, room, 7), ink)
        if tile.badge:
            self.badge(x + w - 0.06, y + 0.06, tile.badge)

    def badge(self, x: float, y: float, text: str) -> None:
        self.ax.add_patch(Circle((x, y), 0.2, facecolor=INK, edgecolor="#ffffff", linewidth=0.8, zorder=6))
        self.text(x, y, text, 6.5, "#ffffff", bold=True, zorder=7)

    def chip(self, x: float, y: float, rank: int) -> None:
        self.ax.add_patch(Circle((x, y), 0.15, facecolor=color(rank), edgecolor=INK, linewidth=0.5, zorder=3))

    def knot(self, at: tuple[float, float]) -> None:
        self.ax.add_patch(Circle(at, 0.1, facecolor=KNOT, edgecolor="none", zorder=2))

    def curve(
        self, a: tuple[float, float], b: tuple[float, float], paint: str, width: float, head: bool = True
    ) -> None:
        tip = 0.16 if head else 0.0
        bend = (b[0] - a[0]) * 0.55
        path = Path(
            [a, (a[0] + bend, a[1]), (b[0] - bend, b[1]), (b[0] - tip, b[1])],
            [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4],
        )
        self.ax.add_patch(PathPatch(path, facecolor="none", edgecolor=paint, linewidth=width, alpha=0.75, zorder=1))
        if head:
            self.fills.setdefault(paint, []).append(
                Path([(b[0], b[1]), (b[0] - tip, b[1] - 0.085), (b[0] - tip, b[1] + 0.085), b], closed=True)
            )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        points: float,
        ink: str,
        align: str = "center",
        bold: bool = False,
        mono: bool = False,
        zorder: float = 5,
    ) -> None:
        if not text:
            return
        self.ax.text(
            x,
            y,
            text,
            size=points,
            color=ink,
            ha=align,
            va="center_baseline",
            weight="bold" if bold else "normal",
            family="monospace" if mono else "sans-serif",
            zorder=zorder,
            parse_math=False,
        )

    def finish(self) -> None:
        """Put the collected paths on the axes."""
        for paint, paths in self.solid.items():
            self._add(paths, 2, facecolor=paint, edgecolor=INK, linewidth=0.6)
        for paint, paths in self.fills.items():
            self._add(paths, 2, facecolor=paint, edgecolor="none")
        self._add(self.gaps, 2, facecolor="#ffffff", edgecolor=INK, linewidth=0.8, linestyle=(0, (2, 1.5)))
        self._add(self.insets, 3, facecolor="#ffffff", edgecolor="none", alpha=0.95)
        self._add(self.dashed, 4, facecolor="none", edgecolor=FAINT, linewidth=0.9, linestyle=(0, (3, 2)))
        for wrong, paths in self.lines.items():
            self._add(paths, 4, facecolor="none", edgecolor=WRONG if wrong else INK, linewidth=2 if wrong else 0.6)

    def _add(self, paths: list[Path], zorder: float, **look: Any) -> None:
        if paths:
            self.ax.add_patch(PathPatch(Path.make_compound_path(*paths), zorder=zorder, **look))


def _fitting(text: str, room: float, most: float, wide: float = 0.54) -> float:
    """The size in points at which a text keeps to the room, given in units; `wide` is a letter's width."""
    return round(min(most, room * UNIT / (wide * max(1, len(text)))) * 2) / 2


def _box(x: float, y: float, w: float, h: float, left: bool = True, right: bool = True, radius: float = 0.14) -> Path:
    """A rectangle whose left and right corners may be round."""
    a, b = (radius if left else 0.0), (radius if right else 0.0)
    vertices = [(x + a, y), (x + w - b, y)]
    codes: list[Any] = [Path.MOVETO, Path.LINETO]

    def corner(tip: tuple[float, float], end: tuple[float, float], round_: float) -> None:
        if round_:
            vertices.extend((tip, end))
            codes.extend((Path.CURVE3, Path.CURVE3))

    corner((x + w, y), (x + w, y + b), b)
    vertices.append((x + w, y + h - b))
    codes.append(Path.LINETO)
    corner((x + w, y + h), (x + w - b, y + h), b)
    vertices.append((x + a, y + h))
    codes.append(Path.LINETO)
    corner((x, y + h), (x, y + h - a), a)
    vertices.append((x, y + a))
    codes.append(Path.LINETO)
    corner((x, y), (x + a, y), a)
    vertices.append((x + a, y))
    codes.append(Path.CLOSEPOLY)
    return Path(vertices, codes)
