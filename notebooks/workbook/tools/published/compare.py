"""Hold NCCL's own model against the published tables.

The model is that of the version of NCCL that a table was made with, or 2.28.3's where it is older or not stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbook.tools.costs import nccl
from workbook.tools.published.tables import TABLES, Table


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
