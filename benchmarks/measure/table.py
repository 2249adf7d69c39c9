"""Measured rows as a Markdown table, and the place in RESULTS.md that one benchmark owns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).resolve().parents[1] / "RESULTS.md"
COLUMNS = ("what", "labkit", "compared with", "its figure", "ratio", "target", "met?")
Rounds = Sequence[Sequence[float] | None]  # one entry a round: its samples (none: not asked for), None where it failed


@dataclass(frozen=True)
class Row:
    """One comparison: what each round measured of ours and of the other, in the same unit.

    `ratio` bounds the median over rounds of (our median / the other's median of that round), `within` how far that
    may be from 1, either way; `limit` bounds our worst sample. `failures` are sentences that the table must not hide.
    """

    what: str
    unit: str
    ours: Rounds
    other: str = ""
    others: Rounds = ()
    ratio: float | None = None
    limit: float | None = None
    within: float | None = None
    failures: tuple[str, ...] = ()

    def measured_ratio(self) -> float | None:
        """Median over the rounds in which both were measured; None where there is none."""
        pairs = [
            median(a) / median(b) for a, b in zip(self.ours, self.others, strict=False) if a and b and median(b) > 0
        ]
        return median(pairs) if pairs else None

    def met(self) -> bool | None:
        """Whether the target is reached; None without a target. What failed or was not measured is not."""
        if self.ratio is None and self.limit is None and self.within is None:
            return None
        if self.failures:
            return False
        ratio, worst = self.measured_ratio(), max(_flat(self.ours), default=None)
        return (
            (self.ratio is None or (ratio is not None and ratio <= self.ratio))
            and (self.within is None or (ratio is not None and abs(ratio - 1) <= self.within))
            and (self.limit is None or (worst is not None and worst <= self.limit))
        )

    def cells(self) -> tuple[str, ...]:
        """The row's text, column by column."""
        ratio = self.measured_ratio()
        targets = [f"ratio ≤ {self.ratio:g}"] if self.ratio is not None else []
        targets += [f"ratio {1 - self.within:g} to {1 + self.within:g}"] if self.within is not None else []
        targets += [f"≤ {self.limit:g} {self.unit}"] if self.limit is not None else []
        return (
            self.what,
            summary(self.ours, self.unit),
            self.other or "–",
            summary(self.others, self.unit) if self.other else "–",
            "–" if ratio is None else f"{ratio:.2f}",
            ", ".join(targets) or "–",
            {True: "yes", False: "**no**", None: "–"}[self.met()],
        )


def summary(rounds: Rounds, unit: str) -> str:
    """ "min / median / max unit (failed k of n)" over all rounds; "–" where none was asked for."""
    values, failed = _flat(rounds), sum(r is None for r in rounds)
    if not values:
        return "failed" if failed else "–"
    digits = 0 if median(values) >= 100 else 1 if median(values) >= 10 else 2
    figures = " / ".join(f"{v:.{digits}f}" for v in (min(values), median(values), max(values)))
    return f"{figures} {unit}" + (f" (failed {failed} of {len(rounds)})" if failed else "")


def render(title: str, facts: dict[str, str], rows: Sequence[Row]) -> str:
    """A section: what it was measured on, the table, then every failure in words."""
    return markdown(title, facts, COLUMNS, [row.cells() for row in rows], [f for row in rows for f in row.failures])


def markdown(
    title: str, facts: dict[str, str], columns: Sequence[str], rows: Sequence[Sequence[str]], failures: Sequence[str]
) -> str:
    """A section with a table of other columns."""
    table = [columns, ("---",) * len(columns), *rows]
    lines = [
        f"## {title}",
        "",
        *(f"- {name}: {fact}" for name, fact in facts.items()),
        "",
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in table),
    ]
    told = dict.fromkeys(failures)
    return "\n".join([*lines, *(["", *(f"- failed: {f}" for f in told)] if told else [])]) + "\n"


def write(name: str, section: str, path: Path = RESULTS) -> None:
    """Put a section between its two markers in RESULTS.md; append both where they are missing."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    block = f"{begin}\n{section}{end}"
    text = path.read_text()
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if found.search(text):
        text = found.sub(lambda _: block, text, count=1)
    else:
        text = f"{text.rstrip()}\n\n{block}\n"
    path.write_text(text)


def _flat(rounds: Rounds) -> list[float]:
    return [value for samples in rounds if samples for value in samples]
