"""Draw two lanes a rank, over one clock: what it computes, and below it which of its communication is under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.floor.words import seconds
from labkit.plot.rows import BAR, BOX, LEAST, LEFT, LETTERS, RIGHT, STRIP, WIDE, Bar, Row, one_name, rows, scale
from labkit.plot.sheet import BLACK, WHITE, Align, Scale, chip, clock, extent, in_lines, sheet, write
from labkit.plot.svg import EDGE, FAINT, GRID, INK, PAGE, PLAIN, WRONG
from labkit.plot.timeline import CLEAR, HATCHES, WORDS, could_leave, message
from labkit.theory.log import Span
from labkit.theory.record import Record

# Greys, for colours mean ranks.
PASSES = {"forward": (PLAIN, ""), "backward": (PAGE, "----"), "": (PAGE, "")}
HIDDEN, EXPOSED = "#b4bec8", "#56606b"
ON = {"hidden": BLACK, "exposed": WHITE}  # inks
MARGIN, LEGEND, GAP, BOTTOM, LINE = 0.4, 0.5, 0.62, 1.0, 0.42


@dataclass(frozen=True)
class Plan:
    """The places of everything: rank r's lanes begin at `tops[r]`."""

    record: Record
    x: Scale
    rows: Sequence[Row]
    tops: Sequence[float]

    def lane(self, rank: int) -> float:
        """Return where a rank's communication begins."""
        return self.tops[rank] + self.rows[rank].computing

    def y(self, bar: Bar) -> float:
        """Return the middle of a bar."""
        return self.lane(bar.op.rank) + self.rows[bar.op.rank].thick * (bar.track + 0.5)


def draw(record: Record) -> Axes:
    """Draw a record with spans, two lanes a rank."""
    x = scale(record)
    found = rows(record, x)
    legend = _legend(record, found)
    tops = [LEGEND + LINE * (1 + legend[-1][1]) + 0.2]
    for row in found[:-1]:
        tops.append(tops[-1] + row.height + GAP)
    bottom = tops[-1] + found[-1].height
    notes = list(record.notes)
    if left_out := sum(row.left_out for row in found):
        notes.append(f"not drawn, for want of room: {left_out:,} of the spans and operations; the text has all of them")
    plan = Plan(record, x, found, tops)
    ax = sheet(WIDE, bottom + BOTTOM + LINE * len(notes))
    clock(ax, x, x.end, tops[0] - 0.1, bottom + 0.1, "{} since the first span or call began")
    for left, line, what, words in legend:
        _sample(ax, what, left, LEGEND + LINE * line)
        write(ax, left + 0.62, LEGEND + LINE * line, words, 8, align="left")
    for r, row in enumerate(plan.rows):
        _head(ax, plan, r)
        for span, level in row.spans:
            _box(ax, plan, span, level)
        for a, b in row.stands:
            _strip(ax, a, b, plan.lane(r) - 1.5 * STRIP)
        for bar in row.bars:
            _bar(ax, bar, plan.y(bar), row.thick, plan.lane(r))
            if row.thick == BAR:
                _label(ax, bar, plan.y(bar))
    _messages(ax, plan)
    for i, note in enumerate(notes):
        write(ax, MARGIN, bottom + BOTTOM + LINE * (i + 0.2), note, 7.5, FAINT, "left")
    return ax


def _head(ax: Axes, plan: Plan, rank: int) -> None:
    """Write a rank's name, and how much of its communication is hidden."""
    top, found = plan.tops[rank], plan.rows[rank].overlap
    chip(ax, 0.55, top + BOX / 2, rank)
    write(ax, 0.82, top + BOX / 2, f"rank {rank}", 9, align="left")
    if found.communicating:
        for i, line in enumerate((f"{100 * found.share:.0f} % of {seconds(found.communicating)}", "is hidden")):
            write(ax, MARGIN, top + BOX + 0.22 + 0.28 * i, line, LETTERS, FAINT, "left")
    if rank:
        ax.plot([MARGIN, WIDE - RIGHT], [top - GAP / 2] * 2, color=GRID, linewidth=0.8, zorder=0)
    ax.plot([LEFT, WIDE - RIGHT], [plan.lane(rank)] * 2, color=EDGE, linewidth=0.6, zorder=1)


def _box(ax: Axes, plan: Plan, span: Span, level: int) -> None:
    """Draw a span, with its name and how long it took, as far as there is room."""
    top = plan.tops[span.rank] + BOX * level
    a = plan.x(span.entered)
    b = max(plan.x(plan.rows[span.rank].last if span.left is None else span.left), a + LEAST)
    _rectangle(ax, (a, b), (top, top + BOX), span.of, bool(span.error))
    if span.error and (width := extent(f"✗ {span.error}", LETTERS) + 0.2) < b - a:
        _inside(ax, b - 0.08, top, f"✗ {span.error}", WRONG, "right", span.of)
        b -= width
    long = "" if span.left is None else f"{span.name} · {seconds(span.left - span.entered)}"
    for words in (long, span.name, span.name.rpartition(".")[2]):
        if words and extent(words, LETTERS) + 0.14 <= b - a:
            _inside(ax, (a + b) / 2, top, words, INK, "center", span.of)
            return


def _inside(ax: Axes, x: float, top: float, words: str, ink: str, align: Align, of: str) -> None:
    label = write(ax, x, top + BOX / 2, words, LETTERS, ink, align)
    if of != "forward":  # on hatching, or below a message's arrow
        label.set_bbox({"boxstyle": "round,pad=0.12", "facecolor": PAGE, "edgecolor": "none"})


def _rectangle(ax: Axes, xs: tuple[float, float], ys: tuple[float, float], of: str, wrong: bool = False) -> None:
    """Draw a span's box; one of a backward pass is hatched."""
    face, hatch = PASSES[of]
    if hatch:
        _area(ax, xs, ys, facecolor=face, edgecolor=EDGE, hatch=hatch, linewidth=0, zorder=3)
        face = "none"
    narrow = xs[1] - xs[0] < 3 * LEAST
    edge, width = (WRONG, 1.6) if wrong else (INK, 0.3 if narrow else 0.6)
    _area(ax, xs, ys, facecolor=face, edgecolor=edge, linewidth=width, zorder=4)


def _area(ax: Axes, xs: tuple[float, float], ys: tuple[float, float], **look: Any) -> None:
    ax.add_artist(Rectangle((xs[0], ys[0]), xs[1] - xs[0], ys[1] - ys[0], **look))


def _strip(ax: Axes, a: float, b: float, y: float) -> None:
    """Draw the line along which the rank itself stands."""
    _area(ax, (a, max(b, a + 0.02)), (y, y + STRIP), facecolor=INK, edgecolor="none", zorder=5)


def _bar(ax: Axes, bar: Bar, y: float, thick: float, lane: float) -> None:
    """Draw an operation from its call until its data was there: lighter where its rank computed meanwhile."""
    low, high = y - 0.42 * thick, y + 0.42 * thick
    ax.plot([bar.start] * 2, [lane - 1.5 * STRIP, low], color=EDGE, linewidth=0.7, zorder=2)  # it leaves here
    if not bar.pieces:
        _open(ax, bar.start, bar.end, low, high)
        return
    for a, b, look in bar.pieces:
        _piece(ax, (a, b), (low, high), look)
    edge, width = (WRONG, 1.6) if bar.op.error else (INK, 0.5)
    _area(ax, (bar.start, bar.end), (low, high), facecolor="none", edgecolor=edge, linewidth=width, zorder=10)


def _piece(ax: Axes, xs: tuple[float, float], ys: tuple[float, float], look: str) -> None:
    if look in HATCHES:
        _area(ax, xs, ys, facecolor=PAGE, edgecolor=EXPOSED, hatch=HATCHES[look], linewidth=0.6, zorder=5)
    else:
        _area(ax, xs, ys, facecolor=HIDDEN if look == "hidden" else EXPOSED, edgecolor="none", zorder=4)


def _label(ax: Axes, bar: Bar, y: float) -> None:
    """Write what an operation is on its bar, or beside it."""
    words, x, look = bar.label
    if words:
        label = write(ax, x, y, words, LETTERS, ON.get(look, INK), "left", zorder=9)
        if look in HATCHES:
            label.set_bbox({"boxstyle": "round,pad=0.05", "facecolor": PAGE, "edgecolor": "none"})


def _open(ax: Axes, a: float, b: float, low: float, high: float) -> None:
    """Draw a bar whose end is not known."""
    ax.plot([b, a, a, b], [low, low, high, high], color=INK, linewidth=0.8, linestyle=(0, (2, 1.5)), zorder=5)
    ax.plot([a, a], [low, high], color=INK, linewidth=1.2, zorder=5)
    write(ax, b - 0.06, (low + high) / 2, "?", LETTERS, INK, "right", zorder=9)


def _messages(ax: Axes, plan: Plan) -> None:
    """Draw an arrow for each message, from where its data could leave to where it was there."""
    places = {id(bar.op): plan.y(bar) for row in plan.rows for bar in row.bars}
    crowded = len(plan.record.messages) > CLEAR
    for m in plan.record.messages:
        if not m.send or not m.recv or not {id(m.send), id(m.recv)} <= places.keys() or m.send.error or m.recv.error:
            continue
        arrived = m.recv.arrived if m.recv.arrived is not None else m.recv.left
        if arrived is None:
            continue
        down = 1 if m.recv.rank > m.send.rank else -1
        sent, taken = (plan.rows[op.rank].thick / 2 * down for op in (m.send, m.recv))
        tail = (plan.x(could_leave(m.send, m.recv)), places[id(m.send)] + sent)
        message(ax, tail, (max(plan.x(arrived), tail[0] + 0.02), places[id(m.recv)] - taken), 7, crowded)


# -- legend ---------------------------------------------------------------------------------------------------------


def _legend(record: Record, found: Sequence[Row]) -> list[tuple[float, int, str, str]]:
    """Return what the picture has: where it stands, in which line, what it is, in words."""
    of = {span.of for mine in record.spans for span in mine}
    bars = [bar for row in found for bar in row.bars]
    looks = {look for bar in bars for *_, look in bar.pieces}
    name = one_name(record)
    words = {
        "forward": "forward pass" if "forward" in of else "",
        "backward": "backward pass" if "backward" in of else "",
        "": "other computing" if "" in of else "",
        "hidden": "communication hidden behind computing" if "hidden" in looks else "",
        "exposed": "not hidden" if "exposed" in looks else "",
        "stands": "the rank stands in a call or waits" if bars else "",
        "open": "it is not known when its data was there" if any(not bar.pieces for bar in bars) else "",
        **{kind: said if kind in looks else "" for kind, said in WORDS.items()},
        "number": f"the same {name} on every rank" if name else "the same collective on every rank",
    }
    if not any(bar.op.kind == "collective" and row.thick == BAR for row in found for bar in row.bars):
        words["number"] = ""
    if "exposed" in looks and "hidden" not in looks:
        words["exposed"] = "communication, not hidden behind computing"
    shown = {what: said for what, said in words.items() if said}
    places = in_lines([0.62 + extent(said, 8) for said in shown.values()], MARGIN, WIDE - RIGHT, 0.4)
    return [(x, line, *entry) for (x, line), entry in zip(places, shown.items(), strict=True)]


def _sample(ax: Axes, what: str, x: float, y: float) -> None:
    """Draw a small box that looks as in the picture."""
    xs, ys = (x, x + 0.5), (y - 0.14, y + 0.14)
    if what in PASSES:
        _rectangle(ax, xs, ys, what)
    elif what == "stands":
        _strip(ax, *xs, y - STRIP / 2)
    elif what == "open":
        _open(ax, *xs, *ys)
    elif what == "number":
        write(ax, x + 0.25, y, "1, 2", 8)
    else:
        _piece(ax, xs, ys, what)
        _area(ax, xs, ys, facecolor="none", edgecolor=INK, linewidth=0.5, zorder=6)
