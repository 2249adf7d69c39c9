"""What others measured with NCCL, as they published it, and how far NCCL's own model is off. Nothing was run here.

All rows are all-reduces, out of place, in bytes and µs. Each table keeps its source. `compare()` holds the model of
`labkit.theory.costs.nccl` against every row, as it is, and corrected by two numbers for each table:
T' = c₀ + k·T, fitted by relative error on three of its rows, the smallest, the middle and the largest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labkit.theory.costs import nccl
from labkit.theory.costs.machine import A100, GB200, H100, Cluster

KIB, MIB, GIB = 2**10, 2**20, 2**30
SMALL, LARGE = MIB, 64 * MIB  # below the one, latency decides; from the other on, bandwidth


@dataclass(frozen=True)
class Table:
    """A published table: `rows` of (bytes, µs), on `n` GPUs of a cluster."""

    name: str
    n: int
    cluster: Cluster
    rows: tuple[tuple[int, float], ...]
    source: str

    @cached_property
    def model(self) -> tuple[float, ...]:
        """The model's µs, row by row, as NCCL would choose."""
        return tuple(nccl.choose("all_reduce", size, self.n, self.cluster).seconds * 1e6 for size, _ in self.rows)

    @property
    def calibration(self) -> tuple[int, ...]:
        """The rows that c₀ and k are fitted on."""
        last = len(self.rows) - 1
        return (0, last // 2, last)

    @cached_property
    def correction(self) -> tuple[float, float]:
        """c₀ in µs and k, by the least relative error; c₀ < 0 where a plugin declares more latency than there is."""
        published = np.array([self.rows[i][1] for i in self.calibration])
        model = np.array([self.model[i] for i in self.calibration])
        c0, k = np.linalg.lstsq(np.stack([1 / published, model / published], 1), np.ones(len(model)), rcond=None)[0]
        return float(c0), float(k)


@dataclass(frozen=True)
class Row:
    """A published time beside the model's: `ratio` and `corrected` are model / published, 1 where it is right."""

    table: str
    n: int
    nbytes: int
    published: float  # µs
    model: float  # µs
    choice: str
    ratio: float
    corrected: float
    used: bool  # whether the correction was fitted on this row


def sized(pairs: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """(bytes, algbw in GB/s) → (bytes, µs)."""
    return tuple((size, size / algbw / 1e3) for size, algbw in pairs)


def doubling(first: int, times: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """µs of sizes that double from row to row."""
    return tuple((first << i, t) for i, t in enumerate(times))


AWS = "aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests/README.md"
STAS = "stas00/ml-engineering, network"
CORE = "coreweave/nccl-tests, README.md (NCCL 2.26.2)"
TABLES = (
    Table(
        "8 × A100", 8, A100,
        doubling(32 * KIB, [
            43.83, 46.80, 51.76, 61.38, 80.40, 101.9, 101.4, 101.5, 133.5, 276.6, 424.0, 684.6, 1327.6, 2420.6,
            4218.4, 8203.9, 16240, 32136, 64074, 127997,
        ]),
        f"{STAS}/README.md",
    ),
    Table(
        "8 × H200", 8, H100,
        sized(doubling(32 * KIB, [
            0.82, 1.67, 3.27, 6.71, 13.68, 22.82, 36.87, 61.23, 88.87, 125.65, 157.62, 198.01, 229.67, 249.23,
            257.31, 264.90, 268.10, 270.34, 272.83, 275.58,
        ])),
        f"{STAS}/benchmarks/results/all-reduce-8xH200.md (NCCL 2.27.7, from algbw)",
    ),
    Table(
        "16 × A100, 2 × p4de", 16, A100,
        doubling(8, [
            164.3, 161.4, 161.5, 161.0, 161.2, 161.8, 162.3, 165.0, 177.6, 169.4, 175.9, 193.4, 224.6, 227.4, 229.7,
            238.2, 260.3, 309.4, 432.6, 533.9, 762.8, 1191.8, 1540.2, 2644.6, 3912.9, 7201.7, 13552, 26217, 51406,
        ]),
        AWS,
    ),
    Table(
        "16 × H100, 2 × p5", 16,
        H100.but(name="H100 servers (AWS p5)", rails=32, rail=12.5, nic_latency=75.0),
        doubling(8, [
            69.12, 72.64, 74.06, 65.48, 74.92, 74.12, 69.50, 69.24, 72.22, 78.58, 81.44, 94.36, 111.7, 135.1, 108.9,
            128.0, 123.7, 123.2, 147.2, 168.6, 204.8, 298.1, 439.7, 601.5, 870.3, 1468.2, 2559.2, 4607.6, 9074.5,
            17286, 33605, 66132,
        ]),
        AWS,
    ),
    Table("72 × GB200", 72, GB200, doubling(512 * MIB, [1806.7, 3108.8, 5589.1, 10094, 20299]), CORE),
    Table("144 × GB200", 144, GB200, doubling(512 * MIB, [2156.8, 3574.4, 6264.0, 11469, 21493, 42067]), CORE),
    Table("1440 × GB200", 1440, GB200, doubling(512 * MIB, [7108.4, 9805.7, 14980, 24782, 45004, 84625]), CORE),
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Rows, and how they are summed up: for each table, and for small, medium and large messages, the ratios."""

    rows: tuple[Row, ...]

    def of(self, table: str, least: float = 0, most: float = float("inf")) -> list[Row]:
        """The rows of one table from `least` bytes to below `most`."""
        return [r for r in self.rows if r.table == table and least <= r.nbytes < most]

    @property
    def listing(self) -> str:
        """Every row, a line each; * marks those that the correction was fitted on."""
        head = f"{'table':<22}{'bytes':>12}{'published µs':>14}{'model µs':>12}  {'choice':<18}"
        head += f"{'ratio':>6}{'corrected':>10}"
        lines = [
            f"{r.table:<22}{r.nbytes:>12}{r.published:>14.1f}{r.model:>12.1f}  {r.choice:<18}{r.ratio:>6.2f}"
            f"{r.corrected:>10.2f}{'*' if r.used else ' '}"
            for r in self.rows
        ]
        return "\n".join([head, *lines])

    def __repr__(self) -> str:
        bands = {"below 1 MiB": (0, SMALL), "to 64 MiB": (SMALL, LARGE), "from 64 MiB": (LARGE, float("inf"))}
        lines = [f"{'model / published':<22}" + "".join(f"{band:^24}" for band in bands)]
        lines.append(f"{'':<22}" + f"{'as it is':>12}{'corrected':>12}" * len(bands))
        for table in dict.fromkeys(r.table for r in self.rows):
            said = f"{table:<22}"
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
        base, k = table.correction
        for i, (size, published) in enumerate(table.rows):
            choice = nccl.choose("all_reduce", size, table.n, table.cluster)
            model = table.model[i]
            said = f"{choice.algorithm}, {choice.protocol}"
            ratios = model / published, (base + k * model) / published
            rows.append(Row(table.name, table.n, size, published, model, said, *ratios, i in table.calibration))
    return Comparison(tuple(rows))


def _span(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.2f}–{max(ratios):.2f}".rjust(12) if ratios else "–".rjust(12)
