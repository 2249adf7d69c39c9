"""What an exercise's card promises of the calls beyond the result: whom a rank sends to, how often, in which dtype.

>>> ring = (OnlyTo(+1), Messages(lambda n: n - 1))

Each is held against the record of a run. Neither torch nor a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from labkit.theory.primitives import find
from labkit.theory.record import Op, Record
from labkit.words import count, listed

NEIGHBOURS = {1: "the next rank", -1: "the rank before it"}


class Promise(Protocol):
    """Something that a run keeps or breaks."""

    def broken(self, record: Record, dtypes: Sequence[str]) -> str:
        """Who breaks it and where, in a sentence; "" where it is kept.

        `dtypes[r]` is the dtype of the tensor that rank r returned, "" where it returned something else.
        """


@dataclass(frozen=True)
class OnlyTo:
    """A rank sends only to the one `step` further on in the circle of the group's ranks."""

    step: int

    def broken(self, record: Record, dtypes: Sequence[str]) -> str:
        """ "Rank 1 sends to rank 0 (line 5), and only to the next rank it may." """
        allowed = NEIGHBOURS.get(self.step, f"the rank {self.step} further on")
        for op in (op for mine in record.ops for op in mine):
            if op.kind == "send" and op.peer != _further(op, self.step):
                return f"Rank {op.rank} sends to rank {op.peer}{_at(op)}, and may only send to {allowed}."
        return ""


@dataclass(frozen=True)
class Messages:
    """A rank sends so many messages at most; `most` is a number, or a function of the number of ranks."""

    most: int | Callable[[int], float]

    def broken(self, record: Record, dtypes: Sequence[str]) -> str:
        """ "Rank 0 sends 3 messages (line 4, line 5), and 1 is enough." """
        most = self.most(record.n) if callable(self.most) else self.most
        for r, mine in enumerate(record.ops):
            sends = [op for op in mine if op.kind == "send"]
            if len(sends) > most:
                return f"Rank {r} sends {count(len(sends), 'message')}{_at(*sends)}, and {most:.0f} is enough."
        return ""


@dataclass(frozen=True)
class Calls:
    """A rank makes so many calls that communicate at most."""

    most: int

    def broken(self, record: Record, dtypes: Sequence[str]) -> str:
        """ "Rank 0 calls dist.all_reduce twice (line 4, line 5), and 1 call is enough." """
        for r, mine in enumerate(record.ops):
            if len(mine) > self.most:
                names = listed(list(dict.fromkeys(op.called for op in mine)))
                times = f"{count(len(mine), 'call')} that communicate, {names}{_at(*mine)}"
                return f"Rank {r} makes {times}, and {self.most} is enough."
        return ""


@dataclass(frozen=True)
class Once:
    """A rank communicates by these functions only, in any of torch's spellings, and by each of them once at most."""

    names: tuple[str, ...]

    def broken(self, record: Record, dtypes: Sequence[str]) -> str:
        """ "Rank 0 calls dist.reduce twice (line 4, line 5); reduce and broadcast do it, once each." """
        enough = f"{listed(self.names)} {'does' if len(self.names) == 1 else 'do'} it, called once"
        known = {p.name for p in map(find, self.names) if p is not None}
        for r, mine in enumerate(record.ops):
            by_primitive: dict[str, list[Op]] = {}
            for op in mine:
                by_primitive.setdefault(op.primitive.name if op.primitive else op.op, []).append(op)
            for primitive, ops in by_primitive.items():
                if primitive not in known:
                    return f"Rank {r} calls {ops[0].called}{_at(ops[0])}; {enough}."
                if len(ops) > 1:
                    return f"Rank {r} calls {ops[0].called} {len(ops)} times{_at(*ops)}; {enough}."
        return ""


@dataclass(frozen=True)
class Root:
    """Where a collective has a root, it is this rank, numbered as torch numbers the ranks of the world."""

    rank: int

    def broken(self, record: Record, dtypes: Sequence[str]) -> str:
        """ "Rank 0 calls dist.reduce with rank 1 as the root (line 4), and rank 0 is asked for." """
        for op in (op for mine in record.ops for op in mine):
            if op.kind == "collective" and op.peer not in (None, self.rank):
                named = f"calls {op.called} with rank {op.peer} as the root{_at(op)}"
                return f"Rank {op.rank} {named}, and rank {self.rank} is asked for."
        return ""


@dataclass(frozen=True)
class Travels:
    """What the ranks send or reduce has this dtype."""

    dtype: str

    def broken(self, record: Record, dtypes: Sequence[str]) -> str:
        """ "Rank 0 brings float32 to dist.all_reduce (line 4), and float64 is asked for." """
        for op in (op for mine in record.ops for op in mine):
            if op.kind != "recv" and op.dtype not in (None, self.dtype):
                return f"Rank {op.rank} brings {op.dtype} to {op.called}{_at(op)}, and {self.dtype} is asked for."
        return ""


@dataclass(frozen=True)
class Returns:
    """Every rank returns a tensor of this dtype."""

    dtype: str

    def broken(self, record: Record, dtypes: Sequence[str]) -> str:
        """ "Rank 0 returns float32, and float64 is asked for." """
        for r, dtype in enumerate(dtypes):
            if dtype != self.dtype:
                return f"Rank {r} returns {dtype or 'no tensor'}, and {self.dtype} is asked for."
        return ""


def _further(op: Op, step: int) -> int:
    place = op.ranks.index(op.rank)
    return op.ranks[(place + step) % len(op.ranks)]


def _at(*ops: Op) -> str:
    """Where these calls stand: " (line 4, line 5)"."""
    places = list(dict.fromkeys(op.place for op in ops if op.place))
    return f" ({'; '.join(places)})" if places else ""
