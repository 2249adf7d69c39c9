"""Draw a wait-for graph: the ranks in a circle, and an arrow from each rank that waits to those it waits for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch

from labkit.plot.sheet import UNIT, circle, color, extent, headline, on, sheet, wrapped, write
from labkit.plot.svg import FAINT, INK, PAGE, WRONG

NODE, BADGE = 0.36, 0.17  # radii
TOP, LINE, MARGIN, ROOM = 2.25, 0.4, 0.5, 4.2  # ROOM is a label's width at most
WAITS, CYCLE = "waits for", "waits for, in a cycle"
SIGNS = {"done": "✓", "failed": "✗", "busy": "…", "waits": ""}


@dataclass(frozen=True)
class Node:
    """A rank: what it does, in words, and `kind`, which is "waits", "done", "failed" or "busy"."""

    words: str
    kind: str = "waits"


@dataclass(frozen=True)
class Graph:
    """`nodes[r]` is rank r; `arrows` are (who waits, for whom); those of `cycles` stand out."""

    title: str
    nodes: Sequence[Node]
    arrows: Sequence[tuple[int, int]]
    cycles: Sequence[tuple[int, int]] = ()
    notes: Sequence[tuple[str, bool]] = ()  # each with whether it tells a cycle

    @property
    def radius(self) -> float:
        """The distance from the circle's middle to a rank's."""
        n = len(self.nodes)
        return 0.0 if n == 1 else 1.5 if n == 2 else 1.15 + 0.17 * n

    @property
    def labels(self) -> list[list[str]]:
        """The words beside each rank, in lines."""
        return [wrapped(node.words, ROOM, 8) for node in self.nodes]

    @property
    def middle(self) -> tuple[float, float]:
        """The circle's middle: labels stand outside on both sides, the first rank's under the legend."""
        wide = max((extent(line, 8) for lines in self.labels for line in lines), default=0.0)
        tall = self.radius if len(self.nodes) > 2 else 0.0  # two ranks stand side by side
        return max(MARGIN + wide + 0.6 + self.radius, 4.5), TOP + LINE * (len(self.labels[0]) - 1) + tall


def draw(graph: Graph) -> Axes:
    """Draw the ranks in a circle, their arrows, and the notes below."""
    at = circle(len(graph.nodes), graph.radius, *graph.middle)
    bottom = max(y for _, y in at) + NODE + LINE * max(len(lines) for lines in graph.labels) + 0.75
    wide = 2 * graph.middle[0]
    room = wide - 2 * MARGIN
    notes = [(line, cycle) for note, cycle in graph.notes for line in wrapped(note, room, 8.5, cycle)]
    ax = sheet(wide, bottom + LINE * len(notes) + 0.2)
    headline(ax, MARGIN, 0.5, graph.title)
    _legend(ax, graph)
    for s, d in graph.arrows:
        _arrow(ax, at[s], at[d], (s, d) in graph.cycles, (d, s) in graph.arrows)
    for r, node in enumerate(graph.nodes):
        _node(ax, r, node, at[r])
        _label(ax, graph, r, at[r])
    for i, (line, cycle) in enumerate(notes):
        write(ax, MARGIN, bottom + LINE * i, line, 8.5, WRONG if cycle else INK, "left", bold=cycle)
    return ax


def _arrow(ax: Axes, a: tuple[float, float], b: tuple[float, float], cycle: bool, both: bool) -> None:
    path = FancyArrowPatch(
        a, b, connectionstyle=f"arc3,rad={0.18 if both else 0}", arrowstyle="-|>", mutation_scale=15 if cycle else 11,
        shrinkA=NODE * UNIT + 2, shrinkB=NODE * UNIT + 3, color=WRONG if cycle else INK, zorder=3 if cycle else 2,
        linewidth=2.6 if cycle else 1.2, linestyle="-" if cycle else (0, (4, 3)),
    )  # fmt: skip
    ax.add_artist(path)


def _node(ax: Axes, r: int, node: Node, at: tuple[float, float]) -> None:
    """Draw a rank; one that does not wait has a dashed edge and a sign."""
    circle = Circle(at, NODE, facecolor=color(r), edgecolor=INK, linewidth=1.4, zorder=4)
    circle.set_linestyle("-" if node.kind == "waits" else (0, (3, 2)))
    ax.add_artist(circle)
    write(ax, *at, str(r), 11, on(r), bold=True)
    if sign := SIGNS[node.kind]:
        x, y = at[0] + 0.75 * NODE, at[1] + 0.75 * NODE
        ink = WRONG if node.kind == "failed" else INK
        ax.add_artist(Circle((x, y), BADGE, facecolor=PAGE, edgecolor=ink, linewidth=1, zorder=6))
        write(ax, x, y, sign, 7.5, ink, bold=True)


def _label(ax: Axes, graph: Graph, r: int, at: tuple[float, float]) -> None:
    """Write a rank's words outside of the circle, where no arrow runs."""
    lines = graph.labels[r]
    off = at[0] - graph.middle[0]
    if abs(off) < 0.1:  # at the top, or at the bottom
        above = len(graph.nodes) > 1 and at[1] < graph.middle[1]
        first = at[1] - NODE - 0.3 - LINE * (len(lines) - 1) if above else at[1] + NODE + 0.35
        x, align = at[0], "center"
    else:
        first = at[1] - LINE * (len(lines) - 1) / 2
        x, align = at[0] + math.copysign(NODE + 0.2, off), "left" if off > 0 else "right"
    for i, line in enumerate(lines):
        write(ax, x, first + LINE * i, line, 8, INK, align, halo=True)  # type: ignore[arg-type]


def _legend(ax: Axes, graph: Graph) -> None:
    x = MARGIN
    for words, shown, cycle in ((WAITS, set(graph.arrows) - set(graph.cycles), False), (CYCLE, graph.cycles, True)):
        if shown:
            _arrow(ax, (x - NODE, 1.05), (x + 0.8 + NODE, 1.05), cycle, False)
            write(ax, x + 0.95, 1.05, words, 8, FAINT, "left")
            x += 0.95 + extent(words, 8) + 0.6
