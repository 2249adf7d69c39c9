"""Measure how far off models are on published tables: NCCL's own, and the estimate, some of a table's rows given.

NCCL's is that of the version that a table was made with, or 2.28.3's where it is older or not stated. Rows are given
to `costs.calibrate`; errors are of rows that were not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workbook.tools.costs import nccl
from workbook.tools.costs.calibrate import calibrate
from workbook.tools.costs.estimate import FITTED, Constants, estimate
from workbook.tools.published.tables import LARGE, SMALL, TABLES, Table

BANDS = {"below 1 MiB": (0, SMALL), "1 to 64 MiB": (SMALL, LARGE), "from 64 MiB": (LARGE, float("inf"))}
GIVEN = (0, 3, 6)  # how many rows the estimate gets to know
LEFT = 3  # rows that must be left to judge by


@dataclass(frozen=True)
class Row:
    """A published time of n GPUs beside the model's, both in µs."""

    table: str
    n: int
    nbytes: int
    published: float
    model: float

    @property
    def ratio(self) -> float:
        """The model's time / the published one: 1 where the model is right."""
        return self.model / self.published


@dataclass(frozen=True)
class Comparison:
    """Every published row beside the model."""

    rows: tuple[Row, ...]


def compare(tables: Sequence[Table] = TABLES) -> Comparison:
    """Hold the model against every published row, misses and all.

    >>> round(compare().rows[0].ratio, 2)
    0.36
    """
    rows = []
    for table in tables:
        if table.cluster is None or table.op not in nccl.OPS:
            continue
        sizes = np.array([size for size, _ in table.rows], float)
        cluster = table.cluster.but(nccl=nccl.nearest(table.version).first)
        times = np.min(list(nccl.times(table.op, sizes, table.n, cluster).values()), axis=0) * 1e6
        rows += [Row(table.name, table.n, *row, us) for row, us in zip(table.rows, times.tolist(), strict=True)]
    return Comparison(tuple(rows))


@dataclass(frozen=True)
class Error:
    """One row: the estimate is off by `off`, a share without its sign, after `given` rows of its table were known."""

    table: Table
    nbytes: int
    given: int
    off: float


@dataclass(frozen=True)
class Judgement:
    """All errors, and their medians and 90th percentiles: in all, by size, by operation, by generation."""

    errors: tuple[Error, ...]

    def off(self, given: int, which: Callable[[Error], bool] = lambda _: True) -> tuple[float, float, int]:
        """Return median and 90th percentile of the errors after so many rows were given, and the number of errors."""
        found = [e.off for e in self.errors if e.given == given and which(e)]
        if not found:
            return float("nan"), float("nan"), 0
        return float(np.median(found)), float(np.quantile(found, 0.9)), len(found)

    @property
    def groups(self) -> dict[str, Callable[[Error], bool]]:
        """The parts of the summary: names, and which errors belong to them."""
        by: dict[str, Callable[[Error], bool]] = {"all rows": lambda _: True}
        for band, (least, most) in BANDS.items():
            by[band] = lambda e, least=least, most=most: least <= e.nbytes < most  # type: ignore[misc]
        for op in dict.fromkeys(e.table.op for e in self.errors):
            by[op] = lambda e, op=op: e.table.op == op  # type: ignore[misc]
        for generation in dict.fromkeys(e.table.generation for e in self.errors):
            by[generation] = lambda e, generation=generation: e.table.generation == generation  # type: ignore[misc]
        return by

    def __repr__(self) -> str:
        lines = [f"{'median / 90th percentile':<26}" + "".join(f"{w:>20}" for w in ("as it comes", "3 rows", "6 rows"))]
        for name, which in self.groups.items():
            cells = (self.off(given, which) for given in GIVEN)
            said = "".join((f"{m:>11.0%} /{p:>5.0%}" if n else "–").rjust(20) for m, p, n in cells)
            lines.append(f"{name:<26}{said}".replace("%", " %"))
        return "\n".join(lines)


def judge(
    tables: Sequence[Table] = TABLES, again: Callable[[Sequence[Table]], Constants] | Literal[False] = False
) -> Judgement:
    """Hold the estimate against every claimed table; `again` fits all constants again without the table's publisher.

    Without it the tables are judged by constants that have seen them: about as good, for there are many more rows than
    constants.
    """
    known, errors = [t for t in tables if t.claimed], []
    for publisher in dict.fromkeys(t.publisher for t in known):
        own = [t for t in known if t.publisher == publisher]
        others = [t for t in known if t.publisher != publisher]
        constants = again(others) if again else FITTED
        for table in own:
            errors += [e for given in GIVEN for e in _errors(table, given, constants)]
    return Judgement(tuple(errors))


def chosen(table: Table, given: int) -> list[int]:
    """Choose the rows that are given: spread evenly over the sizes' logarithms, from the smallest to the largest."""
    sizes = np.log([size for size, _ in table.rows])
    return sorted({int(np.argmin(np.abs(sizes - at))) for at in np.linspace(sizes[0], sizes[-1], given)})


def _errors(table: Table, given: int, constants: Constants) -> list[Error]:
    assert table.cluster is not None
    rows = chosen(table, given) if given else []
    if len(table.rows) - len(rows) < (LEFT if given else 1):
        return []
    sizes, us = np.array(table.rows).T
    if given:
        mine = calibrate(table.op, table.n, table.cluster, [table.rows[i] for i in rows], constants)
        found = mine.seconds(sizes)
    else:
        found = estimate(table.op, sizes, table.n, table.cluster, constants)
    off = np.abs(found * 1e6 / us - 1)
    return [Error(table, int(sizes[i]), given, float(off[i])) for i in range(len(us)) if i not in rows]
