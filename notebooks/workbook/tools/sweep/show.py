"""Show what `lab.sweep` measured: times and bandwidths over sizes, as rows, a table and a picture. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Any

from labkit.floor.errors import LabError
from labkit.floor.words import nbytes, seconds
from labkit.show.picture import Picture
from labkit.show.table import cell, row, table
from labkit.theory.samples import Timing
from workbook.tools import timing
from workbook.tools.sweep import plot
from workbook.tools.sweep.fit import Fit, fit
from workbook.tools.sweep.plot import Curves, inverse, rate

COLUMNS = ("size", "time, median", "min", "p90", "algbw", "busbw", "memory copy")


@dataclass(frozen=True)
class Row:
    """One size: times in seconds per call, bandwidths in GB/s (10⁹ bytes per second); `nbytes` is nccl-tests' S.

    A barrier has no bytes, and None for all bandwidths. `right` says that the result was checked and was right.
    """

    op: str
    n: int
    nbytes: int
    timing: Timing
    copied: Timing | None
    right: bool

    def and_(self, later: Row) -> Row:
        """Return the row with the repetitions of a later pass added."""
        copied = self.copied and later.copied and self.copied.and_(later.copied)
        return replace(self, timing=self.timing.and_(later.timing), copied=copied, right=self.right and later.right)

    @property
    def median(self) -> float:
        """The median repetition's slowest rank, in seconds per call."""
        return self.timing.median

    @property
    def min(self) -> float:
        """The fastest repetition's slowest rank, in seconds per call."""
        return self.timing.min

    @property
    def p90(self) -> float:
        """A tenth of the repetitions took longer, in seconds per call."""
        return self.timing.p90

    @property
    def algbw(self) -> float | None:
        """S over the median time, in GB/s."""
        return timing.algbw(self.nbytes, self.median) if self.nbytes else None

    @property
    def busbw(self) -> float | None:
        """algbw times nccl-tests' factor for this operation and number of ranks, in GB/s."""
        return timing.busbw(self.op, self.n, self.nbytes, self.median) if self.nbytes else None

    @property
    def copy(self) -> float | None:
        """What each rank copies in its own memory, as many bytes and all ranks at once, in GB/s."""
        return timing.algbw(self.nbytes, self.copied.median) if self.copied else None


@dataclass(eq=False, repr=False)
class Sweep(Picture):
    """An operation timed over sizes: `rows`, the fitted α and β, and the limit that copying memory sets.

    Times are seconds per call (the median repetition's slowest rank), bandwidths GB/s, that is 10⁹ bytes per second.
    `where` says on what it was measured, `note` why sizes are missing, `right` whether all results were right.
    """

    op: str
    n: int
    dtype: str
    where: str
    rows: list[Row]
    note: str = ""

    @property
    def right(self) -> bool:
        """Whether every size's result was checked, outside the clock, and was right."""
        return all(r.right for r in self.rows)

    @cached_property
    def fit(self) -> Fit:
        """Fit T = α + β · S to the medians, with the least relative error; see `workbook.tools.sweep.fit`.

        Raises `LabError` for a barrier, or where fewer than two sizes were measured.
        """
        if self.op == "barrier":
            raise LabError("A barrier has one time and no bytes to fit. Look at sweep.rows[0].")
        return fit([r.nbytes for r in self.rows], [r.median for r in self.rows])

    # -- how it shows itself --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        cells = [self._columns, *(self._cells(r) for r in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
        return "\n".join([self._title, *lines, *self._notes])

    def _repr_html_(self) -> str:
        rows = [row(first, [cell(c, "time") for c in rest]) for first, *rest in map(self._cells, self.rows)]
        notes = "".join(f"<p>{escape(n)}</p>" for n in self._notes)
        drawn = super()._repr_html_() if len(self.rows) > 1 else ""
        return drawn + table("sweep", escape(self._title), self._columns, rows) + notes

    @property
    def alt(self) -> str:
        """The picture in words."""
        told = [f"{nbytes(r.nbytes)}: {seconds(r.median)}, {rate(r.busbw)}" for r in self.rows if r.busbw]
        return f"{self._title}. Time and {self._rate} over sizes. {'; '.join(told)}. {' '.join(self._notes)}"

    @property
    def _letters(self) -> tuple[str, str]:
        """α and β are one message's prices; a collective is made of several, and its line has its own two."""
        return ("α", "β") if self.op == "send_recv" else ("a", "b")

    @property
    def _rate(self) -> str:
        """One message is not compared with other operations: its bytes by its time are all that is asked."""
        return "bandwidth S / t" if self.op == "send_recv" else "bus bandwidth"

    @property
    def _columns(self) -> tuple[str, ...]:
        few = {"barrier": COLUMNS[:4], "send_recv": (*COLUMNS[:4], "S / t")}
        return few.get(self.op, COLUMNS)

    @property
    def _title(self) -> str:
        return f"{self.op}, {self.dtype}: {self.where}" if self.op != "barrier" else f"{self.op}: {self.where}"

    def _cells(self, r: Row) -> list[str]:
        times = [seconds(t) for t in (r.median, r.min, r.p90)]
        if self.op == "barrier":
            return ["–", *times]
        wrong = "" if r.right else " ✗"
        rates = (r.algbw, r.busbw, r.copy)[: len(self._columns) - 4]
        return [nbytes(r.nbytes) + wrong, *times, *(rate(b) for b in rates if b)]

    @property
    def _notes(self) -> list[str]:
        notes = [self.note] if self.note else []
        if len(self.rows) > 1:
            line = self.fit
            a, b = self._letters
            notes.append(
                f"Fitted T = {a} + {b} · S: {a} = {seconds(line.alpha)}, {inverse(line.beta, b)}; "
                f"off by {100 * line.worst:.0f} % at most."
            )
        if self.op == "send_recv":
            notes.append("S is what one rank sends, and GB/s = 10⁹ bytes per second.")
        elif self.op != "barrier":
            what, factor = timing.convention(self.op)
            notes.append(f"{what}; algbw = S / t, busbw = algbw × {factor}, GB/s = 10⁹ bytes per second (nccl-tests).")
        wrong = [nbytes(r.nbytes) for r in self.rows if not r.right]
        notes.append("Every result was checked and is right." if not wrong else f"✗ Wrong results: {', '.join(wrong)}.")
        return notes

    def _drawn(self) -> Any:
        line = self.fit
        curves = Curves(
            title=self._title,
            sizes=[r.nbytes for r in self.rows],
            times=[(r.min, r.median, r.p90) for r in self.rows],
            busbw=[r.busbw or 0.0 for r in self.rows],
            copy=[r.copy or 0.0 for r in self.rows],
            alpha=line.alpha,
            beta=line.beta,
            factor=timing.busbw_factor(self.op, self.n),
            letters=self._letters,
            rate=self._rate,
        )
        return plot.draw(curves)
