"""How long NCCL really takes: its model's shape with the few constants that published tables teach. No torch.

Every way has one formula, T = L + S/B + 2·√(P·S/B): L the latency of its steps, S/B the bytes, and between the two the
time in which a pipeline fills. A message that is cut into c pieces pays P for each piece and a c-th of its bytes
once more, and the best c leaves the geometric mean of the two (see `textbook.seconds`). The fastest way counts. Steps
are those of NCCL's own model (`nccl`), as are the numbers without a name here; the named ones, `Constants`, are
fitted to published tables by `labkit.theory.published.learn`, which a test runs again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.theory.costs.machine import GENERATIONS, Cluster
from labkit.theory.costs.nccl import HOP, LL_MOST

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")


@dataclass(frozen=True)
class Constants:
    """What the published tables teach. Times in µs, the others are shares of what the data sheet or NCCL says."""

    base: float = 8.14  # before the first step: one kernel's start and end
    blackwell: float = 11.05  # more of it on Blackwell
    launch: float = 4.17  # of each GPU that one thread launches for, one after the other
    launch_channel: float = 0.163  # and more of it for each channel that the message is spread over
    step: float = 0.602  # a step with the Simple protocol over NVLink, of NCCL's figure
    net_step: float = 1.657  # the same over a network
    efa1: float = 73.4  # more a step over the fabrics that rented machines have
    efa: float = 24.3
    tcpx: float = 17.8
    ll: float = 0.798  # bandwidth of the LL protocol, of NCCL's figure
    ring: float = 0.969  # of NVLink's bandwidth, a ring or an all-to-all
    network: float = 1.026  # of the NICs' bandwidth, two nodes
    many: float = 0.928  # of that, three nodes or more
    nvls: float = 0.938  # of NVLink's bandwidth, adding up in the switch
    nvls_blackwell: float = 0.681
    nvls_tree: float = 0.841  # of that, where a network follows
    fill: float = 0.13  # P: the piece that a pipeline waits for, of the latency of its steps
    nvls_fill: float = 1.436  # P for NVLS, of each GPU in the node: each has its own part of S to cut


FITTED = Constants()
Way = tuple[Any, Any, Any]  # L in µs, B in GB/s, P in µs


def estimate(op: str, nbytes: Any, n: Any, cluster: Cluster, constants: Constants = FITTED) -> Any:
    """Seconds that an operation takes on n GPUs of a cluster, as NCCL would run it; arrays are welcome.

    >>> from labkit.theory.costs.machine import H100
    >>> f"{estimate('all_reduce', 2**30, 16, H100) * 1e3:.1f} ms"  # two published runs took 4.48 and 4.50 ms
    '4.6 ms'

    `nbytes` is nccl-tests' S. How far off it is on machines that it was not fitted on: `published.judge()`.
    Raises `LabError` for an operation that it does not know, and for fewer than two GPUs.
    """
    size, ranks = np.broadcast_arrays(np.asarray(nbytes, float), np.asarray(n))
    found = np.min(list(times(op, size, ranks, cluster, constants).values()), axis=0)
    return found if np.ndim(found) else float(found)


def times(op: str, nbytes: Any, n: Any, cluster: Cluster, constants: Constants = FITTED) -> dict[str, Any]:
    """Seconds by each way, such as "Ring, LL"; infinite where there is none. The least is the estimate."""
    size, n = np.asarray(nbytes, float), np.asarray(n)
    if op not in OPS:
        raise LabError(f"{op!r} has no estimate. Choose one of: {', '.join(OPS)}.")
    if np.any(n < 2):
        raise LabError("One GPU has nobody to talk to. Give two or more.")
    start, found = _launch(op, size, n, cluster, constants), {}
    for name, (latency, bandwidth, piece) in ways(op, n, cluster, constants).items():
        if not name.startswith(cluster.algorithm):
            continue
        with np.errstate(divide="ignore"):
            moving = np.where(bandwidth > 0, size / (bandwidth * 1e3), np.inf)
        total = np.maximum(latency, start) + moving + 2 * np.sqrt(piece * moving) + cluster.call_overhead
        found[name] = total * 1e-6
    return found


def ways(op: str, n: Any, c: Cluster, q: Constants = FITTED) -> dict[str, Way]:
    """L, B and P of each way that NCCL has for an operation on n GPUs."""
    nodes = -(-n // c.gpus_per_node)
    mine, between = n / nodes, nodes > 1
    extra = {"efa": q.efa, "efa1": q.efa1, "tcpx": q.tcpx}.get(c.fabric, 0.0)
    late = 1.0 if GENERATIONS.index(c.generation) >= 2 else 2.0  # before Hopper the NIC's writes had to be flushed
    net_step = HOP["Ring"][1][2] * q.net_step + late * extra
    base = q.base + q.blackwell * (c.generation == "blackwell")
    network = np.where(between, c.network * q.network * np.where(nodes > 2, q.many, 1.0), np.inf)
    inside = c.nvlink * q.ring
    if op == "all_to_all":  # each GPU has its share of the NICs, and sends n - mine parts of n through it
        out = np.where(between, network / mine * n / np.maximum(n - mine, 1e-9), np.inf)
        latency = base + HOP["Ring"][0][0] * (mine - 1) + between * (HOP["Tree"][1][0] + extra + (n - mine))
        return {"pairwise": (latency, np.minimum(inside * n / (n - 1), out), q.fill * base)}
    slow = q.ll * np.where(
        between,
        np.array(LL_MOST[2])[np.minimum(nodes, 3) - 1],
        min(LL_MOST[GENERATIONS.index(c.generation)][0], c.nvlink),
    )
    twice, chain = (2 if op == "all_reduce" else 1), op in ("broadcast", "reduce")
    near, far = twice * (n - nodes), twice * (nodes - 1)
    ring = np.minimum(inside * np.where(between, mine / np.maximum(mine - 1, 1e-9), 1.0), network)
    share = 1.0 if chain else n / (twice * (n - 1))
    quick = near * (HOP["Ring"][0][0] if chain else np.where(between, 1.0, HOP["Ring"][0][0])) + far * (
        HOP["Ring"][1][0] + extra
    )
    full = near * HOP["Ring"][0][2] * q.step + far * net_step
    if chain:  # what follows in pieces pays for its steps once, while the first piece passes
        full = near * HOP["Ring"][0][0] + HOP["Ring"][0][2] * q.step + far * net_step
    found = {
        "Ring, LL": (base + quick, slow * share, q.fill * quick),
        "Ring, Simple": (base + full, ring * share, q.fill * full),
    }
    if op != "all_reduce":
        return found
    hops = 2 * np.floor(np.log2(nodes) + 1e-9)
    crossing = network * np.where(nodes == 2, 1.0, 0.5)  # of two nodes each sends S; of more, one in two sends 2 S
    quick = 2 * (mine - 1) * HOP["Tree"][0][0] + hops * (HOP["Tree"][1][0] + extra)
    full = 2 * (mine - 1) * HOP["Tree"][0][2] * q.step + hops * net_step
    found["Tree, LL"] = (base + quick, slow / 2, q.fill * quick)
    found["Tree, Simple"] = (base + full, np.minimum(inside * 0.92 / 2, crossing), q.fill * full)
    if c.nvls:  # a GPU sends S to be added up, and the sum of its own part: S·(1 + 1/mine)
        share = q.nvls_blackwell if c.generation == "blackwell" else q.nvls
        switch = c.nvlink * share * mine / (mine + 1) * np.where(between, q.nvls_tree, 1.0)
        latency = HOP["NVLS"][0][2] * q.step + base - q.base + hops * net_step
        found["NVLS, Simple"] = (latency, np.minimum(switch, crossing), q.nvls_fill * mine + q.fill * hops * net_step)
    return found


def _launch(op: str, size: Any, n: Any, c: Cluster, q: Constants) -> Any:
    """µs until one thread has launched for all its GPUs; LL gives a channel 32 KiB, up to all channels."""
    if c.gpus_per_process == 1:
        return 0.0
    channels = c.channels + 2 * n if op == "all_to_all" else np.clip(size / 2**15, 1, c.channels)
    return c.gpus_per_process * (q.launch + q.launch_channel * channels)
