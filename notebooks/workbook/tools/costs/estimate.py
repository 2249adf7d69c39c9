"""Estimate how long NCCL really takes: its model's shape, with constants that published tables teach. No torch.

Every way has one formula, T = L + S/B + 2·√(P·S/B): L the latency of its steps, S/B the bytes, and between the two the
time in which a pipeline fills. A message that is cut into c pieces pays P for each piece and a c-th of its bytes
once more, and the best c leaves the geometric mean of the two (see `predict.seconds`). The fastest way counts. Steps
are those of NCCL's own model (`nccl`), as are the numbers without a name here; the named ones, `Constants`, are
fitted to published tables by `benchmarks/measure/learn.py`, which a test runs again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools.costs.machine import GENERATIONS, Cluster
from workbook.tools.costs.nccl import HOP, LL_MOST, NVLS_SHARE

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
FABRICS = ("infiniband", "roce", "efa1", "efa", "tcpxo")  # those with constants; others count as InfiniBand


@dataclass(frozen=True)
class Constants:
    """What the published tables teach. Times in µs, the others are shares of what the data sheet or NCCL says."""

    base: float = 11.4  # before the first step: one kernel's start and end
    launch: float = 4.09  # of each GPU that one thread launches for, one after the other
    launch_channel: float = 0.168  # and more of it for each channel of the message, up to Ampere: in older NCCL
    near_network: float = 1.73  # a tree's step over NVLink with LL where a network follows, of NCCL's figure
    post: float = 1.42  # a ring's step over NVLink with LL where it also crosses a network
    step: float = 0.614  # a step with the Simple protocol over NVLink, of NCCL's figure
    net_step: float = 1.63  # the same over a network
    ll: float = 0.783  # bandwidth of the LL protocol, of NCCL's figure
    ring: float = 0.978  # of NVLink's bandwidth, a ring or an all-to-all
    pairwise: float = 0.622  # of the NICs' bandwidth, an all-to-all; all others reach it
    nvls: float = 1.08  # NVLS inside a node, of NCCL's figure
    rack: float = 0.844  # of that, where NVLink joins several hosts
    nvls_tree: float = 0.889  # of that, where a network follows
    fill: float = 0.185  # P: the piece that a pipeline waits for, of the latency of its steps
    nvls_fill: float = 1.71  # P for NVLS, of each GPU in the node: each has its own part of S to cut
    efa1: float = 69.6  # what a step over a fabric takes more than over InfiniBand or RoCE
    efa: float = 19.9
    tcpxo: float = 46.8


@dataclass(frozen=True)
class Own:
    """What a machine does otherwise, as factors: all latencies, the bandwidth, the filling, steps with Simple."""

    latency: float = 1.0
    bandwidth: float = 1.0
    fill: float = 1.0
    simple: float = 1.0


FITTED, USUAL = Constants(), Own()
Way = tuple[Any, Any, Any]  # L in µs, B in GB/s, P in µs


def estimate(op: str, nbytes: Any, n: Any, cluster: Cluster, constants: Constants = FITTED, own: Own = USUAL) -> Any:
    """Estimate the seconds that an operation takes on n GPUs of a cluster, as NCCL would run it; arrays are welcome.

    >>> from workbook.tools.costs.machine import H100
    >>> f"{estimate('all_reduce', 2**30, 16, H100) * 1e3:.1f} ms"  # two published runs took 4.48 and 4.50 ms
    '4.6 ms'

    `nbytes` is nccl-tests' S. How far off it is on machines that it was not fitted on: `published.judge()`.
    Raises `LabError` for an operation that it does not know, and for fewer than two GPUs.
    """
    size, ranks = np.broadcast_arrays(np.asarray(nbytes, float), np.asarray(n))
    found = np.min(list(times(op, size, ranks, cluster, constants, own).values()), axis=0)
    return found if np.ndim(found) else float(found)


def times(
    op: str, nbytes: Any, n: Any, cluster: Cluster, constants: Constants = FITTED, own: Own = USUAL
) -> dict[str, Any]:
    """Return the seconds by each way, such as "Ring, LL"; infinite where there is none. The least is the estimate."""
    size, n = np.asarray(nbytes, float), np.asarray(n)
    if op not in OPS:
        raise LabError(f"{op!r} has no estimate. Choose one of: {', '.join(OPS)}.")
    if np.any(n < 2):
        raise LabError("One GPU has no other to talk to. Give two or more.")
    start, found = launch(op, size, n, cluster, constants), {}
    for name, (latency, bandwidth, piece) in ways(op, n, cluster, constants).items():
        if name.startswith(cluster.algorithm):
            moving = size / (bandwidth * own.bandwidth * 1e3)
            waiting = np.maximum(latency * (own.simple if "Simple" in name else 1.0), start) + cluster.call_overhead
            found[name] = (waiting * own.latency + moving + 2 * own.fill * np.sqrt(piece * moving)) * 1e-6
    return found


def ways(op: str, n: Any, c: Cluster, q: Constants = FITTED) -> dict[str, Way]:
    """Return L, B and P of each way that NCCL has for an operation on n GPUs."""
    nodes = -(-n // c.gpus_per_node)
    mine, between = n / nodes, nodes > 1
    newer = GENERATIONS.index(c.generation) >= 2  # before Hopper the NIC's writes had to be flushed
    near = HOP["Ring"][0][0]
    network = np.where(between, c.network, np.inf)
    inside = c.nvlink * q.ring
    late = {"efa1": q.efa1, "efa": q.efa, "tcpxo": q.tcpxo}.get(c.fabric, 0.0)
    net_step = HOP["Ring"][1][2] * q.net_step + late * (1 if newer else 2)
    if op == "all_to_all":  # each GPU has its share of the NICs, and sends n - mine parts of n through it
        out = np.where(between, network * q.pairwise / mine * n / np.maximum(n - mine, 1e-9), np.inf)
        latency = q.base + between * (HOP["Tree"][1][0] + late + 2 * q.post * (n - mine))
        return {"pairwise": (latency, np.minimum(inside * n / (n - 1), out), q.fill * q.base)}
    twice, chain = (2 if op == "all_reduce" else 1), op in ("broadcast", "reduce")
    steps, far = twice * (n - nodes), twice * (nodes - 1)
    ring = np.minimum(inside * np.where(between, mine / np.maximum(mine - 1, 1e-9), 1.0), network)
    slow = q.ll * np.where(
        between,
        np.array(LL_MOST[2])[np.minimum(nodes, 3) - 1],
        min(LL_MOST[GENERATIONS.index(c.generation)][0], c.nvlink),
    )
    slow = np.minimum(slow, ring / 2)  # half of what LL sends is flags
    share = 1.0 if chain else n / (twice * (n - 1))
    quick = steps * np.where(between & (not chain), q.post, near)
    full = near * steps + HOP["Ring"][0][2] * q.step if chain else steps * HOP["Ring"][0][2] * q.step
    quick, full = quick + far * (HOP["Ring"][1][0] + late), full + far * net_step
    found = {
        "Ring, LL": (q.base + quick, slow * share, q.fill * quick),
        "Ring, Simple": (q.base + full, ring * share, q.fill * full),
    }
    if op != "all_reduce":
        return found
    hops = 2 * np.floor(np.log2(nodes) + 1e-9)
    crossing = network * np.where(nodes == 2, 1.0, 0.5)  # of two nodes each sends S; of more, one in two sends 2 S
    quick = 2 * (mine - 1) * near * np.where(between, q.near_network, 1.0) + hops * (HOP["Tree"][1][0] + late)
    full = 2 * (mine - 1) * HOP["Tree"][0][2] * q.step + hops * net_step
    tree = np.minimum(inside * 0.92 / 2, crossing)
    found["Tree, LL"] = (q.base + quick, np.minimum(slow, tree) / 2, q.fill * quick)
    found["Tree, Simple"] = (q.base + full, tree, q.fill * full)
    if c.nvls:  # a GPU sends S to be added up, and the sum of its own part: S·(1 + 1/mine)
        share = q.nvls * NVLS_SHARE[GENERATIONS.index(c.generation)] * (q.rack if c.gpus_per_node > 8 else 1.0)
        switch = c.nvlink * share * mine / (mine + 1) * np.where(between, q.nvls_tree, 1.0)
        latency, piece = HOP["NVLS"][0][2] * q.step + hops * net_step, q.fill * hops * net_step
        found["NVLS, Simple"] = (latency, np.minimum(switch, crossing), q.nvls_fill * mine + piece)
    return found


def launch(op: str, size: Any, n: Any, c: Cluster, q: Constants = FITTED) -> Any:
    """Return the µs until one thread has launched for all its GPUs; LL gives a channel 32 KiB, up to all channels."""
    if c.gpus_per_process == 1:
        return 0.0
    channels = c.channels + 2 * n if op == "all_to_all" else np.clip(size / 2**15, 1, c.channels)
    older = GENERATIONS.index(c.generation) < 2
    return c.gpus_per_process * (q.launch + q.launch_channel * channels * older)
