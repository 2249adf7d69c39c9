"""Say right or wrong in one sentence, with a picture of where, for `lab.check`. No torch, no cluster of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from html import escape
from typing import Any

import numpy as np

from labkit.floor.words import sentence
from labkit.grading import judge
from labkit.grading.exercise import Exercise
from labkit.grading.finding import Finding, setting
from labkit.grading.graded import PASSED
from labkit.grading.inputs import Case
from labkit.grading.limits import STATES
from labkit.outcome.phrases import healed
from labkit.plot import flow as picture
from labkit.plot import svg
from labkit.plot.flow import Drawing
from labkit.plot.tiles import Tile, flat
from labkit.show import markdown, meaning, score
from labkit.show.tiles import from_part
from labkit.show.timeline import Timeline
from labkit.show.waits import Waits
from labkit.theory.provenance import Part
from labkit.theory.values import leaves

SHOWN = meaning.MOST  # elements of a row
WIDE = 200  # characters of a text: a line of a log fits
EMPTY = Tile("empty", kind="empty", width=1.3)

HEADS = {
    "not attempted": "Not attempted yet",
    "elsewhere": "Not on the ranks",
    "right": "Right on {} inputs",
    "wrong": "Wrong",
    "raises": "It raises",
    "deadlock": "A deadlock",
    "slow": "Too slow",
    "forbidden": "Right on {} inputs, but forbidden",
    "costly": "Right on {} inputs, but costly",
    "not as asked": "Right on {} inputs, but not as asked",
    "differs": "Not the same on all ranks",
    "stopped": "Stopped",
}
SIGNS = {"right": "✓", **dict.fromkeys(("not attempted", "elsewhere", "stopped"), "○"), **dict.fromkeys(STATES, "≈")}
WRONG = "✗"  # the other states
BORDERS = {"✓": "#009E73", "○": "#999999", "≈": "#E69F00", "✗": "#D55E00"}


class Verdict:
    """The result of a check: it displays itself as a sentence, with a picture where one helps.

    `state` is "not attempted", "elsewhere" (not on the ranks, but in the notebook), "right", "wrong", "raises",
    "deadlock", "slow", "forbidden", "costly", "not as asked", "differs" or "stopped"; `ok` is whether it is
    right; `right` counts the inputs that were; `says` are the sentences; `score` is what a right function cost on the
    largest input, see `labkit.grading.score.Score`, or None.
    """

    def __init__(
        self,
        exercise: Exercise,
        finding: Finding,
        next_: str = "",
        best: Mapping[str, Any] | None = None,
        afterword: bool = True,
    ) -> None:
        self.name = exercise.name
        self._exercise = exercise
        self._finding = finding
        self.state, self.right, self.score = finding.state, finding.right, finding.score
        self.says = list(finding.says)
        self._costs: score.Costs | None = None
        if finding.score is not None and finding.state != "forbidden":
            least = finding.score.least(exercise)
            self._costs = score.Costs(finding.score, least, best, finding.state != "not as asked")
        self._next = [line for line in (exercise.after if self.ok and afterword else "", next_) if line]

    @property
    def ok(self) -> bool:
        """Whether the function is right, within its budget, and does it as the card asks."""
        return self.state == "right"

    @property
    def passed(self) -> bool:
        """Whether it is worth a point where copies are graded: right, whatever it costs."""
        return self.state in PASSED

    @property
    def head(self) -> str:
        """The verdict in a few words: "✓ ring_all_reduce: right on 24 inputs"."""
        head = HEADS[self.state].format(self.right)
        return f"{SIGNS.get(self.state, '✗')} {self.name}: {head[0].lower()}{head[1:]}"

    @property
    def _lines(self) -> list[str]:
        lines = list(self.says)
        if self.right and self.state in ("wrong", "raises", "deadlock", "slow"):
            lines.append(f"It was right on {self.right} input{'s' * (self.right > 1)} before.")
        if self._finding.healed:
            lines.append(sentence([*map(healed, self._finding.healed)]))
        return lines

    def __repr__(self) -> str:
        printed = [f"it printed: {line}" for line in self._finding.printed.splitlines()]
        costs = [repr(self._costs)] if self._costs else []
        return "\n".join([f"{self.head}.", *self._rows, *self._lines, *costs, *printed, *self._next])

    def _repr_html_(self) -> str:
        colour = BORDERS[SIGNS.get(self.state, WRONG)]
        coded = (re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(line)) for line in self._lines)
        lines = "".join(f"<div>{line}</div>" for line in coded)
        printed = self._finding.printed
        shown = f"<div>It printed:</div><pre>{escape(printed)}</pre>" if printed else ""
        nexts = "".join(map(markdown.html, self._next))
        costs = self._costs._repr_html_() if self._costs else ""
        image = f"<div style='margin-top: 6px'>{svg.img(*self._picture)}</div>" if self._picture else ""
        return (
            f"<div class='labkit-verdict' style='border-left: 4px solid {colour}; padding: 2px 12px'>"
            f"<div><b>{escape(self.head)}</b></div>{lines}{costs}{image}{shown}{nexts}</div>"
        )

    @property
    def _rows(self) -> list[str]:
        """The results and what they should have been, in text, a line per rank."""
        f = self._finding
        if f.state != "wrong" or not f.outs or f.case is None:
            return []
        of = f"gradient of {f.gradient}: " if f.gradient else "the argument afterwards: " if f.kept else ""
        rows = []
        for r, (x, out, want) in enumerate(zip(f.case.xs, f.outs, f.want, strict=True)):
            given = options(f.case) if isinstance(x, tuple) and not x else written(x)
            end = f"   should be: {written(want, out)}" if r in f.wrong else ""
            rows.append(f"rank {r} │ {given} → {of}{written(out, want if r in f.wrong else None)}{end}")
        return rows

    @cached_property
    def _picture(self) -> tuple[bytes, str] | None:
        """The picture as SVG, and the same in words."""
        f = self._finding
        if f.state == "deadlock" and f.records and all(f.records):
            waits = Waits(f.records, f.report)
            shown = waits if waits.arrows else Timeline(f.records)
            return shown.svg, shown.alt
        if f.state != "wrong" or not f.outs or f.case is None:
            return None
        alt = " ".join([f"What {self.name} does {setting(f.case)}.", *self._rows])
        return svg.svg(picture.draw(_drawing(self._exercise, f))), alt


def _drawing(exercise: Exercise, f: Finding) -> Drawing:
    """Draw input, result and right answer of every rank, around the first place that differs."""
    assert f.case is not None, "a wrong result has an input"
    start = _start(f)
    outs = [judge.in_order(out, want) for out, want in zip(f.outs, f.want, strict=True)]
    given = [_given(f, r, out, start) for r, out in enumerate(outs)]
    should = [meaning.row(w, _plain, start, EMPTY, outs[r]) for r, w in enumerate(f.want)]
    titles = ["input", f"{exercise.name} gives", "it should give"]
    columns = [meaning.before(f.case), given, should]
    if f.gradient or f.kept:
        titles[1:] = f"gradient of {f.gradient}" if f.gradient else "the argument afterwards", "should be"
    elif start:
        alike = all(judge.size(x) == judge.size(w) for x, w in zip(f.case.xs, f.want, strict=True))
        first = start if alike else 0
        looks = [lambda _i, _v, text, r=r: Tile(text, shares=((r, 1),)) for r in range(len(f.case.xs))]
        columns[0] = [[flat(meaning.row(x, looks[r], first, EMPTY))] for r, x in enumerate(f.case.xs)]
    else:
        columns[2] = meaning.after(exercise.means, f.case, f.want, outs)
    called = [f"Called with {options(f.case)}."] if f.case.options and not f.case.size else []
    notes = [*called, *meaning.shapes(f.case.xs), *[f"From element {start} on."] * bool(start)]
    return Drawing(titles, columns, notes=notes)


def _start(f: Finding) -> int:
    """Return the first element that is drawn: a long result is shown around its first difference."""
    longest = max(map(judge.size, [*f.outs, *f.want]), default=0)
    place = min((d.place for d in f.wrong.values() if d.place >= 0), default=0)
    return max(0, place - 3) if longest > meaning.MOST else 0


def _given(f: Finding, r: int, out: Any, start: int) -> list[list[Tile]]:
    """Return what a rank's function gave, in the colours of its sources where they are known, errors outlined."""
    wrong, wanted, size = r in f.wrong, leaves(f.want[r]), judge.size(out)
    origins = f.origins[r] if f.origins is not None and not start else []

    def look(i: int, value: Any, text: str) -> Tile:
        odd = wrong and (len(wanted) != size or judge.first_difference(value, wanted[i], judge.SAME) is not None)
        if i >= len(origins) or not origins[i].counts:
            return Tile(text, kind="plain", wrong=odd)
        kind = "copy" if sum(origins[i].counts.values()) == 1 else "sum"
        return replace(from_part(Part(kind, origins[i]), text), wrong=odd)

    return meaning.row(out, look, start, EMPTY, f.want[r] if wrong else None, wrong)


def _plain(_i: int, _value: Any, text: str) -> Tile:
    return Tile(text, kind="plain")


def options(case: Case) -> str:
    """Write what a call is given by name: "parameters=7.5e+09, gpus=64, stage=3"."""
    large = {k: f"{v:g}" if isinstance(v, float) and v > 1e6 else v for k, v in case.options.items()}
    return ", ".join(f"{k}={v}" for k, v in large.items()) or "no argument"


def written(value: Any, beside: Any = None) -> str:
    """Write a value in one line, cut where it is long; what differs from `beside` has digits enough to show it.

    >>> written([1.0, 2.95e10], [1.0, 3.0e10])
    '[1, 2.95e+10]'
    """
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, tuple):
        return ", ".join(map(written, value, meaning.others(value, beside))) or "no argument"
    if value is None or isinstance(value, judge.Sentinel):
        return "anything" if value is judge.ANY else "None" if value is judge.NOTHING else str(value)
    if isinstance(value, str):
        return value if len(value) <= WIDE else f"{value[: WIDE - 1]}…"
    if isinstance(value, dict):
        theirs = beside if isinstance(beside, dict) else {}
        return "{" + ", ".join(f"{k}: {written(v, theirs.get(k))}" for k, v in value.items()) + "}"
    if isinstance(value, list) and not all(isinstance(v, (bool, int, float)) for v in value):
        return "[" + ", ".join(map(written, value, meaning.others(value, beside))) + "]"
    if getattr(value, "ndim", 0) > 1 and value.size:
        first = value[: max(1, SHOWN // value[0].size)]
        more = f", … {len(value)} rows in all" if len(first) < len(value) else ""
        return f"[{', '.join(map(written, first, meaning.others(value, beside)))}{more}]"
    atoms = leaves(value)
    others = meaning.others(atoms, leaves(beside))
    if isinstance(value, (bool, int, float)) or getattr(value, "shape", None) == ():
        return meaning.words(atoms[0], others[0])
    more = f", … {len(atoms)} in all" if len(atoms) > SHOWN else ""
    return "[" + ", ".join(map(meaning.words, atoms[:SHOWN], others)) + more + "]"
