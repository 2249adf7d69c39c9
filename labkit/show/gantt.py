"""Show what each rank computes when, as a Gantt chart of the spans of a run, or of a schedule that was computed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labkit.floor.words import seconds
from labkit.outcome.text import merge
from labkit.plot import gantt as plot
from labkit.show.picture import Picture
from labkit.theory.log import Span
from labkit.theory.overlap import common, computing
from labkit.theory.record import Record

KINDS = {"forward": "F", "backward": "B", "weights": "W"}
LETTERS = "abcdefghijklmnop"  # of chunks


class Gantt(Picture):
    """Each rank's passes on one lane, without its messages; it displays itself.

    A run's is `lab.last.timeline().gantt`. `bubble` is the part of the ranks' time, from the first pass's start to the
    last one's end, in which they compute nothing; `idle[r]` is that of rank r. `bars[r]` has a `start` and an `end` for
    each pass.
    """

    def __init__(self, bars: Sequence[Sequence[plot.Bar]], title: str = "", notes: Sequence[str] = ()) -> None:
        self.bars = [list(mine) for mine in bars]
        self._title, self._notes = title, list(notes)

    @property
    def whole(self) -> float:
        """The time from the first pass's start to the last one's end: seconds, or a schedule's forward passes."""
        every = [bar for mine in self.bars for bar in mine]
        return max(bar.end for bar in every) - min(bar.start for bar in every) if every else 0.0

    @property
    def idle(self) -> list[float]:
        """The part of this time in which each rank computes nothing, index = rank."""
        return [1 - sum(bar.end - bar.start for bar in mine) / self.whole if self.whole else 0.0 for mine in self.bars]

    @property
    def bubble(self) -> float:
        """The mean of `idle` over the ranks."""
        return sum(self.idle) / len(self.bars) if self.bars else 0.0

    @property
    def facts(self) -> str:
        """The passes in their order: the same in every run."""
        return merge({r: " ".join(bar.names[0] for bar in mine) or "nothing" for r, mine in enumerate(self.bars)})

    @property
    def times(self) -> str:
        """The time that it took, and the part of it in which nothing was computed."""
        each = " ".join(f"{100 * share:.1f}" for share in self.idle)
        long = f"{self.whole:g} forward passes" if self._title else seconds(self.whole)
        return f"{long} from the first pass's start to the last one's end; bubble {100 * self.bubble:.1f} % ({each})"

    def _drawn(self) -> Any:
        first = min((bar.start for mine in self.bars for bar in mine), default=0.0)
        lanes = [[replace(b, start=b.start - first, end=b.end - first) for b in mine] for mine in self.bars]
        heads = [f"{100 * share:.0f} % idle" for share in self.idle]
        axis = "forward passes of a whole stage" if self._title else "{} since the first pass began"
        notes = [*([f"{self._title}: bubble {100 * self.bubble:.1f} %"] if self._title else []), *self._notes]
        return plot.draw(plot.Chart(lanes, heads, axis, not self._title, notes))

    def __repr__(self) -> str:
        times = "" if self._title else "\n\ntimes of this run:"
        title = f"{self._title}\n" if self._title else ""
        return "\n".join([f"{title}{self.facts.rstrip()}{times}", self.times, *self._notes])

    @property
    def alt(self) -> str:
        return f"Gantt chart. {self!r}".replace("\n", ". ")


def of_record(record: Record) -> Gantt:
    """Chart a recorded run: of each outermost span the longest stretch in which the rank stood in no call."""
    lanes = []
    for r, spans in enumerate(record.spans):
        work, mine, until = computing(record, r), [], -1.0
        for span in sorted(spans, key=lambda s: s.entered):
            if span.left is None or span.entered < until:
                continue  # it never ended, or lies in another one
            until = span.left
            if pieces := common([(span.entered, span.left)], work):
                start, end = max(pieces, key=lambda piece: piece[1] - piece[0])
                mine.append(plot.Bar(_kind(span), _names(span), start, end, _chunk(span)))
        lanes.append(mine)
    return Gantt(lanes, notes=[f"{record.shared}."] if record.shared else [])


def _kind(span: Span) -> str:
    first = span.name.split()[0].lower()
    return first if first in KINDS else ""


def _chunk(span: Span) -> int:
    """Return the number of its chunk: "forward 3b" is of the second one, 1."""
    found = re.fullmatch(r"\w+ \d+([a-p])", span.name)
    return LETTERS.index(found[1]) if found else 0


def _names(span: Span) -> tuple[str, ...]:
    """Shorten "forward 3" to F3, or 3 where there is less room."""
    first, _, rest = span.name.partition(" ")
    return short(KINDS[first.lower()], rest) if first.lower() in KINDS and rest else (span.name,)


def short(kind: str, rest: str) -> tuple[str, ...]:
    """Return what a box may say, the longest first: "F3b", "3b", "3"."""
    number = re.match(r"\d+", rest)
    return (f"{kind}{rest}", rest, *([number[0]] if number and number[0] != rest else []))
