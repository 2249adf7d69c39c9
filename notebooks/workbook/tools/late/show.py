"""Show for each call which ranks wait for the one that comes late: `lab.late`. No torch, no cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from labkit.floor.words import ranks
from labkit.plot import svg
from workbook.tools.late import plot as picture
from workbook.tools.late.lateness import Lateness


class Late:
    """Who waits for the late rank, a row a call and a column a rank; it displays itself as a picture.

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

    def _repr_html_(self) -> str:
        return svg.img(self.svg, self.alt)

    @property
    def svg(self) -> bytes:
        """The picture; equal results give equal bytes."""
        rows = [(row.call, row.states) for row in self.rows]
        return svg.svg(picture.draw(rows, self.n, self.rank))

    @property
    def alt(self) -> str:
        """The picture in words."""
        told = []
        for row in self.rows:
            waits = [r for r, s in enumerate(row.states) if s == "waits"]
            free = [r for r, s in enumerate(row.states) if s == "goes on"]
            parts = [f"{ranks(waits)} {'waits' if len(waits) == 1 else 'wait'}"] * bool(waits)
            parts += [f"{ranks(free)} {'goes' if len(free) == 1 else 'go'} on"] * bool(free)
            told.append(f"{row.call}: {', '.join(parts) or 'nobody else has a part in it'}")
        return f"Rank {self.rank} comes late. {'. '.join(told)}."


def _columns(words: Iterable[str]) -> str:
    return "".join(f"{w:<9}" for w in words)
