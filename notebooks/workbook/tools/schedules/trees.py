"""Trees: the buffer goes down, or sums come up. Few steps; the double tree leaves no rank idle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools.schedules.build import backwards, check, filled, renumbered, step, together
from workbook.tools.schedules.schedule import Schedule, Send, Step


def tree(op: str, n: int, root: int = 0) -> Schedule:
    """Send along a binomial tree: in step k the first 2ᵏ ranks send to the next 2ᵏ. ⌈log2 N⌉ steps of S bytes.

    The broadcast is Gloo's (gloo/broadcast.cc). A reduce is the same backwards, an all-reduce both.

    >>> [[(s.src, s.dst) for s in step] for step in tree("broadcast", 4).steps]
    [[(0, 1)], [(0, 2), (1, 3)]]
    """
    check("tree", op, ("broadcast", "reduce", "all_reduce"), n, root)
    levels = range((n - 1).bit_length())
    from_0 = [step(Send(v, v + 2**k, (0,)) for v in range(2**k) if v + 2**k < n) for k in levels]
    down = renumbered(from_0, [(r + root) % n for r in range(n)])
    steps = {"broadcast": down, "reduce": backwards(down), "all_reduce": backwards(down) + down}[op]
    return Schedule("tree", op, n, 1, steps, root)


def parents(n: int) -> tuple[list[int], list[int]]:
    """Return each rank's parent in NCCL's two trees (trees.cc), -1 at roots: inner ranks of one are the other's leaves.

    >>> parents(8)
    ([-1, 2, 4, 2, 0, 6, 4, 6], [1, 3, 1, 7, 5, 3, 5, -1])
    """

    def up(r: int) -> int:
        if r == 0:
            return -1
        bit = r & -r
        return r ^ bit if (r ^ bit) | (bit << 1) >= n else (r ^ bit) | (bit << 1)

    first = [up(r) for r in range(n)]
    if n % 2 == 0:  # mirrored
        second = [n - 1 - p if p >= 0 else -1 for p in reversed(first)]
    else:  # shifted by one
        second = [(p + 1) % n if p >= 0 else -1 for p in (first[(r - 1) % n] for r in range(n))]
    return first, second


def depths_and_heights(parent: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how far each rank of a tree is below the root, and above the farthest leaf below it.

    >>> [each.tolist() for each in depths_and_heights([-1, 0, 1])]
    [[0, 1, 2], [2, 1, 0]]
    """
    parent = np.asarray(parent)
    depth, height, at = np.zeros(len(parent), int), np.zeros(len(parent), int), parent
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, parent[at], -1)
    for level in range(int(depth.max()), 0, -1):
        at = np.flatnonzero(depth == level)
        np.maximum.at(height, parent[at], height[at] + 1)
    return depth, height


def node_parents(nodes: int, gpus: int) -> tuple[list[int], list[int]]:
    """Return parents of `nodes` × `gpus` ranks in NCCL's two trees: a chain per node, the tree over the chains' heads.

    Rank = node · gpus + place in the node; the head of a node's chain is its place 0 in both trees. (NCCL's search may
    choose different heads, to use different network cards: its log line "Trees" says which.)

    >>> node_parents(2, 3)
    ([-1, 0, 1, 0, 3, 4], [3, 0, 1, -1, 3, 4])
    """
    check("double tree", "all_reduce", ("all_reduce",), min(nodes, gpus))

    def chained(parent: list[int]) -> list[int]:
        return [
            m * gpus + i - 1 if i else parent[m] * gpus if parent[m] >= 0 else -1
            for m in range(nodes)
            for i in range(gpus)
        ]

    first, second = parents(nodes)
    return chained(first), chained(second)


def double_tree(op: str, n: int, pieces: int = 1, gpus: int = 1) -> Schedule:
    """NCCL's double binary tree: each half of the buffer goes up and down a tree of its own, in `pieces` pieces.

    A rank that is inner in one tree is a leaf in the other, so that each sends at most 2S. The pieces follow one
    another through the tree: 2⌈log2 N⌉ + pieces - 1 steps. With `gpus` ranks on a node the trees are over nodes, with
    a chain in each node, as NCCL has it: the chain is gpus - 1 steps more, up and again down.

    >>> len(double_tree("all_reduce", 8, pieces=4).steps), max(double_tree("all_reduce", 8, pieces=4).sent(8.0))
    (9, 16.0)
    >>> len(double_tree("all_reduce", 8, gpus=4).steps)  # two nodes: 2 · (1 + 3)
    8
    """
    check("double tree", op, ("all_reduce",), n)
    if gpus < 1 or n % gpus:
        raise LabError(f"{n} ranks do not fill nodes of {gpus}. Choose a divisor of {n}.")
    halves = [
        pipelined(parent, tuple(range(half * pieces, (half + 1) * pieces)))
        for half, parent in enumerate(node_parents(n // gpus, gpus))
    ]
    name = "double tree" if gpus == 1 else f"double tree {n // gpus}×{gpus}"
    return Schedule(name, op, n, 2 * pieces, filled(together(halves)))


def pipelined(parent: list[int], pieces: tuple[int, ...]) -> tuple[Step, ...]:
    """Up and down one tree, piece after piece: a rank sends piece p as soon as it has it from all below (above) it."""
    depth, height = depths_and_heights(parent)
    deepest = int(depth.max())
    steps: list[list[Send]] = [[] for _ in range(2 * deepest + len(pieces) - 1)] if deepest else []
    for r, up in enumerate(parent):
        for i, piece in enumerate(pieces):
            if up >= 0:
                steps[height[r] + i].append(Send(r, up, (piece,), True))
                steps[deepest + depth[r] - 1 + i].append(Send(up, r, (piece,)))
    return tuple(map(tuple, steps))
