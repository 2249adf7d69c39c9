"""Draw a record's rounds of messages, and tell them in words: a stepper plays them. No widgets, torch or cluster."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from labkit.floor.words import alike, ranks, spans
from labkit.plot import steps as plot
from labkit.plot import svg
from labkit.plot.tiles import Tile, needed
from labkit.show.tiles import short
from labkit.theory.log import Op
from labkit.theory.record import Message, Record
from labkit.theory.replay import Element, Replay

MOST = 12  # chunks of a buffer that are drawn; more are drawn as one
FEW = 8  # numbers of a message that are told
BOXES = ("inbox", "outbox")  # what a line makes, sends or receives, and lets go
PANELS, TILES = 12, 400  # rounds, and tiles, that the still picture has at most


class Film:
    """The rounds of a record's messages, from 0; after the last one comes what the messages have left.

    `marks` says of a message, by its `id`, in a word or two what is odd about it: that is drawn and told.
    """

    def __init__(self, record: Record, marks: Mapping[int, str] | None = None, replay: Replay | None = None) -> None:
        self.record = record
        self.replay = replay or Replay(record)
        self.count = len(self.replay.steps)
        self.marks = dict(marks or {})
        self.slots = _aligned(self.replay)

    # -- words ----------------------------------------------------------------------------------------------------

    def told(self, step: int) -> str:
        """Tell a step in one line: "step 1: 0→1 [0.0] · 1→2 [11.0]"."""
        if step == self.count:
            return f"after step {self.count}: " + "; ".join(self._left())
        return f"step {step + 1}: " + " · ".join(map(self._message, self.replay.steps[step]))

    def _message(self, m: Message) -> str:
        src, dst = ("?" if r is None else str(r) for r in (m.src, m.dst))
        return f"{src}→{dst} {self._carries(m)}"

    def _carries(self, m: Message) -> str:
        carried = self.replay.carried(m)
        op = m.send or m.recv
        assert op is not None, "a message has one end at least"
        if carried and len(carried) <= FEW:
            what = f"[{', '.join(short(e.value) for e in carried)}]"
        else:
            what = _size(op)
        lacking = " (never received)" if m.recv is None else " (never sent)" if m.send is None else ""
        mark = f" ({self.marks[id(m)]})" if id(m) in self.marks else ""
        return f"{what}{lacking}{mark}"

    def _left(self) -> list[str]:
        said: dict[int, str] = {}
        for r, slots in enumerate(list(map(list, self.replay.slots))):
            held = [(s.name, self.replay.contents(r, i, self.count)) for i, s in enumerate(slots)]
            named = [one for one in held if one[0] not in BOXES]  # where none is, what came is what is left
            shown = [(name, es) for name, es in named or held if name != "outbox" and len(es) <= 2 * FEW]
            told = [f"{name} = [{', '.join(map(_value, es))}]" for name, es in shown]
            said[r] = ", ".join(told) or "nothing recorded"
        return [f"{ranks(who)}: {words}" for words, who in alike(said).items()]

    @property
    def notes(self) -> list[str]:
        """Notes on what the record does not tell."""
        note = [] if self.replay.known else ["note: zeros were received, so it is not known whose numbers are in a sum"]
        if self._any_outside():
            note.append("note: numbers are recorded only for buffers on the CPU with at most 64 elements")
        return [*note, *(f"note: {n}" for n in self.record.notes)]

    def __repr__(self) -> str:
        return "\n".join([*(self.told(k) for k in range(self.count + 1)), *self.notes])

    # -- pictures -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def pictures(self) -> list[plot.Picture]:
        """The picture of each step, and of what the messages have left."""
        return [self._draw(k) for k in range(self.count + 1)]

    def svg(self, step: int) -> bytes:
        """Draw one step; all steps' pictures have one size."""
        return svg.svg(plot.draw(self.pictures[step : step + 1], 1, *self._size))

    @functools.cached_property
    def _size(self) -> tuple[int, float]:
        return size(self.pictures)

    @functools.cached_property
    def still(self) -> bytes:
        """The picture of all steps; of many, of the first and the last ones."""
        shown = self.pictures
        tiles = self.record.n * sum(len(bounds) - 1 for _, _, bounds in self.slots)
        panels = max(3, min(PANELS, TILES // max(tiles, 1)))
        if len(shown) > panels:
            shown = shown[: panels - 2] + shown[-2:]
        return svg.svg(plot.draw(shown, 2 if self.record.n <= 2 else 1))

    def _draw(self, step: int) -> plot.Picture:
        n = self.record.n
        slots = []
        for name, indices, bounds in self.slots:
            tiles: list[list[Tile]] = []
            for r in range(n):
                i = indices.get(r)
                held = [] if i is None else self.replay.contents(r, i, step)
                tiles.append([_tile(held[a:b]) for a, b in pairwise(bounds)] if held else [])
            slots.append(plot.Slot(name, tiles))
        arrows: list[plot.Arrow] = []
        for m in self.replay.steps[step] if step < self.count else ():
            if m.src is None or m.dst is None or m.src == m.dst or max(m.src, m.dst) >= n:
                continue
            outside = (len(slots), 0, 1)
            src, dst = self._place(m.send), self._place(m.recv)
            size = "" if src is not None or m.send is None else self._carries(m)
            odd = "no recv" if m.recv is None else "no send" if m.send is None else self.marks.get(id(m), "")
            arrows.append(
                plot.Arrow((m.src, *(src or outside)), (m.dst, *(dst or outside)), odd or size, odd=bool(odd))
            )
        if self._any_outside():
            slots.append(plot.Slot("", [[Tile("", kind="empty", width=plot.WIDTH)] for _ in range(n)]))
        return plot.Picture(title(step, self.count), slots, arrows)

    def _any_outside(self) -> bool:
        ops = [op for m in self.record.messages for op in (m.send, m.recv)]
        return any(op is None or self._place(op) is None for op in ops)

    def _place(self, op: Op | None) -> tuple[int, int, int] | None:
        """Return (slot, first chunk, how many chunks) of an operation's tensor in the picture, None outside of it."""
        place = self.replay.place(op)
        if place is None or op is None:
            return None
        for s, (_, indices, bounds) in enumerate(self.slots):
            if indices.get(op.rank) == place[0]:
                covered = [i for i, (a, b) in enumerate(pairwise(bounds)) if place[1] < b and a < place[1] + place[2]]
                return (s, covered[0], len(covered)) if covered else None
        return None


def size(pictures: Sequence[plot.Picture]) -> tuple[int, float]:
    """Return the lanes and the margin with which each of these pictures has one size."""
    return max(map(plot.lanes, pictures)), plot.margin(pictures)


def scene(film: Film) -> str:
    """Return a film as a notebook keeps it, for `frames`, in JSON; each tile and each row of them is told once."""
    tiles: dict[tuple[Any, ...], int] = {}
    rows: dict[tuple[int, ...], int] = {}

    def row(shown: Sequence[Tile]) -> int:
        each = (tiles.setdefault((t.text, t.label, t.shares, t.kind, t.badge), len(tiles)) for t in shown)
        return rows.setdefault(tuple(each), len(rows))

    steps = [
        [
            film.told(k),
            [[row(shown) for shown in slot.tiles] for slot in picture.slots],
            [[*a.src, *a.dst, a.text, a.odd] for a in picture.arrows],
        ]
        for k, picture in enumerate(film.pictures)
    ]
    names = [slot.name for slot in film.pictures[0].slots]
    told = {"slots": names, "tiles": [*tiles], "rows": [*rows], "steps": steps}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def frames(kept: str) -> list[str]:
    """Draw a film that a notebook has kept: an image for each step."""
    scene = json.loads(kept)
    tiles = [
        Tile(text, label, tuple((r, times) for r, times in shares), kind=kind, badge=badge, width=plot.WIDTH)
        for text, label, shares, kind, badge in scene["tiles"]
    ]
    rows = [[tiles[i] for i in row] for row in scene["rows"]]
    last = len(scene["steps"]) - 1
    pictures = [
        plot.Picture(
            title(k, last),
            [plot.Slot(name, [rows[i] for i in held]) for name, held in zip(scene["slots"], slots, strict=True)],
            [plot.Arrow(tuple(a[:4]), tuple(a[4:8]), *a[8:]) for a in arrows],
        )
        for k, (_, slots, arrows) in enumerate(scene["steps"])
    ]
    drawn = [svg.svg(plot.draw([picture], 1, *size(pictures))) for picture in pictures]
    return [svg.img(picture, told) for picture, (told, *_) in zip(drawn, scene["steps"], strict=True)]


def title(step: int, count: int) -> str:
    """Name a step of so many: "step 1 of 6", and after the last one "after step 6"."""
    return f"step {step + 1} of {count}" if step < count else f"after step {count}"


def _aligned(replay: Replay) -> list[tuple[str, dict[int, int], list[int]]]:
    """Join the ranks' slots of one name and size: (name, rank → its slot, where its chunks begin and end)."""
    found: dict[tuple[str, int, int], dict[int, int]] = {}  # name, size, number among a rank's slots like that
    for r, slots in enumerate(replay.slots):
        for i, slot in enumerate(slots):
            nth = sum((s.name, s.size) == (slot.name, slot.size) for s in slots[:i])
            found.setdefault((slot.name, slot.size, nth), {})[r] = i
    aligned = []
    sent = {(o.rank, p[0]) for mine in replay.record.ops for o in mine if o.kind == "send" and (p := replay.place(o))}
    for (name, size, _), indices in sorted(
        found.items(), key=lambda f: (f[0][0] in BOXES, f[0][0] == "buffer", not sent & set(f[1].items()))
    ):
        bounds = {0, size}
        for mine in replay.record.ops:
            for op in mine:
                place = replay.place(op)
                if place is not None and indices.get(op.rank) == place[0]:
                    bounds |= {place[1], place[1] + place[2]}
        several = sum(other == name for other, *_ in found) > 1
        said = f"{name} [{size}]" if several else name  # such as the inboxes for a half and for a quarter
        aligned.append((said, indices, sorted(bounds) if len(bounds) <= MOST + 1 else [0, size]))
    return aligned


def _tile(elements: Sequence[Element]) -> Tile:
    """Return a chunk as one tile."""
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
        for (r, _), times in origin.counts.items() if origin else ():
            shares[r] = max(shares.get(r, 0), times)
    most = max(shares.values(), default=1)
    who = spans(shares, ", ")
    label = f"of {who}" if len(shares) < 2 else f"Σ {who}"
    badge = f"{most}×" if most > 1 else ""
    return Tile(said, label, tuple(sorted(shares.items())), badge=badge, width=plot.WIDTH)


def _value(element: Element) -> str:
    return "–" if element.value is None else short(element.value)


def _size(op: Op) -> str:
    if op.shape is None:
        return "an object"
    shape = "×".join(map(str, op.shape)) or "1"
    return f"{shape} {op.dtype}"
