"""Draw rounded tiles that show where a value came from: colours of ranks, stripes for mixtures, gaps for what lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Circle, PathPatch
from matplotlib.path import Path

from labkit.plot.sheet import LEAST, color, extent, on, write
from labkit.plot.svg import FAINT, INK, PAGE, PLAIN, WRONG

TILE, PITCH = 0.9, 1.0  # a tile's side, and from tile to tile
MARGIN = 0.14  # of a tile, beside its words
HEAD = 0.16  # an arrow's

Point = tuple[float, float]


@dataclass(frozen=True)
class Tile:
    """One value: its text, where it came from in short, and how much of it each rank gave.

    `shares` are (rank, how many times); `missing` ranks are drawn as dashed gaps. `kind` is "value", "plain" (of
    unknown origin) or "empty". `badge` marks it ("2×"), `wrong` outlines it.
    """

    text: str
    label: str = ""
    shares: tuple[tuple[int, int], ...] = ()
    missing: tuple[int, ...] = ()
    kind: str = "value"
    badge: str = ""
    wrong: bool = False
    width: float = 1.0


def flat(groups: Iterable[Sequence[Tile]]) -> list[Tile]:
    """Return all tiles of a row."""
    return [tile for group in groups for tile in group]


def needed(tile: Tile) -> float:
    """Return how wide a tile must be, in tiles, for its words to fit in the smallest letters."""
    words = max(extent(tile.text, LEAST, bold=tile.kind != "empty"), extent(tile.label, LEAST))
    return (words + MARGIN + PITCH - TILE) / PITCH


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
        stripes = [(r, True) for r, count in tile.shares for _ in range(count)]
        stripes = sorted(stripes + [(r, False) for r in tile.missing])
        mixed = len(stripes) > 1
        if tile.kind == "empty":
            self.dashed.append(outline)
        elif mixed or tile.wrong:
            self.lines.setdefault(tile.wrong, []).append(outline)
        if not mixed and tile.kind != "empty":
            paint = color(stripes[0][0]) if stripes else PAGE if tile.kind == "plain" else PLAIN
            self.solid.setdefault(paint, []).append(outline)
        for i, (r, there) in enumerate(stripes if mixed else []):
            a, step, last = x + w * i / len(stripes), w / len(stripes), i == len(stripes) - 1
            if there:  # a hair of page between stripes, so that two of one colour are two
                stripe = _box(a, y, step - 0.03 * (not last), TILE, i == 0, last)
                self.fills.setdefault(color(r), []).append(stripe)
            else:
                self.gaps.append(_box(a + 0.03, y + 0.05, step - 0.06, TILE - 0.1, radius=0.05))
        if mixed:
            self.insets.append(_box(x + 0.05, y + 0.19, w - 0.1, TILE - 0.38, radius=0))
        ink = FAINT if tile.kind == "empty" else on(stripes[0][0]) if len(stripes) == 1 else INK
        most, bold = (8, False) if tile.kind == "empty" else (9 if mixed else 10, True)
        up, down = (0.36, 0.62) if tile.text and tile.label else (0.45, 0.45)
        self.text(x + w / 2, y + up, tile.text, fitting(tile.text, w - MARGIN, most, bold), ink, bold=bold)
        self.text(x + w / 2, y + down, tile.label, fitting(tile.label, w - MARGIN, 7.5), ink)
        if tile.badge:
            self.badge(x + w - 0.1, y - 0.02, tile.badge)

    def badge(self, x: float, y: float, text: str) -> None:
        self.ax.add_artist(Circle((x, y), 0.22, facecolor=PAGE, edgecolor=INK, linewidth=1.2, zorder=6))
        self.text(x, y, text, 7, INK, bold=True, zorder=7)

    def arrow(self, begin: Sequence[Point], end: Sequence[Point], paint: str, width: float) -> None:
        """Draw an arrow along the points of `begin`, in a curve over to those of `end`, whose last one is its tip."""
        (ax, ay), (bx, by) = begin[-1], end[0]
        x, y = end[-1]
        up = len(end) > 1  # else it comes from the left
        neck = (x, y + HEAD) if up else (x - HEAD, y)
        bend = (bx - ax) * 0.55
        points = [*begin, (ax + bend, ay), (bx - bend, by), *((*end[:-1], neck) if up else (neck,))]
        codes = [Path.MOVETO, *[Path.LINETO] * (len(begin) - 1), *[Path.CURVE4] * 3, *[Path.LINETO] * (len(end) - 1)]
        look = {"facecolor": "none", "edgecolor": paint, "linewidth": width, "alpha": 0.75, "zorder": 1}
        self.ax.add_artist(PathPatch(Path(points, codes), **look))
        wing = (0.085, 0.0) if up else (0.0, 0.085)
        corners = [(neck[0] - wing[0], neck[1] - wing[1]), (neck[0] + wing[0], neck[1] + wing[1])]
        self.fills.setdefault(paint, []).append(Path([(x, y), *corners, (x, y)], closed=True))

    def text(self, x: float, y: float, text: str, *look: Any, **more: Any) -> None:
        if text:
            write(self.ax, x, y, text, *look, **{"zorder": 5, **more})

    def finish(self) -> None:
        """Put the collected paths on the axes."""
        for paint, paths in self.solid.items():
            self._add(paths, 2, facecolor=paint, edgecolor=INK, linewidth=0.6)
        for paint, paths in self.fills.items():
            self._add(paths, 2, facecolor=paint, edgecolor="none")
        self._add(self.gaps, 2, facecolor=PAGE, edgecolor=INK, linewidth=0.8, linestyle=(0, (2, 1.5)))
        self._add(self.insets, 3, facecolor=PAGE, edgecolor="none")
        self._add(self.dashed, 4, facecolor="none", edgecolor=FAINT, linewidth=0.9, linestyle=(0, (3, 2)))
        for wrong, paths in self.lines.items():
            self._add(paths, 4, facecolor="none", edgecolor=WRONG if wrong else INK, linewidth=2 if wrong else 0.6)

    def _add(self, paths: list[Path], zorder: float, **look: Any) -> None:
        if paths:
            self.ax.add_artist(PathPatch(Path.make_compound_path(*paths), zorder=zorder, **look))


def fitting(text: str, room: float, most: float, bold: bool = False) -> float:
    """Return the size in points at which a text keeps to the room, given in units."""
    share = room / extent(text, most, bold) if text else 1.0
    return max(LEAST, int(2 * most * min(1.0, share)) / 2)


def _box(x: float, y: float, w: float, h: float, left: bool = True, right: bool = True, radius: float = 0.14) -> Path:
    """Return a rectangle whose left and right corners may be round."""
    a, b = (radius if left else 0.0), (radius if right else 0.0)
    vertices = [(x + a, y)]
    codes: list[Any] = [Path.MOVETO]
    ways = ((1, 0), (0, 1), (-1, 0), (0, -1))  # along the top, down, back, up
    corners = ((x + w, y, b), (x + w, y + h, b), (x, y + h, a), (x, y, a))
    for (cx, cy, r), (ux, uy), (vx, vy) in zip(corners, ways, (*ways[1:], ways[0]), strict=True):
        vertices.append((cx - r * ux, cy - r * uy))
        codes.append(Path.LINETO)
        if r:
            vertices += [(cx, cy), (cx + r * vx, cy + r * vy)]
            codes += [Path.CURVE3, Path.CURVE3]
    return Path([*vertices, vertices[0]], [*codes, Path.CLOSEPOLY])
