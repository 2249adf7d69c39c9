"""Draw a space–time diagram: a line per rank, a bar per operation, an arrow a message, hatches where a rank waited."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from matplotlib.axes import Axes
from matplotlib.patches import Circle, Polygon, Rectangle

from labkit.floor.words import seconds
from labkit.plot.sheet import FULL, Scale, chip, clock, extent, sheet, write
from labkit.plot.svg import FAINT, INK, PAGE, WRONG
from labkit.theory.log import Op, place
from labkit.theory.record import Meeting, Message, Record

# Greys, for colours mean ranks; the legend's words, and the labels on the bars, say the same.
KINDS = {
    "send": ("#56606b", "sends"),
    "recv": ("#b4bec8", "receives"),
    "collective": ("#868c94", "collectives"),
    "flag": ("#d5d9dd", "kernels that wait for a flag"),
}
PENDING = "#8a8a84"
HATCHES = {"waited": "////", "stayed": "\\\\\\\\", "never": "xxx"}
WORDS = {
    "waited": "waits for another rank",
    "stayed": "needs nothing more, but stays until another rank comes",
    "never": "waits for a rank that never comes",
}
ARROW = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.1, "mutation_scale": 9}  # a message's
CLEAR = 24  # arrows that can be told apart above bars and labels
BENEATH = {"color": FAINT, "linewidth": 0.6, "mutation_scale": 6}
WIDE, LEFT, RIGHT = FULL, 1.9, 0.5
SIDES = LEFT, WIDE - RIGHT
TOP, ROW, BOTTOM, BAR = 1.25, 1.45, 1.0, 0.42
LINE = 0.42
LEAST = 0.07  # a bar's width at least
MOST = 200  # labels
LETTERS, GAP, ASIDE = 0.14, 0.1, 0.6  # half a label's height, how far it keeps from arrows and goes from its bar

Place = tuple[float, float]
Arrow = tuple[Place, Place]  # from its tail to its tip


def draw(record: Record) -> Axes:
    """Draw the record's operations over time, a line per rank."""
    ax = sheet(WIDE, TOP + ROW * record.n + BOTTOM + LINE * len(record.notes))
    ops = [op for mine in record.ops for op in mine]
    x = Scale(1.02 * max([1e-6, *(t for o in ops for t in (o.entered, o.left, o.ended) if t is not None)]), *SIDES)
    _grid(ax, record, x)
    for meeting in record.meetings:
        _meeting(ax, meeting, x)
    for op in sorted(ops, key=lambda o: o.entered):
        _bar(ax, op, x)
    _waits(ax, record, x)
    arrows = [arrow for m in record.messages if (arrow := _arrow(m, x))]
    for tail, tip in arrows:
        message(ax, tail, tip, 6, crowded=len(arrows) > CLEAR)
    labels = [(_spans(op, x)[0], op.rank, _said(op)) for op in ops]
    labels += [(_spans(op, x)[1], op.rank, _said_wait(op)) for op in ops if op.waited]
    room = Room(arrows)
    for bar, rank, words in sorted(labels)[:MOST]:
        room.label(ax, bar, rank, words)
    _legend(ax, record)
    for i, note in enumerate(record.notes):
        write(ax, 0.4, TOP + ROW * record.n + BOTTOM + LINE * (i + 0.2), note, 7.5, FAINT, "left")
    return ax


def lane(rank: int) -> float:
    """Return the height of a rank's line."""
    return TOP + ROW * (rank + 0.5)


def _grid(ax: Axes, record: Record, x: Scale) -> None:
    """Draw the ranks' lines, and the axis of time below them."""
    clock(ax, x, x.end, TOP, TOP + ROW * record.n, "{} since the first operation was entered")
    for r in range(record.n):
        ax.plot([LEFT, WIDE - RIGHT], [lane(r)] * 2, color=PENDING, linewidth=1, zorder=1)
        chip(ax, 0.55, lane(r), r)
        write(ax, 0.82, lane(r), f"rank {r}", 9, align="left")


def _spans(op: Op, x: Scale) -> list[tuple[float, float]]:
    """Return from where to where an operation's bars reach: the call, and the `.wait()` for it."""
    spans = [(op.entered, op.left if op.left is not None else x.end)]
    if op.waited:
        spans.append(op.waited[:2])
    return [(x(a), max(x(b), x(a) + LEAST)) for a, b in spans]


def _bar(ax: Axes, op: Op, x: Scale) -> None:
    paint = KINDS[op.kind][0]
    spans = _spans(op, x)
    for a, b in spans:
        box = Rectangle(
            (a, lane(op.rank) - BAR / 2), b - a, BAR, facecolor=paint, edgecolor=INK, linewidth=0.6, zorder=4
        )
        ax.add_artist(box)
        if op.error:
            box.set(edgecolor=WRONG, linewidth=1.6)
    if op.asynchronous and len(spans) == 2:  # under way between the call and its wait
        ax.plot([spans[0][1], spans[1][0]], [lane(op.rank)] * 2, color=paint, linewidth=2.5, zorder=2)
    if op.error:
        write(ax, min(spans[-1][1], WIDE - 0.2), lane(op.rank) - BAR / 2 - 0.2, f"✗ {op.error}", 7.5, WRONG, "right")


def _waits(ax: Axes, record: Record, x: Scale) -> None:
    """Hatch the part of a bar in which its rank waited for another."""
    for wait in record.waits:
        a, b = x(wait.start), x(wait.until)
        if b - a > 0.04:
            corner = (a, lane(wait.op.rank) - BAR / 2)
            ax.add_artist(Rectangle(corner, b - a, BAR, facecolor=PAGE, edgecolor="none", alpha=0.8, zorder=5))
            hatch = HATCHES[wait.kind]
            look = {"facecolor": "none", "edgecolor": KINDS[wait.op.kind][0], "linewidth": 0.6, "hatch": hatch}
            ax.add_artist(Rectangle(corner, b - a, BAR, zorder=5, **look))  # type: ignore[arg-type]
        long = seconds(wait.seconds)
        said = {
            "waited": f"waits {long} for rank {wait.for_}",
            "stayed": f"stays {long}, until rank {wait.for_} comes",
            "never": f"waits {long} for rank {wait.for_}, in vain",
        }[wait.kind]
        if b - a > extent(said, 7.5) + 0.2:
            label = write(ax, (a + b) / 2, lane(wait.op.rank), said, 7.5)
            label.set_bbox({"boxstyle": "round,pad=0.15", "facecolor": PAGE, "edgecolor": "none"})


def _meeting(ax: Axes, meeting: Meeting, x: Scale) -> None:
    """Draw one shape through all ranks of a collective, from where each entered it to where each left."""
    ops = sorted(meeting.ops, key=lambda o: o.rank)
    first = min(x(op.entered) for op in ops)
    for r in sorted(set(meeting.ranks) - {op.rank for op in ops}):
        write(ax, first, lane(r) - 0.2, f"✗ never came to {' or '.join(meeting.names)}", 7.5, WRONG, "left")
    left, right = [], []
    for op in ops:
        spans = _spans(op, x)
        for side in (-BAR / 2, BAR / 2):
            left.append((spans[0][0], lane(op.rank) + side))
            right.append((spans[-1][1], lane(op.rank) + side))
    shape = Polygon(left + right[::-1], facecolor=KINDS["collective"][0], edgecolor="none", alpha=0.16, zorder=1.5)
    ax.add_artist(shape)
    for edge in (left, right):  # one collective ends where the next may begin
        xs, ys = zip(*edge, strict=True)
        ax.plot(xs, ys, color=KINDS["collective"][0], linewidth=0.8, alpha=0.7, zorder=1.6)


def _arrow(m: Message, x: Scale) -> Arrow | None:
    """Return a message's arrow from where its data could leave to where it was there, None where that is not known."""
    if not m.send or not m.recv or m.recv.error or m.send.error:
        return None
    arrived = m.recv.ended if m.recv.ended is not None else m.recv.left
    if arrived is None:
        return None
    down = 1 if m.recv.rank > m.send.rank else -1
    tail = (x(could_leave(m.send, m.recv)), lane(m.send.rank) + down * BAR / 2)
    return tail, (max(x(arrived), tail[0] + 0.02), lane(m.recv.rank) - down * BAR / 2)


def could_leave(send: Op, recv: Op) -> float:
    """Return when a message's data could leave: once both calls were entered, or the sender's had ended before that."""
    return max(send.entered, min(recv.entered, send.left if send.left is not None else recv.entered))


def message(ax: Axes, tail: Place, tip: Place, zorder: float, crowded: bool = False) -> None:
    """Draw a message's arrow, with a dot at its tail; thin and beneath bars and labels where there are many."""
    look, zorder = ({**ARROW, **BENEATH}, 3) if crowded else (ARROW, zorder)
    ax.annotate("", tip, tail, arrowprops={**look, "shrinkA": 0, "shrinkB": 0}, zorder=zorder)
    ax.add_artist(Circle(tail, 0.045, facecolor=look["color"], edgecolor="none", zorder=zorder))


def _said(op: Op) -> tuple[str, str]:
    """Name a call's bar, in more and in fewer words."""
    return (f"{op.op} · {place(op.line, op.function, short=True)}" if op.line else op.op), op.op


def _said_wait(op: Op) -> tuple[str, str]:
    """Name the bar of the `.wait()` for it, in more and in fewer words."""
    return f"wait · {place(op.waited[2] if op.waited else None, op.wait_in, short=True)}", "wait"


class Room:
    """The room for labels: each stands on no other one, and where there is another place, on no arrow."""

    def __init__(self, arrows: Sequence[Arrow]) -> None:
        self.arrows = arrows
        self.taken: dict[tuple[int, int], float] = {}  # (rank, side) → where its last label ends

    def label(self, ax: Axes, bar: tuple[float, float], rank: int, words: tuple[str, str]) -> None:
        """Write words above a bar, or else below it, in full or else in short, or not: the legend tells its kind."""
        for clear, text, side in product((True, False), words, (-1, 1)):
            width, y = extent(text, 7.5), lane(rank) + side * (BAR / 2 + 0.2)
            free, last = self.taken.get((rank, side), 0.0), WIDE - 0.2 - width
            start = min(bar[0], last)
            if start < free < bar[1] - ASIDE:  # a long bar's label need not stand at its beginning
                start = free
            if clear:
                start = self._beyond(start, y, width)
            if free <= start <= min(max(bar[0], bar[1] - 2 * ASIDE) + ASIDE, last):
                write(ax, start, y, text, 7.5, align="left", halo=True)
                self.taken[rank, side] = start + width + 0.15
                return

    def _beyond(self, start: float, y: float, width: float) -> float:
        """Return where a line of letters begins when it is pushed to the right of all arrows that run through it."""
        crossings = []
        for (x0, y0), (x1, y1) in self.arrows:
            low, high = sorted((y0, y1))
            top, bottom = max(low, y - LETTERS), min(high, y + LETTERS)
            if top < bottom:
                crossings.append(sorted(x0 + (x1 - x0) * (edge - y0) / (y1 - y0) for edge in (top, bottom)))
        for left, right in sorted(crossings):
            if left < start + width + GAP and right > start - GAP:
                start = right + GAP
        return start


def _legend(ax: Axes, record: Record) -> None:
    x = LEFT
    kinds = {op.kind for mine in record.ops for op in mine}
    waits = {w.kind for w in record.waits}
    entries = [(paint, "", words) for kind, (paint, words) in KINDS.items() if kind in kinds]
    entries += [(PENDING, HATCHES[k], WORDS[k]) for k in HATCHES if k in waits]
    for paint, hatch, words in entries:
        look = {"facecolor": PAGE if hatch else paint, "edgecolor": paint if hatch else INK, "hatch": hatch}
        ax.add_artist(Rectangle((x, 0.42), 0.5, 0.3, linewidth=0.6, zorder=4, **look))  # type: ignore[arg-type]
        write(ax, x + 0.62, 0.58, words, 8, align="left")
        x += 0.62 + extent(words, 8) + 0.5
    if record.messages:
        ax.annotate("", (x + 0.6, 0.57), (x, 0.57), arrowprops=ARROW)
        write(ax, x + 0.72, 0.58, "a message", 8, align="left")
