"""Choose as NCCL does, by its own model: of all algorithms and protocols, the least time wins. Neither torch nor NCCL.

T = latency + bytes / bandwidth, both from tables and a few factors. Constants and rules are those of
src/graph/tuning.cc, told anew, for NCCL 2.28.3 to 2.30.7 (`VERSIONS`); nothing here was run on NCCL. CollNet is left
out: it needs SHARP in the switches. What NCCL finds by searching the machine's links is supposed here: see `_bus`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools.costs.machine import GENERATIONS, Cluster

PROTOCOLS = ("LL", "LL128", "Simple")
OPS = {  # op → the algorithms that NCCL has for it
    "all_reduce": ("Tree", "Ring", "NVLS", "NVLSTree"),
    "all_gather": ("Ring", "NVLS", "PAT"),
    "reduce_scatter": ("Ring", "NVLS", "PAT"),
    "broadcast": ("Ring",),
    "reduce": ("Ring",),
}
BASE = {"Tree": (6.8, 14.0, 8.4), "Ring": (6.6, 14.0, 8.4), "NVLS": (0, 0, 0), "NVLSTree": (0, 0, 0), "PAT": (8, 8, 8)}
HOP = {  # µs: over NVLink, and over the network
    "Tree": ((0.6, 1.25, 4.0), (5.0, 8.5, 14.0)),
    "Ring": ((0.6, 1.9, 3.4), (2.7, 4.0, 14.0)),
    "NVLS": ((0, 0, 25.0), (0, 0, 18.0)),
    "NVLSTree": ((0, 0, 25.0), (0, 0, np.nan)),  # over the network: `VERSIONS`
    "PAT": ((0, 0, 4.0), (0, 0, 14.0)),
}
# Caps in GB/s for one node, two, and more. LL in one node by the GPU, between nodes by the CPU (others, AMD).
LL_MOST = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
A_CHANNEL = {  # a channel's cap, by generation; for Blackwell two of them are in `VERSIONS`
    "ring LL128": ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3),
    "tree LL128": ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0)),
    "tree": ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0)),
    "NVLSTree": ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5)),
}
NVLS_SHARE = (0.0, 0.0, 0.85, 0.74)
TREE_BEND = np.array(  # of the tree's bandwidth, for 64 B, 128 B … 256 MiB
    [
        [1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1],
        [0.9] * 7 + [0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9],
    ]
)


@dataclass(frozen=True)
class Version:
    """What differs between versions: NVLSTree's µs over the network, and for Blackwell a channel's caps in GB/s."""

    first: str  # the version that it begins with
    nvls_tree: float
    ring_ll128: tuple[float, float, float]
    nvls_tree_most: tuple[float, float, float]
    bends: bool = False  # whether NVLSTree's bandwidth bends as a tree's does: on Blackwell, between x86 hosts


VERSIONS = (
    Version("2.28.3", 14.0, (73.4, 73.4, 73.4), (0.0, 96.0, 43.1)),
    Version("2.28.7", 14.0, (73.4, 34.6, 73.4), (0.0, 96.0, 43.1)),
    Version("2.28.9", 20.9, (73.4, 34.6, 73.4), (0.0, 96.0, 43.8)),
    Version("2.29.2", 20.9, (34.5, 34.6, 34.5), (0.0, 96.0, 43.8), bends=True),
    Version("2.29.7", 20.9, (40.0, 40.0, 40.0), (0.0, 96.0, 43.8), bends=True),
    Version("2.30.3", 20.9, (40.0, 40.0, 40.0), (0.0, 96.0, 80.0), bends=True),
)


def version(nccl: str) -> Version:
    """Return the constants of an NCCL; raises `LabError` for those before 2.28.3, which weighed NVLS otherwise.

    >>> version("2.29.3").first
    '2.29.2'
    """
    if _number(nccl) < _number(VERSIONS[0].first):
        raise LabError(
            f"NCCL {nccl} has other rules for NVLS than the model here. Give {VERSIONS[0].first} or a later version."
        )
    return nearest(nccl)


def nearest(nccl: str) -> Version:
    """Return the same, or the oldest known one for a version before it and for none at all."""
    known = [v for v in VERSIONS[1:] if nccl and _number(v.first) <= _number(nccl)]
    return known[-1] if known else VERSIONS[0]


@dataclass(frozen=True)
class Choice:
    """What NCCL's model says of one operation: `algorithm`, `protocol` and `seconds` of the winner; `table` of all."""

    op: str
    nbytes: float
    n: int
    cluster: Cluster
    table: tuple[tuple[str, str, float], ...]  # algorithm, protocol, seconds; the fastest first

    @property
    def algorithm(self) -> str:
        """The winner's: "Ring", "Tree", "NVLS", "NVLSTree" or "PAT"."""
        return self.table[0][0]

    @property
    def protocol(self) -> str:
        """The winner's: "LL", "LL128" or "Simple"."""
        return self.table[0][1]

    @property
    def seconds(self) -> float:
        """The winner's, by the model."""
        return self.table[0][2]

    def __repr__(self) -> str:
        rows = [f"{a:<9}{p:<7}{t * 1e6:>12,.1f} µs" for a, p, t in self.table]
        on = f"{self.n:,} GPUs, {self.cluster.name}, NCCL {self.cluster.nccl}"
        return "\n".join([f"{self.op} of {self.nbytes:,.0f} B on {on}", *rows])


def choose(op: str, nbytes: float, n: int, cluster: Cluster) -> Choice:
    """Choose as NCCL would, by its own model; the times of the others stand beside.

    >>> from workbook.tools.costs.machine import H100
    >>> choose("all_reduce", 2**20, 8, H100).protocol, choose("all_reduce", 2**21, 8, H100).algorithm
    ('LL', 'NVLS')

    `nbytes` is nccl-tests' S, `n` the number of GPUs; `H100.but(nccl="2.28.3")` asks another version of NCCL. Raises
    `LabError` for an operation that NCCL has no model of, and for a version before 2.28.3.
    """
    if n < 2:
        raise LabError("One GPU has no other to talk to. Give two or more.")
    rows = [(a, p, float(t)) for (a, p), t in times(op, nbytes, n, cluster).items() if np.isfinite(t)]
    return Choice(op, nbytes, n, cluster, tuple(sorted(rows, key=lambda row: row[2])))


def times(op: str, nbytes: Any, n: Any, cluster: Cluster) -> dict[tuple[str, str], Any]:
    """Return the seconds of each algorithm and protocol, infinite where NCCL does not use it; arrays are welcome."""
    if op not in OPS:
        raise LabError(f"NCCL's model knows {', '.join(OPS)}, and not {op}. Choose one of them.")
    nbytes, n = np.broadcast_arrays(np.asarray(nbytes, float), np.asarray(n))
    nodes = -(-n // cluster.gpus_per_node)
    x86_blackwell = cluster.generation == "blackwell" and cluster.cpu != "arm"
    bends, found = version(cluster.nccl).bends and x86_blackwell, {}
    for a in [a for a in OPS[op] if a.startswith(cluster.algorithm)] or OPS[op]:
        for p, protocol in enumerate(PROTOCOLS):
            if protocol != "Simple" and a not in ("Tree", "Ring"):
                continue
            bandwidth = _bandwidth(op, a, p, n, nodes, cluster)
            latency = _latency(op, a, p, n, nodes, cluster)
            place = np.floor(np.log2(np.maximum(nbytes, 64) / 64)).astype(int)
            if a == "Tree":
                bandwidth = bandwidth * np.where(place < 23, TREE_BEND[p][np.minimum(place, 22)], 1.0)
            if a == "NVLSTree" and bends:
                bandwidth = bandwidth * np.where(place < 24, TREE_BEND[p][np.minimum(place, 22)], 1.0)
            if (a, protocol, op) == ("Ring", "Simple", "all_reduce"):
                late = (nodes > 1) & (nbytes / (cluster.channels * n) >= 64)
                latency = latency * np.where(late, 1.9 if cluster.generation == "volta" else 1.4, 1.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                found[a, protocol] = np.where(bandwidth > 0, latency * 1e-6 + nbytes / (1e9 * bandwidth), np.inf)
    return found


def _bus(a: str, nodes: Any, c: Cluster) -> Any:
    """Return the GB/s that all channels have together.

    NCCL searches for them; here a ring or a tree fills NVLink inside a node, and all of the node's NICs between nodes,
    a tree of two nodes twice, for each of its halves crosses once.
    """
    return np.where(
        nodes == 1, c.nvlink, np.minimum(c.nvlink, c.network * np.where((nodes == 2) & (a == "Tree"), 2, 1))
    )


def _bandwidth(op: str, a: str, p: int, n: Any, nodes: Any, c: Cluster) -> Any:
    g, many = GENERATIONS.index(c.generation), np.minimum(nodes, 3) - 1
    steps = 2 * (n - 1) if op == "all_reduce" else n - 1 if op in ("all_gather", "reduce_scatter") else n
    blackwell = {"ring LL128": version(c.nccl).ring_ll128, "NVLSTree": version(c.nccl).nvls_tree_most}

    def most(kind: str) -> Any:
        return c.channels * np.array((*A_CHANNEL[kind], blackwell.get(kind))[g])[many]

    slow = np.where(nodes == 1, np.array(LL_MOST[g])[many], np.array(LL_MOST[c.cpu == "amd"])[many])
    bus = _bus(a, nodes, c)
    if a in ("NVLS", "NVLSTree"):
        inside = c.nvlink * c.nvls * NVLS_SHARE[g] * (c.channels - 1) / c.channels
        inside = inside * (2 if op == "all_reduce" else (n / nodes - 1) / (n / nodes))
        if a == "NVLS":
            bus = np.where(nodes == 1, inside, 0.0)  # between nodes it needs CollNet
        else:
            outside = np.minimum(c.network * np.where(nodes == 2, 2, 1), most("NVLSTree"))
            bus = np.where(nodes == 1, 0.0, np.minimum(inside, outside))
    if a == "Ring" and p == 0:
        bus = np.minimum(slow, bus * 0.5)
    if a == "Ring" and p == 1:
        bus = np.minimum(bus * 0.92, most("ring LL128"))
    if a == "Tree":
        bus = np.minimum(bus * 0.92, most("tree"))
        bus = np.minimum(bus / 3.8, slow) if p == 0 else bus
        bus = np.minimum(bus * np.where(nodes == 1, 7 / 9, 120 / 128), most("tree LL128")) if p == 1 else bus
    if a == "PAT":
        bus = np.where(nodes == n, bus * 0.75, 0.0)  # one GPU a node only
    if a != "Ring" and op != "all_reduce":
        return bus
    return bus * (0.5 if a == "Tree" else n / steps)


def _latency(op: str, a: str, p: int, n: Any, nodes: Any, c: Cluster) -> Any:
    inside = HOP[a][0][p]
    alone = n == nodes  # one GPU a node
    step = version(c.nccl).nvls_tree if a == "NVLSTree" else HOP[a][1][p]
    outside = np.where(alone, HOP["Tree"][1][p], step) + c.nic_latency * (2 if p == 2 else 1)
    hops = np.floor(np.log2(nodes) + 1e-9)
    if a == "Ring" and op in ("broadcast", "reduce"):
        return BASE[a][p] + n * np.where(nodes == 1, *(HOP["Tree" if p == 2 else a][i][p] for i in (0, 1)))
    if a == "Ring":
        twice = 2 if op == "all_reduce" else 1
        post = np.where(nodes > 1, (2.0 if c.cpu == "amd" else 1.0) * (3 if p == 2 else 1), 0.0)
        return BASE[a][p] + twice * ((n - nodes) * np.maximum(inside, post) + (nodes - 1) * outside)
    if a == "Tree":
        return BASE[a][p] + 2 * ((n // nodes - 1) * inside + hops * outside)
    if a == "NVLS":
        return inside + 0.0 * n
    if a == "NVLSTree":
        return inside + 2 * hops * outside
    return BASE[a][p] + hops * outside / 3.5 + 2.8 * n


def _number(nccl: str) -> tuple[int, ...]:
    return tuple(map(int, nccl.split(".")))
