"""Hold a log of nccl-tests against the published tables: which machine it resembles, and where it falls short.

Times are compared size by size, on a logarithmic scale, between a table's rows interpolated. A verdict tells what a
shape usually means and never that it is so: the same curve can have several causes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from labkit.floor.words import listed, nbytes
from workbook.tools import costs, timing
from workbook.tools.atlas import shapes
from workbook.tools.atlas.nccl_tests import RACK, Log
from workbook.tools.costs import Cluster
from workbook.tools.costs.estimate import OPS
from workbook.tools.published import LARGE, SMALL, TABLES, Table

Floats = npt.NDArray[np.float64]
NEAR = 1.1  # within this factor at every size from somewhere on: said so
CLOSE = 1.25  # the average factor up to which a log resembles a table
BANDS = (("small", 0.0, SMALL), ("middle", SMALL, LARGE), ("large", LARGE, float("inf")))
NETWORKS = (("Libfabric", " EFA"), ("OFI", " EFA"), ("FasTrak", " TCPXO"), ("TCPX", " TCPXO"), ("gIB", " RoCE"))
SOLD = {"ampere": "A100", "hopper": "H100", "blackwell": "B200"}


@dataclass(frozen=True)
class Likeness:
    """A log beside one table: `ratios` are the log's time / the table's, at the log's `sizes` that the table spans."""

    table: Table
    sizes: tuple[int, ...]
    ratios: tuple[float, ...]

    @property
    def off(self) -> float:
        """The factor by which the times differ on average, 1 for equal ones."""
        return float(np.exp(np.mean(np.abs(np.log(self.ratios)))))

    @property
    def since(self) -> int | None:
        """The size from which on all times differ by less than a tenth; None where fewer than three do."""
        apart = [max(r, 1 / r) for r in self.ratios]
        near = next((i for i in range(len(apart)) if max(apart[i:]) <= NEAR), len(apart))
        return self.sizes[near] if near <= len(apart) - min(3, len(apart)) else None

    def ratio(self, least: float = 0, most: float = float("inf")) -> float | None:
        """Return the median of the ratios from `least` bytes to below `most`."""
        found = [r for size, r in zip(self.sizes, self.ratios, strict=True) if least <= size < most]
        return float(np.median(found)) if found else None

    def _by_size(self) -> str:
        """Say how long the log takes in each band."""
        found = [(_times(r), _span(least, most)) for _, least, most in BANDS if (r := self.ratio(least, most))]
        (first, where), *rest = found
        if not any(times != first for times, _ in rest):
            return f"{first} it at all sizes"
        told = [f"{times.removesuffix(' as')} {there}" for times, there in rest]
        return listed([f"{first} it {where}", *told])

    @property
    def told(self) -> str:
        """The log's times beside the table's, in words, with "it" for the table."""
        since = self.since
        if since is None:
            return self._by_size()
        near = [max(r, 1 / r) for size, r in zip(self.sizes, self.ratios, strict=True) if size >= since]
        where = "at all sizes" if since == self.sizes[0] else f"from {nbytes(since)} on"
        below = self.ratio(0, since)
        rest = f"; below, {_times(below)} it at the median" if below else ""
        return f"within {max(1, round(100 * (max(near) - 1)))} % of it {where}{rest}"


@dataclass(frozen=True)
class Band:
    """Small, middle or large messages: the log's time / the best table's, and / the model's; None where unknown."""

    name: str
    least: float
    most: float
    best: Table | None
    to_best: float | None
    to_model: float | None


@dataclass(frozen=True)
class Verdict:
    """What a log's figures say: the tables it resembles, `bands` by size, and `findings`, a sentence or two each."""

    log: Log
    likenesses: tuple[Likeness, ...]
    bands: tuple[Band, ...]
    findings: tuple[str, ...]
    cluster: Cluster | None  # what the model was asked about

    @property
    def resemblance(self) -> str:
        """The published machine that it resembles, in a sentence."""
        if not self.likenesses:
            return (
                f"No published table here is of {self.log.op} on about {self.log.n} GPUs. "
                "Only the model can be held against it."
            )
        first = self.likenesses[0]
        how = "Resembles" if first.off < CLOSE else "Resembles no published table closely; nearest is"
        same = "" if first.table.n == self.log.n else f" That ran on {first.table.n} GPUs: bus bandwidths are compared."
        unsaid = "" if self.log.gpu else " (The text does not name the GPU: the lines '# Rank' do.)"
        return f"{how} {first.table.name} ({first.table.hardware}): {first.told}.{same}{unsaid}"

    @property
    def beside(self) -> list[tuple[str, str, str]]:
        """The bands in words: where each is, how long the log takes beside the best table, and beside the model."""
        said = []
        for b in self.bands:
            best = f"{_times(b.to_best)} {b.best.name}" if b.best is not None and b.to_best is not None else ""
            model = f"{_times(b.to_model)} the model's estimate" if b.to_model else ""
            said.append((_span(b.least, b.most), best, model))
        return said

    def __repr__(self) -> str:
        lines = [repr(self.log), self.resemblance]
        for where, *told in self.beside:
            lines.append(f"  {where:<24}" + "; ".join(filter(None, told)))
        return "\n".join([*lines, *(f"• {finding}" for finding in self.findings)])


def resembles(log: Log, tables: Sequence[Table] = TABLES) -> list[Likeness]:
    """Find the tables of the same operation on about as many GPUs, the most alike first.

    With as many GPUs first; then from half to twice as many, whose times are compared at equal bus bandwidth. A
    table of one node is not held against a log of several hosts.
    """
    found = []
    for table in tables:
        if table.op != log.op or not log.n / 2 <= table.n <= 2 * log.n:
            continue
        if log.crosses not in (None, table.nodes > 1):  # one is a node, the other several
            continue
        least, most = table.rows[0][0], table.rows[-1][0]
        rows = [(size, us) for size, us in log.rows if least <= size <= most]
        if rows:
            sizes, us = map(np.array, zip(*rows, strict=True))
            scale = timing.busbw_factor(log.op, log.n) / timing.busbw_factor(log.op, table.n)
            ratios = us / (between(table.rows, sizes) * scale)
            found.append(Likeness(table, tuple(map(int, sizes)), tuple(map(float, ratios))))
    whole = max((len(f.sizes) for f in found), default=0)
    return sorted(found, key=lambda f: (f.table.n != log.n, len(f.sizes) < whole / 2, f.off))


def verdict(log: Log, tables: Sequence[Table] = TABLES) -> Verdict:
    """Judge a log: which machine it resembles, how it stands beside the best of its kind and beside the model.

    The model is asked about the machine that the log's GPU is usually sold in.
    """
    alike = resembles(log, tables)
    generation = log.generation or next((f.table.generation for f in alike[:1] if f.off < CLOSE), "")
    kind = [
        f for f in alike if f.table.generation == (generation or f.table.generation) and _as_many_a_node(log, f.table)
    ]
    kind = [f for f in kind if f.table.n == (log.n if any(f.table.n == log.n for f in kind) else f.table.n)]
    cluster = sold(log, generation)
    sizes, us = map(np.array, zip(*log.rows, strict=True))
    asked = estimated(log.op, sizes, log.n, cluster) if cluster else None
    model = None if asked is None else us / asked
    bands = []
    for name, least, most in BANDS:
        inside = (least <= sizes) & (sizes < most)
        if not inside.any():
            continue
        ratios = [(r, f.table) for f in kind if (r := f.ratio(least, most)) is not None]
        to_best, best = max(ratios, key=lambda pair: pair[0], default=(None, None))
        to_model = float(np.median(model[inside])) if model is not None else None
        bands.append(Band(name, least, most, best, to_best, to_model))
    against = {band.name: found for band in bands if (found := _against(band))}
    return Verdict(log, tuple(alike), tuple(bands), tuple(shapes.findings(log, against, cluster)), cluster)


def sold(log: Log, generation: str = "") -> Cluster | None:
    """Find the machine that a log's GPU is usually sold in, with the network that it names; None for an unknown GPU."""
    name = (
        "GB200" if "GB200" in log.gpu else "H200" if "H200" in log.gpu else SOLD.get(log.generation or generation, "")
    )
    if not name:
        return None
    network = next((suffix for word, suffix in NETWORKS if word.lower() in log.network.lower()), "")
    base = {"H200": "H100"}.get(name, name) + network
    found = costs.RENTED[base if base in costs.RENTED else name]
    found = found.but(gpus_per_process=log.per_process or 1)
    each = log.n // log.hosts if log.hosts > 1 and not RACK.search(log.gpu) else found.gpus_per_node
    if each < found.gpus_per_node:  # with as many NICs to a GPU
        found = found.but(gpus_per_node=each, rails=max(1, found.rails * each // found.gpus_per_node))
    return found


def estimated(op: str, sizes: Floats, n: int, cluster: Cluster) -> Floats | None:
    """Return the model's µs; None for an operation that it does not know."""
    return np.asarray(costs.estimate(op, sizes, n, cluster)) * 1e6 if op in OPS else None


def between(rows: Sequence[tuple[int, float]], sizes: Floats) -> Floats:
    """Interpolate µs at any size, on a straight line between rows where both scales are logarithmic."""
    known, us = map(np.array, zip(*rows, strict=True))
    return np.asarray(np.exp(np.interp(np.log(sizes), np.log(known), np.log(us))))


def _as_many_a_node(log: Log, table: Table) -> bool:
    """Tell whether both have as many GPUs per node, where the log crosses a network and says how many."""
    per_node = log.n // log.hosts if log.hosts > 1 and not RACK.search(log.gpu) else 0
    return not (per_node and table.cluster) or per_node == table.cluster.gpus_per_node


def _against(band: Band) -> shapes.Against | None:
    """Choose what a band is judged by: the best published of its kind, else the model."""
    if band.best is not None and band.to_best is not None:
        return shapes.Against(band.to_best, f"{band.best.name} ({band.best.hardware})", True)
    return shapes.Against(band.to_model, "the model's estimate", False) if band.to_model else None


def _times(ratio: float) -> str:
    """Say a ratio of times: how long, compared with what is named next."""
    return "as long as" if 0.95 <= ratio <= 1.05 else f"{ratio:.2g} times as long as"


def _span(least: float, most: float) -> str:
    if least == 0:
        return f"below {nbytes(most)}"
    return f"from {nbytes(least)}" + (f" to {nbytes(most)}" if most < float("inf") else " on")
