"""How far off the estimate is on tables that it was not fitted on: each publisher is left out in turn.

Whatever is fitted from tables is fitted again without the publisher's, all of them, and then held against them: as it
comes, after three of a table's rows were given to `costs.calibrate`, and after six. Errors are of rows not given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.theory.costs.calibrate import calibrate
from labkit.theory.costs.estimate import FITTED, Constants, estimate
from labkit.theory.costs.machine import Cluster
from labkit.theory.published.compare import LARGE, SMALL
from labkit.theory.published.learn import learn, modelled
from labkit.theory.published.tables import TABLES, Table

BANDS = {"below 1 MiB": (0, SMALL), "1 to 64 MiB": (SMALL, LARGE), "from 64 MiB": (LARGE, float("inf"))}
GIVEN = (0, 3, 6)  # how many rows the estimate gets to know
LEFT = 3  # rows that must be left to judge by
ENOUGH = 1e-3  # gain of a step, as a share, at which a fit may stop: with a thousandth of it no figure here changes


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
        """Median and 90th percentile of the errors, and of how many rows, after so many rows were given."""
        found = [e.off for e in self.errors if e.given == given and which(e)]
        if not found:
            return float("nan"), float("nan"), 0
        return float(np.median(found)), float(np.quantile(found, 0.9)), len(found)

    @property
    def groups(self) -> dict[str, Callable[[Error], bool]]:
        """What the summary is cut into: names, and which errors belong to them."""
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


def judge(tables: Sequence[Table] = TABLES, again: bool = True) -> Judgement:
    """Hold the estimate against every claimed table; `again` fits all constants again without the table's publisher.

    That takes a minute. Without it the tables are judged by constants that have seen them: about as good, for there
    are many more rows than constants.
    """
    known, errors = modelled(tables), []
    for publisher in dict.fromkeys(t.publisher for t in known):
        own = [t for t in known if t.publisher == publisher]
        others = [t for t in known if t.publisher != publisher]
        constants = learn(others, FITTED, ENOUGH) if again else FITTED
        for table in own:
            errors += [e for given in GIVEN for e in _errors(table, given, constants)]
    return Judgement(tuple(errors))


def chosen(table: Table, given: int) -> list[int]:
    """Which rows are given: spread evenly over the sizes' logarithms, the smallest and the largest among them."""
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


def others(tables: Sequence[Table] = TABLES) -> Judgement:
    """How far off other publishers' measurements are, taken as the estimate of a row: the median of theirs.

    They have the same operation, number of GPUs and described cluster at the row's size. A row that nobody else has is
    left out. What then remains, a data sheet does not tell.
    """
    measured: dict[tuple[str, int, Cluster | None, int], list[tuple[Table, float]]] = {}
    for table in modelled(tables):
        for size, us in table.rows:
            measured.setdefault((table.op, table.n, table.cluster, size), []).append((table, us))
    errors = []
    for (*_, size), found in measured.items():
        for table, us in found:
            if theirs := [t for other, t in found if other.publisher != table.publisher]:
                errors.append(Error(table, size, 0, abs(float(np.median(theirs)) / us - 1)))
    return Judgement(tuple(errors))
