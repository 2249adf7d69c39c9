"""`Elsewhere("tensorflow")`: the ten lines in another system's words, run where it is installed, else as recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

from labkit.floor.words import listed
from labkit.show import markdown
from labkit.show.table import cell, row, table
from workbook.tools.elsewhere import programs
from workbook.tools.elsewhere.ten_lines import expected, find, read, ten_lines

MONO = "font-family: monospace"
LINES = f"{MONO}; line-height: 1.35; padding: 4px; margin: 0 0 6px; overflow-x: auto"


class Elsewhere:
    """One training step and every call once, by another system, on ranks of its own.

    >>> Elsewhere("mpi").told.wrong
    []

    TensorFlow and DeepSpeed run in environments of their own, `.venv-tf` and `.venv-ds`, in this folder or one above.
    Where there is none, what the program printed when it was recorded is shown, with the command that makes the
    environment. TensorFlow's workers listen on all network interfaces of this host while they run.

    Args:
        name: "torch", "mpi", "tensorflow" or "deepspeed".
        recorded: show the record even where the system is installed.

    Raises `LabError` for another name, and where the program fails.
    """

    def __init__(self, name: str, recorded: bool = False) -> None:
        self.system = find(name)
        self.source = programs.source(self.system)
        began = time.monotonic()
        recorded = recorded or not programs.python(self.system)
        self.told = programs.record(self.system) if recorded else read(programs.run(self.system))
        self.seconds = time.monotonic() - began

    @property
    def title(self) -> str:
        """The system, and whether it ran here."""
        if not self.told.recorded:
            took = f"{self.seconds:.0f} s" if self.seconds >= 0.5 else "less than a second"
            return f"{self.system.title}: run just now, in {took}, by {self.told.about}"
        return f"{self.system.title}: recorded on {self.told.recorded}"

    @property
    def verdict(self) -> str:
        """A sentence on whether the numbers are those of the other systems."""
        if wrong := self.told.wrong:
            return f"Different from the other systems: {listed(wrong)}."
        absent = [call for call in expected(self.told.n) if call not in self.told.ran]
        return "All results are the same as in the other systems." + (f" Absent: {listed(absent)}." if absent else "")

    @property
    def remedy(self) -> str:
        """The command that makes it run here; "" where it just ran."""
        if not self.told.recorded:
            return ""
        how = "It did not run just now. To run it here, enter this in a terminal, and run the cell again:"
        return f"{how} `{self.system.install}`"

    @property
    def _rows(self) -> list[tuple[str, list[str]]]:
        """For each call a cell for each rank, or one cell that says why the call is absent."""
        rows = []
        for call in expected(self.told.n):
            if call in self.told.rows:
                held = self.told.rows[call]
                rows.append((call, [f"absent: {held}"] if isinstance(held, str) else list(map(_held, held))))
        return rows

    def __repr__(self) -> str:
        lines = [self.title, "", ten_lines(self.source), ""]
        lines += [f"{call:15} {'  '.join(cells)}" for call, cells in self._rows]
        return "\n".join([*lines, self.verdict, *filter(None, [self.remedy])])

    def _repr_html_(self) -> str:
        n = self.told.n
        rows = []
        for call, cells in self._rows:
            kind, span = ("held", 1) if call in self.told.ran else ("absent", n)
            said = [f"<span style='{MONO}'>{escape(c)}</span>" for c in cells]
            rows.append(row(escape(call), [cell(each, kind, span) for each in said]))
        columns = ["call", *(f"rank {r}" for r in range(n))]
        remedy = markdown.html(self.remedy) if self.remedy else ""
        return (
            f"<div class='labkit-ten-lines'><p>{escape(self.title)}</p>"
            f"<pre style='{LINES}'>{escape(ten_lines(self.source))}</pre>"
            f"{table('ten-lines', '', columns, rows)}<p>{escape(self.verdict)}</p>{remedy}</div>"
        )


def _held(x: Sequence[float] | None) -> str:
    """Return what a rank holds, whole numbers without their point."""
    return "–" if x is None else ", ".join(f"{v:g}" for v in x)
