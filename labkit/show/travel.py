"""What `lab.last.travel` shows: all ranks at one moment of the last cell, and a slider over all moments."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets

from labkit.errors import LabError
from labkit.outcome.outcome import Outcome
from labkit.plot import svg
from labkit.plot import travel as picture
from labkit.show.steps import Player
from labkit.show.table import cell, row, table
from labkit.show.tiles import short
from labkit.theory.moments import Doing, Event, Moments, Value
from labkit.theory.record import Op, read
from labkit.words import alike, count, listed, ranks, seconds

SHOWN = 6  # tensors of a rank: those used last
FEW = 16  # numbers of a tensor
TOLD = 30  # events in words
LONG = 28  # letters of a tensor's name
BOX = "display: inline-block; min-width: 1.2em; padding: 0 4px; margin: 1px; border-radius: 4px; text-align: center; "
PLAIN, NEW, OPEN = "border: 1px solid", "border: 2px solid; font-weight: bold", "border: 1px dashed"
STAGE = """<style>
    .labkit-stage {position: relative; width: fit-content; max-width: 100%; overflow: visible}
    .labkit-stage > .widget-html {margin: 0; overflow: visible}
    .labkit-stage img {display: block}
    .labkit-stage > .labkit-cursor {position: absolute; inset: 0; pointer-events: none}
    .labkit-cursor .widget-html-content {position: static}
    .labkit-cursor i {position: absolute; border-left: 2px solid}
    .labkit-cursor b {position: absolute; right: 0; opacity: .65; background: var(--jp-layout-color0, Canvas)}
    </style>"""


class Travel(Player):
    """All ranks of a cell, moment by moment: what each does, whom it waits for, and what its small tensors hold.

    A moment follows what one rank did: it called an operation, came to the `.wait()` for it, or left it. Step with the
    slider, the buttons or the arrow keys; `travel.go(5)` shows moment 5. It opens at the last moment, at which a cell
    that was cut short shows who stood where. The tensors are those that operations are given and return, on CPUs, of at
    most 64 elements.
    """

    what = "Travel through the moments of the cell"
    unit = "moment"

    def __init__(self, logs: Sequence[dict[str, Any] | None], outcome: Outcome | None = None) -> None:
        self.record = read(logs)
        if not any(self.record.ops):
            raise LabError(
                "The last cell called no operation. Run one that communicates first, such as dist.all_reduce(x)."
            )
        errors = outcome.errors if outcome else {}
        freed = {*(outcome.waiting if outcome else ()), *(r for r, e in errors.items() if e.raised == "lab")}
        self.moments = Moments(self.record, freed)
        self._absent = {
            r: "no answer, so nothing of it is known" if log is None else "no part in the cell"
            for r, log in enumerate(logs)
            if not log
        }
        for r, signal in (outcome.dead if outcome else {}).items():
            self._absent[r] = f"died ({signal})"
        self._drawn: dict[int, str] = {}
        self._stage, self._cursor = ipywidgets.HTML(), ipywidgets.HTML()
        self._cursor.add_class("labkit-cursor")
        stage = ipywidgets.VBox([self._stage, self._cursor, ipywidgets.HTML(STAGE)])
        stage.add_class("labkit-stage")
        super().__init__(len(self.moments) - 1, stage)
        self.go(self.count)

    # -- words ----------------------------------------------------------------------------------------------------

    def title(self, step: int) -> str:
        """ "moment 3 of 24"."""
        first = self.moments.left_out
        return f"moment {step + first} of {self.count + first}"

    def told(self, step: int) -> str:
        """What has just happened: "rank 1 calls all_reduce (line 2)"."""
        return _happened(self.moments.events[step])

    def does(self, step: int, rank: int) -> str:
        """What a rank does at a moment: "in all_reduce (line 2) for 1.2 ms, waiting for rank 3"."""
        if rank in self._absent:
            return self._absent[rank]
        return _said(self.moments.doing(step, rank))

    @property
    def notes(self) -> list[str]:
        """What is not shown."""
        notes = list(self.record.notes)
        if self.moments.left_out:
            notes.append(f"the last {len(self.moments)} moments; {self.moments.left_out:,} before them are left out")
        if not any(op.held for mine in self.record.ops for op in mine):
            notes.append("numbers are kept of tensors on CPUs of at most 64 elements, and this cell has none")
        return notes

    def __repr__(self) -> str:
        moments = list(range(len(self.moments)))
        half = TOLD // 2
        cut = len(moments) > TOLD
        lines = [self._line(k) for k in (moments[:half] if cut else moments)]
        if cut:
            lines += [f"… {count(len(moments) - 2 * half, 'moment')} more …", *map(self._line, moments[-half:])]
        return "\n".join([*lines, "", *self._state(self.count), *(f"note: {n}" for n in self.notes)])

    def _line(self, step: int) -> str:
        event = self.moments.events[step]
        held = [v for v in self.moments.values(step, event.rank) if _of(event, v)] if event.rank >= 0 else []
        values = "; ".join(f"{v.name} {_numbers(v.was)} → {_numbers(v.values)}" for v in held if v.was is not None)
        return f"{step + self.moments.left_out}: {self.told(step)}" + (f": {values}" if values else "")

    def _state(self, step: int) -> list[str]:
        """All ranks at a moment, in words."""
        said = {}
        for r in range(self.record.n):
            values = ", ".join(f"{v.name} = {_numbers(v.values)}" for v in self.moments.values(step, r)[-SHOWN:])
            said[r] = self.does(step, r) + (f"; {values}" if values else "")
        return [f"{self.title(step)}:", *(f"{ranks(who)}: {words}" for words, who in alike(said).items())]

    # -- pictures -------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        drawn = self.drawn(self.step)
        if self._stage.value != drawn:
            self._stage.value = drawn
        left, top, bottom = (f"{100 * part:.2f}%" for part in picture.place(self.moments, self.step))
        where = f"left: {left}; top: {top}; bottom: {bottom}"
        self._cursor.value = f'<b style="{where}"></b><i style="{where}"></i>'
        super()._show()

    def drawn(self, step: int) -> str:
        """The picture that a moment lies in; its words are what happens in it."""
        first = step // picture.COLUMNS * picture.COLUMNS
        if first not in self._drawn:
            shown = range(first, min(first + picture.COLUMNS, len(self.moments)))
            alt = f"All ranks' operations in order. {'. '.join(map(self.told, shown))}."
            drawn = picture.draw(picture.axes(self.moments), self.moments, first)
            self._drawn[first] = svg.img(svg.svg(drawn), alt)
        return self._drawn[first]

    def frame(self, step: int) -> str:
        """What every rank does and holds at a moment, as a table."""
        event = self.moments.events[step]
        rows, going = [], False
        for r in range(self.record.n):
            doing = self.moments.doing(step, r)
            values = self.moments.values(step, r)
            going = going or any(v.open for v in values[-SHOWN:])
            held = "".join(_tensor(v, r == event.rank and _of(event, v)) for v in values[-SHOWN:])
            if len(values) > SHOWN:
                held += f"… and {len(values) - SHOWN} used before"
            does = escape(self.does(step, r))
            name = f"<b>{does}</b>" if r == event.rank else does
            done = f"{doing.done}\u00a0of\u00a0{doing.of}" if r not in self._absent else "–"
            rows.append(row(str(r), [cell(name, "does"), cell(done, "done"), cell(held or "–", "holds")]))
        when = f", {seconds(event.at)} after the first call" if event.at > 0 else ""
        caption = f'<span aria-live="polite">{self.title(step)}: <b>{escape(self.told(step))}</b>{when}</span>'
        said = table("travel", caption, ["rank", "does", "done", "tensors of its operations"], rows)
        said += "<div>dashed: an operation that is under way uses it</div>" * going
        return said + "".join(f"<div>note: {escape(n)}</div>" for n in self.notes)

    def _repr_html_(self) -> str:
        return self.drawn(self.count) + self.frame(self.count)


def _call(op: Op) -> str:
    arrow = {"send": "to", "recv": "from"}.get(op.kind)
    peer = "any rank" if op.peer is None else f"rank {op.peer}"
    what = f"{op.op} {arrow} {peer}" if arrow else op.op
    return f"{what} ({op.place})" if op.place else what


def _happened(event: Event) -> str:
    if event.op is None:
        return f"rank {event.rank} finishes the cell" if event.what == "ends" else "before the first operation"
    call = _call(event.op)
    did = {
        "calls": f"calls {call}",
        "waits": f"comes to the .wait() for {call}",
        "leaves": f"leaves {call}",
        "fails": f"leaves {call} with {event.op.error}",
    }[event.what]
    return f"rank {event.rank} {did}"


def _said(doing: Doing) -> str:
    if doing.over:
        said = "finished the cell"
    elif doing.op is None:
        said = f"computing {doing.spans[-1]}" if doing.spans else "computing"
    else:
        said = f"in the .wait() for {_call(doing.op)}" if doing.waits else f"in {_call(doing.op)}"
        said += f" for {seconds(doing.since)}" if doing.since else ""
        said += f", waiting for {ranks(doing.whom)}" if doing.whom else ""
    behind = [_call(op) for op in doing.under_way]
    return f"{said}; under way: {listed(behind[-3:])}" if behind else said


def _of(event: Event, value: Value) -> bool:
    """Whether a tensor is one of what has just happened."""
    return event.op is not None and any(held.name == value.name for held in event.op.held)


def _numbers(values: Sequence[Any] | None) -> str:
    if values is None:
        return "–"
    shown = ", ".join(map(short, values[:FEW]))
    return f"[{shown}, … {len(values) - FEW} more]" if len(values) > FEW else f"[{shown}]"


def _tensor(value: Value, now: bool) -> str:
    """A tensor's name and its numbers in boxes; what an operation that has just ended has changed is bold."""
    name = value.name if len(value.name) <= LONG else f"{value.name[:LONG]}…"
    boxes = ""
    for i, v in enumerate(value.values[:FEW]):
        new = now and value.was is not None and value.was[i : i + 1] != [v]
        border = NEW if new else OPEN if value.open else PLAIN
        boxes += f'<span style="{BOX}{border}">{escape(short(v))}</span>'
    if len(value.values) > FEW:
        boxes += f" … {len(value.values) - FEW} more"
    said = f" was {_numbers(value.was)}" if now and value.was is not None else ""
    look = "display: inline-block; white-space: nowrap; margin-right: 1.5em"
    return f'<span style="{look}"><code>{escape(name)}</code> {boxes or "empty"}{escape(said)}</span> '
