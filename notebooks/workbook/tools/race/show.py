"""A race and what it shows: a table by size with the fastest marked, a picture of the ratios, what does not count."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from statistics import median
from typing import Any

from labkit.floor.words import nbytes, seconds
from labkit.show.picture import Picture
from labkit.show.table import cell, row, table
from workbook.tools.race import plot

REFERENCE = "dist.all_reduce(x)"
MPI = "MPI"
COPY = "one copy of S"  # no contestant: each rank copies as many bytes in its own memory, all at once
FIRST = "★"
NONE = "–"


@dataclass(frozen=True)
class Lap:
    """One contestant at one size: the slowest rank's seconds per call in each repetition, or why they do not count."""

    samples: tuple[float, ...] = ()
    why: str = ""


@dataclass(eq=False, repr=False)
class Race(Picture):
    """A scoreboard by size: medians of the slowest rank's time, how they compare with `dist.all_reduce`, the fastest.

    What was wrong, raised an error or did not finish has no time. `laps` are by contestant and size in bytes;
    `out` says why a contestant counts nowhere, `note` why laps are missing.
    """

    names: list[str]
    sizes: list[int]
    n: int
    where: str
    dtype: str = "float32"
    laps: dict[tuple[str, int], Lap] = field(default_factory=dict)
    out: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def add(self, name: str, size: int, lap: Lap) -> None:
        """Put a turn's repetitions to those before."""
        before = self.laps.get((name, size), Lap())
        self.laps[name, size] = Lap(before.samples + lap.samples, before.why or lap.why)

    def median(self, name: str, size: int) -> float | None:
        """Return the median repetition in seconds per call; None where there is none, or where its result was wrong."""
        lap = self.laps.get((name, size))
        return median(lap.samples) if lap and lap.samples and not lap.why and name not in self.out else None

    def fastest(self, size: int) -> str | None:
        """Return the contestant with the shortest median at this size; None where no time counts."""
        times = {name: time for name in self.names if (time := self.median(name, size))}
        return min(times, key=lambda name: times[name]) if times else None

    def ratio(self, name: str, size: int) -> float | None:
        """Return how many times as fast as `dist.all_reduce` it is at this size, by medians.

        >>> race = Race([REFERENCE, "mine"], [4], 2, "")
        >>> race.add(REFERENCE, 4, Lap((3.0, 4.0, 6.0))); race.add("mine", 4, Lap((1.0, 1.0, 4.0)))
        >>> race.ratio("mine", 4)
        4.0
        """
        mine, other = self.median(name, size), self.median(REFERENCE, size)
        return other / mine if mine and other else None

    @property
    def right(self) -> bool:
        """Whether every contestant was right at every size."""
        wrong = [name for name in self.names if name in self.out]
        return not wrong and not any(lap.why for lap in self.laps.values())

    # -- how it shows itself --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        lines = [["size", *self._shown]]
        lines += [[nbytes(s), *(self._cell(name, s) for name in self._shown)] for s in self.sizes]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        told = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([self._title, *told, *self._notes])

    def _repr_html_(self) -> str:
        def shown(name: str, size: int) -> str:
            told = escape(_unbroken(self._cell(name, size)))
            return cell(f"<b>{told}</b>" if name == self.fastest(size) else told, "time")

        rows = [row(_unbroken(nbytes(s)), [shown(name, s) for name in self._shown]) for s in self.sizes]
        notes = "".join(f"<p>{escape(n)}</p>" for n in self._notes)
        columns = [f"<code>{escape(c)}</code>" if c.endswith(")") else escape(c) for c in ("size", *self._shown)]
        drawn = super()._repr_html_() if self._ratios and len(self.sizes) > 1 else ""
        return drawn + table("race", "" if drawn else escape(self._title), columns, rows) + notes

    def _drawn(self) -> Any:
        return plot.draw(self._title, REFERENCE, self._ratios)

    @property
    def alt(self) -> str:
        """The picture in words."""
        told = [
            f"{name}: " + ", ".join(f"{ratio:.2g} times at {nbytes(size)}" for size, ratio in mine.items())
            for name, mine in self._ratios.items()
        ]
        return f"{self._title}. How many times as fast as {REFERENCE}. {'; '.join(told)}. {' '.join(self._notes)}"

    @property
    def _title(self) -> str:
        return f"A race of all-reduces, {self.dtype}: {self.where}"

    @property
    def _shown(self) -> list[str]:
        return [*self.names, COPY]

    @property
    def _ratios(self) -> dict[str, dict[int, float]]:
        """The ratios that are drawn: of all contestants but the reference. A copy is none, and far faster."""
        ratios = {
            name: {s: ratio for s in self.sizes if (ratio := self.ratio(name, s)) is not None}
            for name in self.names
            if name != REFERENCE
        }
        return {name: mine for name, mine in ratios.items() if mine}

    def _cell(self, name: str, size: int) -> str:
        time = self.median(name, size)
        if time is None:
            known = self.laps.get((name, size))
            return "✗" if name in self.out or (known and known.why) else NONE
        ratio = self.ratio(name, size)
        beside = f" ({_short(ratio)} ×)" if ratio and name not in (REFERENCE, COPY) else ""
        return f"{FIRST + ' ' if name == self.fastest(size) else ''}{seconds(time)}{beside}"

    @property
    def _notes(self) -> list[str]:
        notes = [self.note] if self.note else []
        notes += [f"✗ {name}: {why}" if name in self.names else why for name, why in self.out.items()]
        wrong: dict[tuple[str, str], list[int]] = {}
        for (name, size), lap in self.laps.items():
            if lap.why and name not in self.out:
                wrong.setdefault((name, lap.why), []).append(size)
        notes += [f"✗ {n}: wrong at {', '.join(map(nbytes, sizes))}: {why}" for (n, why), sizes in wrong.items()]
        notes.append(
            f"{FIRST} the fastest; median time of the slowest rank; (2 ×): twice as fast as {REFERENCE}. "
            f"{COPY}: all ranks at once copy as many bytes in their own memory."
        )
        if self.right:
            notes.append("Every result was checked, outside the clock, and is right.")
        return notes


def _unbroken(text: str) -> str:
    """Keep a number with its unit in a narrow column: only a ratio in brackets may go to the next line."""
    return text.replace(" ", "\u00a0").replace("\u00a0(", " (")


def _short(ratio: float) -> str:
    """Return a ratio in two digits.

    >>> _short(0.476), _short(7.51), _short(152.3)
    ('0.48', '7.5', '152')
    """
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"
