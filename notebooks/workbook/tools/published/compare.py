"""How far NCCL's own model is off the published tables, as it is and corrected by two numbers for each table.

T' = c₀ + k·T, fitted by relative error on three rows of a table: the smallest, the middle and the largest one. The
model is that of the version of NCCL that a table was made with, or 2.28.3's where it is older or nobody says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbook.tools.costs import nccl
from workbook.tools.published.tables import TABLES, Table

KIB, MIB, GIB = 2**10, 2**20, 2**30
SMALL, LARGE = MIB, 64 * MIB  # below the one, latency decides; from the other on, bandwidth


@dataclass(frozen=True)
class Row:
    """A published time beside the model's: `ratio` and `corrected` are model / published, 1 where it is right."""

    table: str
    n: int
    nbytes: int
    published: float  # µs
    model: float  # µs
    choice: str
    nccl: str  # by whose constants
    ratio: float
    corrected: float
    used: bool  # whether the correction was fitted on this row


@dataclass(frozen=True)
class Comparison:
    """Rows, and how they are summed up: for each table, and for small, medium and large messages, the ratios."""

    rows: tuple[Row, ...]

    def of(self, table: str, least: float = 0, most: float = float("inf")) -> list[Row]:
        """The rows of one table from `least` bytes to below `most`."""
        return [r for r in self.rows if r.table == table and least <= r.nbytes < most]

    def __repr__(self) -> str:
        bands = {"below 1 MiB": (0, SMALL), "to 64 MiB": (SMALL, LARGE), "from 64 MiB": (LARGE, float("inf"))}
        lines = [f"{'model / published':<30}" + "".join(f"{band:^24}" for band in bands)]
        lines.append(f"{'':<30}" + f"{'as it is':>12}{'corrected':>12}" * len(bands))
        for table in dict.fromkeys(r.table for r in self.rows):
            said = f"{table:<30}"
            for least, most in bands.values():
                rows = self.of(table, least, most)
                said += _span([r.ratio for r in rows]) + _span([r.corrected for r in rows if not r.used])
            lines.append(said.rstrip())
        return "\n".join(lines)


def compare(tables: Sequence[Table] = TABLES) -> Comparison:
    """Every published row beside the model, as it is and corrected; misses and all.

    >>> compare().of("8 × A100")[-1].choice
    'Ring, Simple'

    The summary's corrected ratios leave out the rows that the correction was fitted on.
    """
    rows = []
    for table in tables:
        if table.cluster is None or table.op not in nccl.OPS:
            continue
        sizes = np.array([size for size, _ in table.rows], float)
        version = nccl.nearest(table.version).first
        times = nccl.times(table.op, sizes, table.n, table.cluster.but(nccl=version))
        names, each = list(times), np.stack(list(times.values())) * 1e6
        model = each.min(0).tolist()
        given = (0, (len(model) - 1) // 2, len(model) - 1)
        base, k = _correction([table.rows[i][1] for i in given], [model[i] for i in given])
        for i, (size, published) in enumerate(table.rows):
            said = ", ".join(names[int(each[:, i].argmin())])
            ratios = model[i] / published, (base + k * model[i]) / published
            rows.append(Row(table.name, table.n, size, published, model[i], said, version, *ratios, i in given))
    return Comparison(tuple(rows))


def _correction(published: Sequence[float], model: Sequence[float]) -> tuple[float, float]:
    """c₀ in µs and k, by the least relative error; c₀ < 0 where a plugin declares more latency than there is."""
    y, x = np.array(published), np.array(model)
    c0, k = np.linalg.lstsq(np.stack([1 / y, x / y], 1), np.ones(len(y)), rcond=None)[0]
    return float(c0), float(k)


def _span(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.2f}–{max(ratios):.2f}".rjust(12) if ratios else "–".rjust(12)
