"""Price whole algorithms on a described cluster: α-β on two kinds of link, for as many ranks as you like.

Every formula is closed and takes arrays: a hundred thousand ranks cost as much time as four, and a sweep over
sizes or ranks is one call. S is nccl-tests' size. Neither torch nor a cluster.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workbook.tools.costs import nccl
from workbook.tools.costs.machine import Cluster
from workbook.tools.formulas import Figures, figures

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
NEAR, FAR = nccl.HOP["Ring"]
LINKS = {  # protocol: µs of a step as shares of the Simple protocol's, NVLink and network; bytes sent for one; posts
    "LL": (NEAR[0] / NEAR[2], FAR[0] / FAR[2], 2.0, 1.0),
    "Simple": (1.0, 1.0, 1.0, 3.0),
}


def times(op: str, nbytes: Any, n: Any, cluster: Cluster, protocols: tuple[str, ...] = tuple(LINKS)) -> dict[str, Any]:
    """Return the seconds of each algorithm on a cluster, by the protocol that suits the size; arrays are welcome.

    >>> from workbook.tools.costs.machine import H100
    >>> found = times("all_reduce", 1e9, 100_000, H100)
    >>> min(found, key=found.get)
    'hierarchical, PAT between nodes'

    The algorithms, those of `OPS`, are priced by their steps and bytes alone, as if all links were busy all the time.
    `costs.estimate` has what keeps them from it.

    LL sends a flag with each eight bytes, and needs no other step to tell that they have come: twice the bytes for a
    fifth of the latency. Small messages take it.
    """
    each = [_times(op, nbytes, n, cluster, *LINKS[p]) for p in protocols]
    return {name: np.min([found[name] for found in each], axis=0) for name in each[0]}


def _times(
    op: str, nbytes: Any, n: Any, c: Cluster, quick: float, quick_out: float, sent: float, posts: float
) -> dict[str, Any]:
    """Return the seconds of each algorithm by one protocol.

    A ring that passes all GPUs goes k times from node to node, and its bytes are as slow as the slower link. A
    hierarchical all-reduce is a reduce-scatter in the node, an all-reduce of a g-th part on each of g rails, and
    an all-gather in the node, on pieces so small that the slower of the two kinds of link decides and the other one's
    time is hidden. The double tree's pieces pay for the time in which its pipeline fills. A flat PAT lets
    each GPU fetch everything over the network for itself, g times what its node needs.
    """
    size, n = np.broadcast_arrays(np.asarray(nbytes, float) * sent, np.asarray(n))
    k = -(-n // c.gpus_per_node)
    g = n / k
    near, far = c.nvlink_latency * quick * 1e-6, (c.network_latency * quick_out + c.nic_latency) * 1e-6
    inside, outside = size / (c.nvlink * 1e9), size / (c.network * 1e9)  # seconds that S takes there
    slower = np.where(k > 1, np.maximum(inside, outside), inside)

    def both(algorithm: str, pieces: int | None = None) -> tuple[Figures, Figures, Figures]:
        """Return the figures for all ranks, for those of a node, and for the nodes."""
        alls, node, nodes = (figures(op, algorithm, m, pieces) for m in (n, g, k))
        return alls, node, nodes

    if op == "all_to_all":  # a node sends S/n to each GPU elsewhere, from each of its g GPUs
        _, node, nodes = both("pairwise")
        own, out = np.ceil(g) - 1, outside * g * (n - g) / n
        return {
            "pairwise": own * near + (n - g) * far + inside * (g - 1) / n + out,
            "through one's own node": own * near + nodes.steps * far + inside * (node.serial + (g - 1) / n) + out,
        }
    if op == "broadcast":
        _, node, nodes = both("tree")
        chain, _, over = both("ring", pieces=1)
        one_nic = size / (c.rail / c.oversubscription * 1e9)
        parts = figures("scatter", "linear", g).seconds(near, inside) + figures("all_gather", "ring", g).seconds(
            near, inside
        )
        return {
            "binomial tree": node.seconds(near, inside) + nodes.seconds(far, one_nic),
            "ring in pieces": (chain.steps - over.steps) * near + over.steps * far + chain.sent * slower,
            "hierarchical, scatter + gather": nodes.seconds(far, outside) + parts,
        }
    ring, ring_in, ring_out = both("ring")
    pat, pat_in, pat_out = both("PAT")
    post = np.where(k > 1, np.maximum(near, posts * (2e-6 if c.cpu == "amd" else 1e-6)), near)  # as NCCL has it
    in_node, moving = ring_in.steps * near, np.maximum(ring_in.serial * inside, ring_out.serial * outside)
    found = {
        "flat ring": (ring.steps - ring_out.steps) * post + ring_out.steps * far + ring.serial * slower,
        "hierarchical, ring between nodes": in_node + ring_out.steps * far + moving,
        "hierarchical, PAT between nodes": in_node + pat_out.steps * far + moving,
    }
    if op == "all_reduce":  # chains in the nodes, a double tree between them; S goes up and S comes down, in pieces
        twice = np.where(k > 2, 2, np.where(k > 1, 1, 0))  # of two nodes each sends its half and gets the other
        latency = ring_in.steps * near + figures(op, "double tree", k).steps * far
        moving = np.maximum(2 * inside, outside * twice)
        found["double tree"] = latency + moving + 2 * np.sqrt(latency * moving)  # the best number of pieces: `textbook`
    else:
        moving = np.maximum(pat.serial * inside, outside * g * (n - g) / n)
        found["flat PAT"] = pat_in.steps * near + pat_out.steps * far + moving
    return found
