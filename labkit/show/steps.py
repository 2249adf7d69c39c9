"""What `lab.last.steps` shows: the messages of the last cell, round by round. No torch, no cluster."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import ipywidgets

from labkit.errors import LabError
from labkit.plot import steps as plot
from labkit.plot import svg
from labkit.plot.tiles import Tile, needed
from labkit.show.tiles import short
from labkit.theory.record import Message, Op, Record, read
from labkit.theory.replay import Element, Replay
from labkit.words import ranks

MOST = 12  # chunks of a buffer that are drawn; more are drawn as one
FEW = 8  # numbers of a message that are told
BOXES = ("inbox", "outbox")  # what a line makes, sends or receives, and lets go
PANELS, TILES = 12, 400  # rounds, and tiles, that the still picture has at most

# As `labkit.show.keys.DEAF` does, it keeps keys from the notebook; and arrows step.
KEYS = """<style onload="
    const box = this.closest('.labkit-steps');
    box.role = 'group';
    box.ariaLabel = 'Step through the messages';
    for (const button of box.querySelectorAll('button')) button.ariaLabel = button.title;
    box.onkeydown = event => {
        event.stopPropagation();
        const way = {ArrowLeft: '.labkit-back', ArrowRight: '.labkit-on'}[event.key];
        if (way && !event.target.closest('.widget-slider')) box.querySelector(way).click();
    }"></style>"""


class Steps(ipywidgets.VBox):
    """The rounds of messages of a cell: play them, step with buttons, arrow keys or the slider.

    A message is one round later than what its sender and its receiver had finished before they called it: order
    counts, not the clock. `steps.go(2)` shows the second round; its text lists all of them.
    """

    def __init__(self, told: Sequence[dict[str, Any] | None]) -> None:
        self.record: Record = read(told)
        if not self.record.messages:
            raise LabError(
                "The last cell sent nothing from rank to rank. Run one with send, recv, isend or irecv first; "
                "lab.last.timeline() draws collectives."
            )
        self.replay = Replay(self.record)
        self._slots = _aligned(self.replay)
        self._drawn: dict[int, bytes] = {}
        self.count = len(self.replay.steps)
        self._picture = ipywidgets.HTML()
        self._slider = ipywidgets.IntSlider(
            value=0, min=0, max=self.count, description="step", readout=False, layout={"width": "16em"}
        )
        self._said = ipywidgets.Label()
        play = ipywidgets.Play(min=0, max=self.count, interval=1200, tooltip="play")
        ipywidgets.jslink((play, "value"), (self._slider, "value"))
        back, on = (
            ipywidgets.Button(description=d, tooltip=t, layout={"width": "3em"})
            for d, t in (("◀", "one step back"), ("▶", "one step on"))
        )
        back.add_class("labkit-back")
        on.add_class("labkit-on")
        back.on_click(lambda _: self.go(self.step - 1))
        on.on_click(lambda _: self.go(self.step + 1))
        self._slider.observe(lambda _: self._show(), "value")
        row = ipywidgets.HBox([play, back, on, self._slider, self._said, ipywidgets.HTML(KEYS)])
        super().__init__([self._picture, row])
        self.add_class("labkit-steps")
        self._show()

    @property
    def step(self) -> int:
        """The step that is shown, from 0; the last one shows what the messages have left."""
        return int(self._slider.value)

    def go(self, step: int) -> None:
        """Show a step, as the slider does."""
        self._slider.value = min(max(step, 0), self.count)

    def _show(self) -> None:
        self._picture.value = svg.img(self.svg(self.step), self.told(self.step))
        self._said.value = self.title(self.step)

    # -- words ----------------------------------------------------------------------------------------------------

    def title(self, step: int) -> str:
        """A step's name: "step 1 of 6", and after the last one "after step 6"."""
        return f"step {step + 1} of {self.count}" if step < self.count else f"after step {self.count}"

    def told(self, step: int) -> str:
        """A step in one line: "step 1: 0→1 [0.0] · 1→2 [11.0]"."""
        if step == self.count:
            return f"after step {self.count}: " + "; ".join(self._left())
        return f"step {step + 1}: " + " · ".join(map(self._message, self.replay.steps[step]))

    def _message(self, m: Message) -> str:
        carried = self.replay.carried(m)
        op = m.send or m.recv
        assert op is not None, "a message has one end at least"
        if carried and len(carried) <= FEW:
            what = f"[{', '.join(short(e.value) for e in carried)}]"
        else:
            what = _size(op)
        src, dst = ("?" if r is None else str(r) for r in (m.src, m.dst))
        lacking = " (never received)" if m.recv is None else " (never sent)" if m.send is None else ""
        return f"{src}→{dst} {what}{lacking}"

    def _left(self) -> list[str]:
        said: dict[int, str] = {}
        for r, slots in enumerate(self._slots_of()):
            held = [(s, self.replay.contents(r, i, self.count)) for i, s in enumerate(slots) if s.name not in BOXES]
            told = [f"{s.name} = [{', '.join(map(_value, es))}]" for s, es in held if len(es) <= 2 * FEW]
            said[r] = ", ".join(told) or "nothing recorded"
        groups: dict[str, list[int]] = {}
        for r, words in said.items():
            groups.setdefault(words, []).append(r)
        return [f"{ranks(who)}: {words}" for words, who in groups.items()]

    def _slots_of(self) -> list[list[Any]]:
        return [list(slots) for slots in self.replay.slots]

    def __repr__(self) -> str:
        lines = [self.told(k) for k in range(self.count + 1)]
        note = [] if self.replay.known else ["note: zeros were received, so nobody can tell whose numbers are in a sum"]
        if self._any_outside():
            note.append("note: numbers are recorded where a buffer lies on the CPU and has at most 64 elements")
        return "\n".join([*lines, *note, *(f"note: {n}" for n in self.record.notes)])

    # -- pictures -------------------------------------------------------------------------------------------------

    def svg(self, step: int) -> bytes:
        """The picture of one step; all have one size."""
        if step not in self._drawn:
            room = max(plot.lanes(self._draw(k)) for k in range(self.count + 1))
            picture = self._draw(step)
            self._drawn[step] = svg.svg(plot.draw(plot.axes([picture], room=room), [picture], room=room))
        return self._drawn[step]

    @functools.cached_property
    def still(self) -> bytes:
        """All steps in one picture; of many, the first and the last ones."""
        shown = list(range(self.count + 1))
        tiles = self.record.n * sum(len(bounds) - 1 for _, _, bounds in self._slots)
        panels = max(3, min(PANELS, TILES // max(tiles, 1)))
        if len(shown) > panels:
            shown = shown[: panels - 2] + shown[-2:]
        pictures = [self._draw(k) for k in shown]
        across = 2 if self.record.n <= 4 else 1
        return svg.svg(plot.draw(plot.axes(pictures, across), pictures, across))

    def _draw(self, step: int) -> plot.Picture:
        n = self.record.n
        slots = []
        for name, indices, bounds in self._slots:
            tiles: list[list[Tile]] = []
            for r in range(n):
                i = indices.get(r)
                held = [] if i is None else self.replay.contents(r, i, step)
                tiles.append([_tile(held[a:b]) for a, b in pairwise(bounds)] if held else [])
            slots.append(plot.Slot(name, tiles))
        arrows: list[plot.Arrow] = []
        outside = False
        for m in self.replay.steps[step] if step < self.count else ():
            if m.send is None or m.recv is None:
                continue
            src, dst = self._place(m.send), self._place(m.recv)
            outside |= src is None or dst is None
            label = "" if src is not None else self._message(m).split(" ", 1)[1]
            arrows.append(plot.Arrow(src or (m.send.rank, len(slots), 0), dst or (m.recv.rank, len(slots), 0), label))
        if self._any_outside():
            slots.append(plot.Slot("", [[Tile("", kind="empty", width=plot.WIDTH)] for _ in range(n)]))
        return plot.Picture(self.title(step), slots, arrows)

    def _any_outside(self) -> bool:
        ops = [op for m in self.record.messages for op in (m.send, m.recv) if op is not None]
        return any(self._place(op) is None for op in ops)

    def _place(self, op: Op) -> tuple[int, int, int] | None:
        """(rank, slot, chunk) of an operation's tensor in the picture."""
        place = self.replay.place(op)
        if place is None:
            return None
        for s, (_, indices, bounds) in enumerate(self._slots):
            if indices.get(op.rank) == place[0]:
                return op.rank, s, max(i for i, b in enumerate(bounds[:-1]) if b <= place[1])
        return None

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        html = svg.img(self.still, repr(self))
        return {**super()._repr_mimebundle_(**kwargs), "text/plain": repr(self), "text/html": html}

    def _repr_html_(self) -> str:
        return svg.img(self.still, repr(self))


def _aligned(replay: Replay) -> list[tuple[str, dict[int, int], list[int]]]:
    """The ranks' slots of one name and size as one: (name, rank → its slot, where its chunks begin and end)."""
    found: list[tuple[str, int, dict[int, int]]] = []
    for r, slots in enumerate(replay.slots):
        for i, slot in enumerate(slots):
            for name, size, indices in found:
                if (name, size) == (slot.name, slot.size) and r not in indices:
                    indices[r] = i
                    break
            else:
                found.append((slot.name, slot.size, {r: i}))
    aligned = []
    sent = {(o.rank, p[0]) for mine in replay.record.ops for o in mine if o.kind == "send" and (p := replay.place(o))}
    for name, size, indices in sorted(
        found, key=lambda f: (f[0] in BOXES, f[0] == "buffer", not sent & set(f[2].items()))
    ):
        bounds = {0, size}
        for mine in replay.record.ops:
            for op in mine:
                place = replay.place(op)
                if place is not None and indices.get(op.rank) == place[0]:
                    bounds |= {place[1], place[1] + place[2]}
        aligned.append((name, indices, sorted(bounds) if len(bounds) <= MOST + 1 else [0, size]))
    return aligned


def _tile(elements: Sequence[Element]) -> Tile:
    """A chunk as one tile."""
    if all(e.value is None for e in elements):
        return Tile("", kind="empty", width=plot.WIDTH)
    values = list(map(_value, elements))
    ways = (", ".join(values), f"{values[0]} … {values[-1]}", f"{len(values)} numbers")
    said = next((way for way in ways if needed(Tile(way)) <= plot.WIDTH), "")
    origins = [e.origin for e in elements]
    if any(o is None for o in origins):
        return Tile(said, kind="plain", width=plot.WIDTH)
    shares: dict[int, int] = {}
    for origin in origins:
        assert origin is not None
        for r in origin.ranks:
            times = max(k for (s, _), k in origin.counts.items() if s == r)
            shares[r] = max(shares.get(r, 0), times)
    several = max(shares.values(), default=0) > 1
    who = ranks(shares).split(" ", 1)[1]
    label = f"of {who}" if len(shares) < 2 else f"Σ {who}"
    badge = f"{max(shares.values())}×" if several else ""
    return Tile(said, label, tuple(sorted(shares.items())), badge=badge, width=plot.WIDTH)


def _value(element: Element) -> str:
    return "–" if element.value is None else short(element.value)


def _size(op: Op) -> str:
    if op.shape is None:
        return "an object"
    shape = "×".join(map(str, op.shape)) or "1"
    return f"{shape} {op.dtype}"
