"""Read what others measured with nccl-tests, as they published it, with its source. Nothing was run here.

The tables are data, in `tables.json` beside this module: to add one, add it there. Rows are (bytes, µs), out of place,
S as nccl-tests counts it; odd rows, such as the spike of a first call, stay in. Knows no model.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.floor.errors import LabError
from workbook.tools import timing
from workbook.tools.costs.estimate import FABRICS, OPS
from workbook.tools.costs.machine import RENTED, Cluster

SMALL, LARGE = 2**20, 2**26  # bytes: below the one, latency decides; from the other on, bandwidth


@dataclass(frozen=True)
class Table:
    """A published table: `rows` of (bytes, µs) of an operation on `n` GPUs, and what is known of the machine."""

    name: str
    op: str
    n: int
    cluster: Cluster | None  # None where NCCL did not run, and no model is claimed
    rows: tuple[tuple[int, float], ...]
    source: str
    publisher: str  # tables of one publisher are left out together
    hardware: str
    generation: str  # "ampere", "hopper", "blackwell", "cdna3"; of the cluster where there is one
    nccl: str  # the version as far as it is stated
    launch: str  # "one process a GPU", or "one process, -g 8"
    note: str = ""
    odd: str = ""  # why no model is claimed for it, where the machine or its settings are out of the ordinary

    @property
    def claimed(self) -> bool:
        """Tell whether `costs.estimate` is held against it: NCCL, a fabric and an operation it knows, nothing odd."""
        return self.cluster is not None and self.cluster.fabric in FABRICS and self.op in OPS and not self.odd

    @property
    def version(self) -> str:
        """The version of NCCL as three numbers, such as "2.26.2", or ""."""
        found = re.search(r"\d+\.\d+\.\d+", self.nccl)
        return found[0] if found else ""

    @property
    def nodes(self) -> int:
        """The number of nodes, a node being what NVLink joins; 1 where no model is claimed."""
        return -(-self.n // self.cluster.gpus_per_node) if self.cluster else 1

    def busbw(self, nbytes: int) -> float:
        """Return the bus bandwidth of one row, in GB/s."""
        return timing.busbw(self.op, self.n, nbytes, dict(self.rows)[nbytes] * 1e-6)


def find(name: str) -> Table:
    """Return the table of this name, or of a part of it that no other name has.

    >>> find("8 × H200").n, find("2 × Lambda").op
    (8, 'all_reduce')
    """
    exact = [t for t in TABLES if t.name == name]
    found = exact or [t for t in TABLES if name.lower() in t.name.lower()]
    if len(found) != 1:
        names = ", ".join(repr(t.name) for t in found or TABLES)
        raise LabError(f"{len(found) or 'No'} tables are called {name!r}. Choose one of: {names}.")
    return found[0]


def _table(entry: dict[str, Any]) -> Table:
    base, changes = entry.pop("cluster"), entry.pop("but", {})
    cluster = RENTED[base].but(**changes) if base else None
    rows = tuple((int(size), float(us)) for size, us in entry.pop("rows"))
    generation = entry.pop("generation", None) or (cluster.generation if cluster else "")
    return Table(cluster=cluster, rows=rows, generation=generation, **entry)


TABLES = tuple(map(_table, json.loads(Path(__file__).with_name("tables.json").read_text(encoding="utf-8"))))
