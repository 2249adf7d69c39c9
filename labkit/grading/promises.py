"""What a card promises of the calls beyond the result: whom a rank sends to, how many times, in which dtype.

>>> ring = (OnlyTo(+1), Messages(lambda n: n - 1))

Each is held against the record of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from labkit.floor.words import count, listed
from labkit.theory.log import Op
from labkit.theory.primitives import find
from labkit.theory.record import Record

NEIGHBOURS = {1: "the next rank", -1: "the rank before it"}


class Promise(Protocol):
    """Something that a run keeps or breaks."""

    def broken(self, record: Record) -> str:
        """Say who breaks it and where; "" where it is kept."""


@dataclass(frozen=True)
class OnlyTo:
    """A rank sends only to the one `step` further on in the circle of the group's ranks, or to the `other` one."""

    step: int
    other: int | None = None

    def broken(self, record: Record) -> str:
        steps = [self.step] if self.other is None else [self.step, self.other]
        allowed = " or ".join(NEIGHBOURS.get(s, f"the rank {s} further on") for s in steps)
        for op in record.calls:
            place = op.ranks.index(op.rank)
            if op.kind == "send" and op.peer not in [op.ranks[(place + s) % len(op.ranks)] for s in steps]:
                return f"Rank {op.rank} sends to rank {op.peer}{op.at}, and may only send to {allowed}."
        return ""


@dataclass(frozen=True)
class Messages:
    """A rank sends so many messages at most, a number or a function of the number of ranks; or none, or `least`."""

    most: int | Callable[[int], float]
    least: int = 0

    def broken(self, record: Record) -> str:
        most = self.most(record.n) if callable(self.most) else self.most
        for r, mine in enumerate(record.ops):
            sends = [op for op in mine if op.kind == "send"]
            said = f"Rank {r} sends {count(len(sends), 'message')}{_at(*sends)}"
            if len(sends) > most:
                return f"{said}, and {enough(most)}."
            if 0 < len(sends) < self.least:
                return f"{said}, and {self.least} are asked for."
        return ""


@dataclass(frozen=True)
class Calls:
    """A rank makes so many calls that communicate at most."""

    most: int

    def broken(self, record: Record) -> str:
        for r, mine in enumerate(record.ops):
            if len(mine) > self.most:
                names = listed(list(dict.fromkeys(op.called for op in mine)))
                times = f"{count(len(mine), 'call')} that communicate{'s' * (len(mine) == 1)}, {names}{_at(*mine)}"
                return f"Rank {r} makes {times}, and {enough(self.most)}."
        return ""


@dataclass(frozen=True)
class Once:
    """A rank communicates by these functions only, in any of torch's spellings, and by each of them once at most."""

    names: tuple[str, ...]

    def broken(self, record: Record) -> str:
        enough = f"{listed(self.names)} {'does' if len(self.names) == 1 else 'do'} it, called once"
        known = {p.name for p in map(find, self.names) if p is not None}
        for r, mine in enumerate(record.ops):
            by_primitive: dict[str, list[Op]] = {}
            for op in mine:
                by_primitive.setdefault(op.primitive.name if op.primitive else op.op, []).append(op)
            for primitive, ops in by_primitive.items():
                if primitive not in known:
                    return f"Rank {r} calls {ops[0].called}{ops[0].at}; {enough}."
                if len(ops) > 1:
                    return f"Rank {r} calls {ops[0].called} {len(ops)} times{_at(*ops)}; {enough}."
        return ""


def enough(most: float) -> str:
    """Say how many of something are enough."""
    return "none is needed" if most == 0 else f"{most:.0f} {'is' if most == 1 else 'are'} enough"


def _at(*ops: Op) -> str:
    """Say where these calls stand: " (line 4, line 5)"."""
    places = list(dict.fromkeys(op.place for op in ops if op.place))
    return f" ({'; '.join(places)})" if places else ""
