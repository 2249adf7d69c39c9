"""Draw how much each rank sent to which: a matrix of figures, and arrows in a circle beside the textbook's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from labkit.plot.sheet import FULL, chip, circle, color, headline, on, sheet, stroke, wrapped, write
from labkit.plot.svg import EDGE, FAINT, INK, PAGE
from labkit.theory.traffic import SLIGHT

WIDTH, HEIGHT = 1.15, 0.62  # of a matrix's cell
LEFT, TOP, LINE, GAP = 1.85, 1.9, 0.45, 0.7
SHADE = "#8a8a84"  # grey: colours mean ranks
LABELLED = 12  # arrows that carry their figure; of more, the matrix tells
LEAST, FINE, MOST = 0.8, 1.6, 4.5  # an arrow's width in points: the least, and the most where there are many or few


@dataclass(frozen=True)
class Drawing:
    """Figures in `unit`: `panels` are (title, matrix), `columns` (title, a figure for each rank)."""

    n: int
    unit: str
    panels: list[tuple[str, list[list[float]]]]
    columns: list[tuple[str, list[float]]]
    notes: list[str]

    @property
    def largest(self) -> float:
        """The largest figure from one rank to another."""
        return max((v for _, m in self.panels for row in m for v in row), default=0.0)


def counts(value: float, largest: float) -> bool:
    """Tell whether a figure is data: less than 2 % of the largest is headers."""
    return value > SLIGHT * largest


def amount(value: float, drawing: Drawing) -> str:
    """Write a figure; headers and nothing are a dot."""
    largest, whole = drawing.largest, drawing.unit == "bytes"
    if not counts(value, largest):
        return "·"
    return f"{value:.0f}" if value >= 100 or (whole and value == int(value)) else f"{value:.1f}"


def _radius(n: int) -> float:
    return 1.25 + 0.13 * n


def draw(drawing: Drawing) -> Axes:
    """Draw the matrix and its columns, a circle of ranks for each panel beside or below it, and the notes below."""
    n, panels = drawing.n, len(drawing.panels)
    radius = _radius(n)
    height = radius if n > 2 else 0.7  # from a circle's middle to its top: two ranks stand side by side
    table = LEFT + WIDTH * (n if panels else 0) + 1.45 * len(drawing.columns)
    circles, high = panels * (2 * radius + 1.6), 2.5 + 2 * height if panels else 0.0
    beside = table + GAP + circles <= FULL
    left, top = (table + GAP, 0.0) if beside else (0.0, TOP + HEIGHT * n + 0.3)
    wide = max(table + (GAP + circles if beside else 0.4), circles, 12.0)
    tall = max(TOP + HEIGHT * n, top + high)
    notes = [line for note in drawing.notes for line in wrapped(note, wide - 0.8, 8)]
    ax = sheet(wide, tall + 0.3 + LINE * len(notes) + 0.2)
    _numbers(ax, drawing)
    x = left + radius + 0.8
    for name, matrix in drawing.panels:
        headline(ax, x, top + 0.55, name, align="center")
        _arrows(ax, (x, top + 1.45 + height), matrix, drawing)
        x += 2 * radius + 1.6
    for i, line in enumerate(notes):
        write(ax, 0.4, tall + 0.3 + LINE * i, line, 8, FAINT, "left")
    return ax


def _numbers(ax: Axes, drawing: Drawing) -> None:
    """Write the first panel's matrix as figures, then what each rank sends altogether."""
    name, matrix = drawing.panels[0] if drawing.panels else ("", [])
    end = LEFT + WIDTH * len(matrix)
    if matrix:
        headline(ax, 0.4, 0.55, f"{name}: {drawing.unit} from row to column")
    for r in range(drawing.n):
        y = TOP + HEIGHT * (r + 0.5)
        chip(ax, 0.55, y, r)
        write(ax, 0.8, y, f"rank {r}", 8, INK, "left")
        if matrix:
            chip(ax, LEFT + WIDTH * (r + 0.5) - 0.16, TOP - 0.35, r)
            write(ax, LEFT + WIDTH * (r + 0.5) + 0.06, TOP - 0.35, str(r), 8, INK, "left")
        for c, value in enumerate(matrix[r] if matrix else []):
            share = 0.5 * value / drawing.largest if counts(value, drawing.largest) else 0.0
            at = (LEFT + WIDTH * c, TOP + HEIGHT * r)
            if share:
                ax.add_artist(Rectangle(at, WIDTH, HEIGHT, facecolor=SHADE, alpha=share, edgecolor="none"))
            ax.add_artist(Rectangle(at, WIDTH, HEIGHT, facecolor="none", edgecolor=EDGE, linewidth=0.6))
            write(ax, at[0] + WIDTH / 2, y, amount(value, drawing), 8, INK if share else FAINT)
        for i, (name, column) in enumerate(drawing.columns):
            x = end + 1.45 * (i + 1) - 0.1
            if r == 0:
                write(ax, x, TOP - 0.35, name, 8, FAINT if i else INK, "right", bold=not i)
            written = amount(column[r], drawing)
            write(ax, x, y, written, 8, FAINT if i else INK, "right", bold=not i)


def _arrows(ax: Axes, middle: tuple[float, float], matrix: Sequence[Sequence[float]], drawing: Drawing) -> None:
    """Draw the ranks in a circle, and an arrow for what each sends to each other one."""
    n, largest = drawing.n, drawing.largest
    at = circle(n, _radius(n) if n > 1 else 0.0, *middle)
    moves = [(s, d, v) for s, row in enumerate(matrix) for d, v in enumerate(row) if counts(v, largest)]
    for s, d, value in moves:
        (x0, y0), (x1, y1) = at[s], at[d]
        paint = stroke(s)
        bend = 0.16 if (d, s) in {(a, b) for a, b, _ in moves} else 0.08
        width = LEAST + ((MOST if len(moves) <= LABELLED else FINE) - LEAST) * value / largest
        arrow = FancyArrowPatch(
            at[s], at[d], connectionstyle=f"arc3,rad={bend}", arrowstyle="-|>", mutation_scale=7 + 1.6 * width,
            color=paint, linewidth=width, shrinkA=11, shrinkB=12, zorder=3,
        )  # fmt: skip
        ax.add_artist(arrow)
        if len(moves) <= LABELLED:
            t = 0.38 if n < 6 else 0.28  # off the middle, where arrows cross
            cx, cy = (x0 + x1) / 2 - bend * (y1 - y0), (y0 + y1) / 2 + bend * (x1 - x0)  # as arc3 has it
            x = (1 - t) ** 2 * x0 + 2 * t * (1 - t) * cx + t * t * x1
            y = (1 - t) ** 2 * y0 + 2 * t * (1 - t) * cy + t * t * y1
            label = write(ax, x, y, amount(value, drawing), 7.5, INK)
            label.set_bbox({"boxstyle": "round,pad=0.12", "facecolor": PAGE, "edgecolor": paint, "linewidth": 0.6})
    for r, (x, y) in enumerate(at):
        ax.add_artist(Circle((x, y), 0.27, facecolor=color(r), edgecolor=INK, linewidth=0.6, zorder=5))
        write(ax, x, y, str(r), 9, on(r), bold=True)
