"""Show for each call which ranks wait for the one that comes late: `lab.late`. No torch, no cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.floor.words import ranks
from labkit.show.picture import Picture
from labkit.theory.record import Record
from workbook.tools.late import plot


@dataclass(frozen=True)
class Lateness:
    """One statement: `states[r]` is "late", "waits", "goes on", or "" where rank r has no part in it."""

    call: str
    states: tuple[str, ...]


class Late(Picture):
    """Who waits for the late rank, a row for each call and a column for each rank; it displays itself as a picture.

    `rows[i].call` is the code, `rows[i].states[r]` "late", "waits", "goes on" or "" (no part in it). A rank that
    waits was still in the call when the late one came; one that goes on had left it by then.
    """

    def __init__(self, rank: int, n: int, rows: Sequence[Lateness]) -> None:
        self.rank, self.n, self.rows = rank, n, list(rows)

    def waiting(self, call: str) -> list[int]:
        """Return the ranks that waited in the first call whose code contains this text: `late.waiting("broadcast")`."""
        for row in self.rows:
            if call in row.call:
                return [r for r, state in enumerate(row.states) if state == "waits"]
        raise LookupError(f"no call here contains {call!r}")

    def __repr__(self) -> str:
        wide = max([len(r.call) for r in self.rows], default=0)
        lines = [f"{'rank ' + str(self.rank) + ' comes late':<{wide}}  " + _columns(f"rank {r}" for r in range(self.n))]
        lines += [f"{row.call:<{wide}}  " + _columns(s or "–" for s in row.states) for row in self.rows]
        return "\n".join(line.rstrip() for line in lines)

    def _drawn(self) -> Any:
        rows = [(row.call, row.states) for row in self.rows]
        return plot.draw(rows, self.n, self.rank)

    @property
    def alt(self) -> str:
        """The picture in words."""
        told = []
        for row in self.rows:
            waits = [r for r, s in enumerate(row.states) if s == "waits"]
            free = [r for r, s in enumerate(row.states) if s == "goes on"]
            parts = [f"{ranks(waits)} {'waits' if len(waits) == 1 else 'wait'}"] * bool(waits)
            parts += [f"{ranks(free)} {'goes' if len(free) == 1 else 'go'} on"] * bool(free)
            told.append(f"{row.call}: {', '.join(parts) or 'no other rank takes part'}")
        return f"Rank {self.rank} comes late. {'. '.join(told)}."


def _columns(words: Iterable[str]) -> str:
    return "".join(f"{w:<9}" for w in words)


def states(record: Record, late: int) -> tuple[str, ...]:
    """Return for each rank whether it was still in the call when the late rank came to it, or had left.

    Where only the process group noted the call, its end is unknown: then the statement's end counts.
    """
    came = min((op.entered for op in record.ops[late]), default=None)
    found = []
    for r, mine in enumerate(record.ops):
        over = record.logs[r].ended
        ends = [over if op.witnessed else op.left if op.ended is None else op.ended for op in mine]
        if not mine:
            found.append("")
        elif r == late:
            found.append("late")
        elif came is not None and any(end is None or end >= came for end in ends):
            found.append("waits")
        else:
            found.append("goes on")
    return tuple(found)
