"""Count what every rank sends and receives in each of some lines, for a table. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from labkit.show.table import cell, row, table

if TYPE_CHECKING:
    from labkit.lab import Lab
    from labkit.show.wire import Wire

CAPTION = "MiB sent · MiB received"
WIDTH = 16


class Tally:
    """What each rank sent and received, line by line, as `lab.wire` counted it; it displays itself as a table."""

    def __init__(self, wires: Mapping[str, Wire]) -> None:
        self._n = max(wire.n for wire in wires.values())
        self._rows = {code: _told(wire) for code, wire in wires.items()}
        self._why = sorted({wire.why for wire in wires.values() if wire.why})

    @property
    def _notes(self) -> list[str]:
        return [f"– was not counted: {why}." for why in self._why]

    def __repr__(self) -> str:
        wide = max(map(len, (CAPTION, *self._rows))) + 2
        rows = {CAPTION: [f"rank {r}" for r in range(self._n)], **self._rows}
        lines = [code.ljust(wide) + "".join(text.ljust(WIDTH) for text in told) for code, told in rows.items()]
        return "\n".join([*(line.rstrip() for line in lines), *self._notes])

    def _repr_html_(self) -> str:
        rows = [
            row(f"<code>{escape(code)}</code>", [cell(t, "cost") for t in told]) for code, told in self._rows.items()
        ]
        notes = "".join(f"<div>{escape(note)}</div>" for note in self._notes)
        return table("tally", CAPTION, ["", *(f"rank {r}" for r in range(self._n))], rows) + notes


def tally(lab: Lab, *lines: str) -> Tally:
    """Run each line on all ranks, and show what every rank sent and received in it.

    >>> tally(lab, "dist.broadcast(x, src=0)", "dist.reduce(x, dst=0)")
    """
    return Tally({line: lab.wire(line) for line in lines})


def _told(wire: Wire) -> list[str]:
    sent, received = (_mib(counted, wire.n) for counted in (wire.sent, wire.received))
    return [f"{sent[r]} · {received[r]}" for r in range(wire.n)]


def _mib(counted: Sequence[float] | None, n: int) -> list[str]:
    return ["–"] * n if counted is None else [f"{of / 2**20:.1f}" for of in counted]
