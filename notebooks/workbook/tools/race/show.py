"""What `lab.race` shows: a table by size with the fastest marked, a picture of the ratios, who does not count."""

from __future__ import annotations

from html import escape

from labkit.floor.errors import LabError
from labkit.floor.words import nbytes, seconds
from labkit.plot import svg
from labkit.show.table import cell, row, table
from workbook.tools.race import plot as picture
from workbook.tools.race.raced import COPY, REFERENCE, Raced

FIRST = "★"
NONE = "–"


class Race:
    """A scoreboard by size: medians of the slowest rank's time, how they stand to `dist.all_reduce`, who is fastest.

    `at(2**20)` is one row as a dict of ratios. What was wrong, raised an error or did not finish has no time.
    """

    def __init__(self, raced: Raced) -> None:
        self.raced = raced
        self.names, self.sizes = list(raced.names), list(raced.sizes)
        self.note, self.out = raced.note, dict(raced.out)

    @property
    def right(self) -> bool:
        """Whether every contestant was right at every size."""
        wrong = [name for name in self.names if name in self.out]
        return not wrong and not any(lap.why for lap in self.raced.laps.values())

    def at(self, size: int) -> dict[str, float]:
        """How many times as fast as `dist.all_reduce` each is here. Raises `LabError` where the size was not raced."""
        if size not in self.sizes:
            raise LabError(f"{size} bytes were not raced. Choose one of {', '.join(map(str, self.sizes))}.")
        ratios = {name: self.raced.ratio(name, size) for name in self.names}
        return {name: ratio for name, ratio in ratios.items() if ratio is not None}

    # -- how it shows itself --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        lines = [self._columns, *([nbytes(s), *self._cells(s)] for s in self.sizes)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        told = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([self._title, *told, *self._notes])

    def _repr_html_(self) -> str:
        def shown(name: str, size: int) -> str:
            told = escape(_unbroken(self._cell(name, size)))
            return cell(f"<b>{told}</b>" if name == self.raced.fastest(size) else told, "time")

        rows = [row(_unbroken(nbytes(s)), [shown(name, s) for name in [*self.names, COPY]]) for s in self.sizes]
        notes = "".join(f"<p>{escape(n)}</p>" for n in self._notes)
        columns = [f"<code>{escape(c)}</code>" if c.endswith(")") else escape(c) for c in self._columns]
        drawn = svg.img(self.svg, self.alt) if self._ratios and len(self.sizes) > 1 else ""
        return drawn + table("race", escape(self._title), columns, rows) + notes

    @property
    def svg(self) -> bytes:
        """The picture: how many times as fast as `dist.all_reduce` each is, over sizes, both axes logarithmic."""
        return svg.svg(picture.draw(picture.axes(), self._title, REFERENCE, self._ratios))

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
        return f"A race of all-reduces, {self.raced.dtype}: {self.raced.where}"

    @property
    def _columns(self) -> list[str]:
        return ["size", *self.names, COPY]

    @property
    def _ratios(self) -> dict[str, dict[int, float]]:
        """What is drawn: everybody but the reference."""
        ratios = {
            name: {s: ratio for s in self.sizes if (ratio := self.raced.ratio(name, s)) is not None}
            for name in [*self.names, COPY]
            if name != REFERENCE
        }
        return {name: mine for name, mine in ratios.items() if mine}

    def _cells(self, size: int) -> list[str]:
        return [self._cell(name, size) for name in [*self.names, COPY]]

    def _cell(self, name: str, size: int) -> str:
        lap, fastest = self.raced.lap(name, size), self.raced.fastest(size)
        if lap is None:
            known = self.raced.laps.get((name, size))
            return "✗" if name in self.out or (known and known.why) else NONE
        ratio = self.raced.ratio(name, size)
        beside = f" ({_short(ratio)} ×)" if ratio and name not in (REFERENCE, COPY) else ""
        return f"{FIRST + ' ' if name == fastest else ''}{seconds(lap.median)}{beside}"

    @property
    def _notes(self) -> list[str]:
        notes = [self.note] if self.note else []
        notes += [f"✗ {name}: {why}" if name in self.names else why for name, why in self.out.items()]
        wrong: dict[tuple[str, str], list[int]] = {}
        for (name, size), lap in self.raced.laps.items():
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
    """In a narrow column a number stays with its unit; only a ratio in brackets goes to the next line."""
    return text.replace(" ", "\u00a0").replace("\u00a0(", " (")


def _short(ratio: float) -> str:
    """A ratio in two digits.

    >>> _short(0.476), _short(7.51), _short(152.3)
    ('0.48', '7.5', '152')
    """
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"
