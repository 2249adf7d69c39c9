"""Draw a round of messages: the ranks side by side, each with its buffers' chunks, and an arrow for each message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from labkit.plot.sheet import chip, extent, headline, sheet, shortened, stroke
from labkit.plot.svg import FAINT, INK, PAGE, WRONG
from labkit.plot.tiles import PITCH, TILE, Pen, Point, Tile

WIDTH = 2.2  # of a tile, in tiles
WIDE = TILE + (WIDTH - 1) * PITCH
GUTTER = 1.25  # between two ranks
LEFT, RIGHT = 2.1, 1.0
NAME = 0.4  # where a buffer's name begins
HEAD, SLOT, LANE, FOOT = 1.5, 0.34, 0.34, 0.35
APART = 0.5  # between two pictures


@dataclass(frozen=True)
class Arrow:
    """A message from a place to a place, both (rank, slot, first chunk, how many chunks), with words beside it.

    An odd one is dashed.
    """

    src: tuple[int, int, int, int]
    dst: tuple[int, int, int, int]
    text: str = ""
    odd: bool = False

    @property
    def next_door(self) -> bool:
        """Whether it goes to a neighbour in the picture, and need not go around other ranks."""
        return abs(self.src[0] - self.dst[0]) == 1


@dataclass(frozen=True)
class Slot:
    """A buffer that ranks have under the same name: `tiles[r]` are its chunks on rank r, none where it has none."""

    name: str
    tiles: Sequence[Sequence[Tile]]

    @property
    def length(self) -> int:
        """The number of chunks that it has at most."""
        return max((len(tiles) for tiles in self.tiles), default=0)


@dataclass(frozen=True)
class Picture:
    """A round: what the buffers hold as it begins, and its messages."""

    title: str
    slots: Sequence[Slot]
    arrows: Sequence[Arrow]

    @property
    def ranks(self) -> int:
        """The number of columns."""
        return max((len(slot.tiles) for slot in self.slots), default=0)


def lanes(picture: Picture) -> int:
    """Count the arrows that go around ranks, each in a lane of its own."""
    return sum(not a.next_door for a in picture.arrows)


def margin(pictures: Sequence[Picture]) -> float:
    """Return how far from the edge rank 0 stands: more than LEFT where an arrow around to it would cross a name."""
    found = [LEFT]
    for picture in pictures:
        for lane, arrow in enumerate(a for a in picture.arrows if not a.next_door):
            passed = [extent(_name(s), 8, mono=True) for s in picture.slots[arrow.dst[1] :]] if not arrow.dst[0] else []
            if passed and NAME + max(passed) > LEFT - _out(lane):
                found.append(NAME + max(passed) + _out(lane) + 0.1)
    return max(found)


def draw(pictures: Sequence[Picture], across: int = 1, room: int = 0, left: float = 0.0) -> Axes:
    """Draw pictures, `across` beside one another, each with at least `room` lanes and a `left` margin.

    A row of them is as high as its highest one.
    """
    inner = max(left, margin(pictures))
    width = inner + max(p.ranks for p in pictures) * (WIDE + GUTTER) - GUTTER + RIGHT
    under = LANE * max(room, *map(lanes, pictures))
    high = [HEAD + sum(SLOT + slot.length * PITCH for slot in p.slots) + under + FOOT for p in pictures]
    heights = [max(high[i : i + across]) for i in range(0, len(high), across)]
    ax = sheet(min(across, len(pictures)) * (width + APART) - APART, sum(heights))
    pen = Pen(ax)
    for i, picture in enumerate(pictures):
        row, column = divmod(i, across)
        _draw(ax, pen, picture, column * (width + APART), sum(heights[:row]), inner)
    pen.finish()
    return ax


def _name(slot: Slot) -> str:
    return shortened(slot.name, LEFT - 0.5, 8, mono=True)


def _out(lane: int) -> float:
    """Return how far beside a rank an arrow that goes around turns."""
    return 0.3 + 0.12 * (lane % 5)


def _draw(ax: Axes, pen: Pen, picture: Picture, edge: float, top: float, inner: float) -> None:
    left = edge + inner  # of rank 0
    headline(pen.ax, edge + NAME, top + 0.45, picture.title)
    for r in range(picture.ranks):
        x = left + r * (WIDE + GUTTER)
        chip(ax, x + WIDE / 2 - 0.62, top + 1.05, r)
        pen.text(x + WIDE / 2 + 0.15, top + 1.05, f"rank {r}", 9, INK)
    places: dict[tuple[int, int, int], tuple[float, float]] = {}  # the left edge's middle
    y = top + HEAD
    for s, slot in enumerate(picture.slots):
        pen.text(edge + NAME, y + 0.5, _name(slot), 8, FAINT, "left", mono=True)
        for r, tiles in enumerate(slot.tiles):
            for i, tile in enumerate(tiles):
                x = left + r * (WIDE + GUTTER)
                pen.tile(x, y + i * PITCH, tile)
                places[r, s, i] = (x, y + i * PITCH + TILE / 2)
        y += SLOT + slot.length * PITCH
    lane = 0
    for arrow in picture.arrows:
        if arrow.src[:3] not in places or arrow.dst[:3] not in places:
            continue
        x, first = places[arrow.src[:3]]
        # What is sent is outlined as one piece, however many chunks it has.
        high = TILE + (arrow.src[3] - 1) * PITCH
        box = FancyBboxPatch((x, first - TILE / 2), WIDE, high, boxstyle="round,pad=0,rounding_size=0.14")
        box.set(facecolor="none", edgecolor=INK, linewidth=2.2, zorder=4.5)
        ax.add_artist(box)
        src, dst = (
            (places[end[:3]][0], places[end[:3]][1] + (end[3] - 1) * PITCH / 2) for end in (arrow.src, arrow.dst)
        )
        if arrow.next_door:
            path, at = _straight(src, dst)
        else:
            path, at = _around(src, dst, y - 0.1 + lane * LANE, _out(lane))
            lane += 1
        _arrow(ax, path, arrow)
        pen.text(*at, arrow.text, 7, WRONG if arrow.odd else INK, halo=True, bold=arrow.odd, zorder=8)


def _straight(src: Point, dst: Point) -> tuple[Path, Point]:
    """Return the path to a neighbour, and the place of its words."""
    (a, ya), (b, yb) = src, dst
    right = a < b
    shift = -0.12 if right else 0.12  # two that exchange pass each other
    start = (a + WIDE if right else a, ya + shift)
    end = (b if right else b + WIDE, yb + shift)
    bend = (end[0] - start[0]) * 0.5
    curve = [start, (start[0] + bend, start[1]), (end[0] - bend, end[1]), end]
    middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 - (0.2 if right else -0.24)
    return Path(curve, [Path.MOVETO, *[Path.CURVE4] * 3]), middle


def _around(src: Point, dst: Point, y: float, out: float) -> tuple[Path, Point]:
    """Return a path out at the right, under the ranks between, and in at the left, and the place of its words."""
    (a, ya), (b, yb) = src, dst
    corners = [(a + WIDE, ya), (a + WIDE + out, ya), (a + WIDE + out, y), (b - out, y), (b - out, yb), (b, yb)]
    return _rounded(corners), ((a + b + WIDE) / 2, y - 0.14)


def _rounded(corners: Sequence[Point], radius: float = 0.15) -> Path:
    def near(corner: Point, other: Point) -> Point:
        dx, dy = other[0] - corner[0], other[1] - corner[1]
        length = max(abs(dx) + abs(dy), 1e-9)
        part = min(radius, length / 2) / length
        return corner[0] + dx * part, corner[1] + dy * part

    vertices, codes = [corners[0]], [Path.MOVETO]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        vertices += [near(corner, before), corner, near(corner, after)]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([*vertices, corners[-1]], [*codes, Path.LINETO])


def _arrow(ax: Axes, path: Path, arrow: Arrow) -> None:
    look: dict[str, Any] = {"mutation_scale": 11, "shrinkA": 0, "shrinkB": 0}
    look["linestyle"] = (0, (2.5, 1.5)) if arrow.odd else "-"
    for head, width, ink, order in (("-", 3.4, PAGE, 1.0), ("-|>", 1.9, stroke(arrow.src[0]), 6.0)):
        patch = FancyArrowPatch(path=path, arrowstyle=head, linewidth=width, color=ink, zorder=order, **look)
        ax.add_artist(patch)
