"""The ten lines in another system's words: the lines, what each rank held after every call, and where that is from."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from labkit.floor.words import listed
from labkit.show import markdown
from labkit.show.table import cell, row, table
from workbook.tools.elsewhere.ten_lines import System, Told, expected, ten_lines

LINES = "line-height: 1.35; padding: 4px; margin: 0 0 6px; overflow-x: auto"


class TenLines:
    """A program's ten lines and what it printed, beside what every system must print.

    Args:
        system: whose words these are.
        source: the program.
        told: what it printed.
        seconds: how long it ran just now; 0 where nothing ran.
    """

    def __init__(self, system: System, source: str, told: Told, seconds: float = 0.0) -> None:
        self.system, self.source, self.told, self.seconds = system, source, told, seconds

    @property
    def title(self) -> str:
        """Whose they are, and whether they ran here."""
        if not self.told.recorded:
            took = f"{self.seconds:.0f} s" if self.seconds >= 0.5 else "less than a second"
            return f"{self.system.title}: run just now, in {took}, by {self.told.about}"
        return f"{self.system.title}: recorded on {self.told.recorded}"

    @property
    def verdict(self) -> str:
        """Whether the numbers are those of the other systems."""
        if wrong := self.told.wrong:
            return f"Not as in the other systems: {listed(wrong)}."
        absent = [call for call in expected(self.told.n) if call not in self.told.ran]
        return "Every line says what it must." + (f" Absent: {listed(absent)}." if absent else "")

    @property
    def remedy(self) -> str:
        """How to run it here; "" where it just ran."""
        if not self.told.recorded:
            return ""
        how = "It did not run now. To run it here, enter this in a terminal, and run the cell again:"
        return f"{how} `{self.system.install}`"

    @property
    def _rows(self) -> list[tuple[str, list[Any] | str]]:
        return [(call, self.told.rows[call]) for call in expected(self.told.n) if call in self.told.rows]

    def __repr__(self) -> str:
        lines = [self.title, "", ten_lines(self.source), ""]
        for call, held in self._rows:
            said = f"absent: {held}" if isinstance(held, str) else "  ".join(_held(x) for x in held)
            lines.append(f"{call:15} {said}")
        return "\n".join([*lines, self.verdict, *filter(None, [self.remedy])])

    def _repr_html_(self) -> str:
        n = self.told.n
        rows = []
        for call, held in self._rows:
            if isinstance(held, str):
                rows.append(row(escape(call), [cell(f"absent: {escape(held)}", "absent", n)]))
            else:
                rows.append(row(escape(call), [cell(escape(_held(x)), "held") for x in held]))
        columns = ["call", *(f"rank {r}" for r in range(n))]
        remedy = markdown.html(self.remedy) if self.remedy else ""
        return (
            f"<div class='labkit-ten-lines'><p>{escape(self.title)}</p>"
            f"<pre style='{LINES}'>{escape(ten_lines(self.source))}</pre>"
            f"{table('ten-lines', '', columns, rows)}<p>{escape(self.verdict)}</p>{remedy}</div>"
        )


def _held(x: Sequence[float] | None) -> str:
    """What a rank holds, in few letters: whole numbers without their point."""
    return "–" if x is None else ", ".join(f"{v:g}" for v in x)
