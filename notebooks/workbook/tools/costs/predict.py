"""Price whole algorithms by their steps and bytes alone: where every link is alike, and on a described cluster.

T = steps·α + serial·S·β + added·S·γ, with α in seconds per message, β in seconds per byte, γ in seconds per byte that
is added; steps, bytes and S are those of `workbook.tools.formulas`, where the sources stand. Where links are alike,
every rank has one of its own, both ways at once; a cluster has two kinds of link, and S is nccl-tests' size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools.costs import nccl
from workbook.tools.costs.machine import Cluster
from workbook.tools.formulas import FORMULAS, PIPELINED, Figures, figures

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
NEAR, FAR = nccl.HOP["Ring"]
LINKS = {  # protocol: µs of a step as shares of the Simple protocol's, NVLink and network; bytes sent for one; posts
    "LL": (NEAR[0] / NEAR[2], FAR[0] / FAR[2], 2.0, 1.0),
    "Simple": (1.0, 1.0, 1.0, 3.0),
}

# Formulas that are not compared: what needs a power of two, and what is a reduce-scatter and an all-gather of others.
APART = {
    "all_reduce": ("Bruck", "PAT"),
    "reduce_scatter": ("Bruck", "halving-doubling"),
    "all_gather": ("halving-doubling",),
}
ALGORITHMS = {op: tuple(name for name in known if name not in APART.get(op, ())) for op, known in FORMULAS.items()}


def _of(op: str) -> tuple[str, ...]:
    """Return the names of an operation's algorithms; `LabError` where there are none."""
    if op not in ALGORITHMS:
        raise LabError(f"{op!r} has no costs here. Choose one of: {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[op]


def seconds(op: str, algorithm: str, n: Any, nbytes: Any, alpha: float, beta: float, gamma: float = 0.0) -> Any:
    """Return the seconds that an operation takes by an algorithm; n and nbytes may be arrays.

    >>> round(float(seconds("all_reduce", "ring", 4, 1e6, alpha=1e-5, beta=1e-9)) * 1e6)  # 6 α + 1.5 MB, in µs
    1560

    What can be cut into pieces that follow one another (a chain, a double tree) is cut into the best number of them.
    In one piece it takes fill + 1 steps, and in c pieces fill + c steps of a c-th of the bytes, so that the best c is
    √(fill·S·β / α), S being what one step moves in one piece.
    """
    if algorithm not in _of(op):
        raise LabError(f"{op} has no algorithm {algorithm!r} here. Choose one of: {', '.join(ALGORITHMS[op])}.")
    n, size = np.asarray(n), np.asarray(nbytes, float)
    pieces = None
    if (op, algorithm) in PIPELINED:
        whole = figures(op, algorithm, n, pieces=1)
        moving = whole.serial / np.maximum(whole.steps, 1) * size * beta
        pieces = np.maximum(1, np.sqrt(np.maximum(whole.steps - 1, 0) * moving / max(alpha, 1e-300)))
    return figures(op, algorithm, n, pieces).seconds(alpha, size * beta, size * gamma)


def flat(op: str, nbytes: Any, n: Any, alpha: float, beta: float) -> dict[str, Any]:
    """Return the seconds of each algorithm where every pair of ranks has the same α and β; arrays are welcome."""
    size, n = np.broadcast_arrays(np.asarray(nbytes, float), np.asarray(n))
    return {name: seconds(op, name, n, size, alpha, beta) for name in _of(op)}


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
        found["double tree"] = latency + moving + 2 * np.sqrt(latency * moving)  # the best number of pieces: `seconds`
    else:
        moving = np.maximum(pat.serial * inside, outside * g * (n - g) / n)
        found["flat PAT"] = pat_in.steps * near + pat_out.steps * far + moving
    return found
