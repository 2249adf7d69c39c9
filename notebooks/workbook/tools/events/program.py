"""Build all-reduces of very many ranks as arrays: who sends to whom in which step, and how much.

They are those of `tools.schedules`, whose objects (a tuple of chunks for each send) would not fit into memory for
100,000 ranks. What a message carries is left out, its size is kept: a test holds every builder against them.
Imports neither torch nor a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbook.tools.events.fabric import Numbers
from workbook.tools.formulas import log2_up
from workbook.tools.schedules.trees import depths_and_heights, parents

PIECES = 8


@dataclass(frozen=True)
class Program:
    """`dst[step, slot, r]` is the rank to which rank r sends, or -1; `share` the part of S that goes, of its shape."""

    name: str
    dst: Numbers
    share: Numbers

    @property
    def n(self) -> int:
        """The number of ranks."""
        return int(self.dst.shape[2])

    @property
    def messages(self) -> int:
        """The number of messages of all ranks."""
        if len(self.dst) and self.dst.strides[0] == 0:  # one step again and again, as a ring's
            return int(np.count_nonzero(self.dst[0] >= 0)) * len(self.dst)
        return int(np.count_nonzero(self.dst >= 0))


def ring(n: int) -> Program:
    """Send a chunk to the next rank in each step."""
    steps = 2 * (n - 1)
    to = (np.arange(n, dtype=np.int32) + 1) % n
    return Program("ring", np.broadcast_to(to, (steps, 1, n)), np.full((steps, 1, 1), 1 / n))


def bruck(n: int) -> Program:
    """Send as Bruck's algorithm does: step k of the all-gather goes to the rank 2ᵏ before, the near ones first."""
    bits = [1 << k for k in range(log2_up(n))]
    return _gathering("Bruck", n, [(bit, min(bit, n - bit)) for bit in bits])


def pat(n: int) -> Program:
    """Send as PAT does, with as many chunks a message as there are: Bruck's distances from far to near."""
    bits = [1 << k for k in reversed(range(log2_up(n)))]
    return _gathering("PAT", n, [(bit, ((n - 1) // bit + 1) // 2) for bit in bits])


def halving_doubling(n: int) -> Program:
    """Send as Rabenseifner's all-reduce does, near ranks first; ranks beyond a power of two are folded."""
    levels = n.bit_length() - 1
    p = 1 << levels
    extra, ranks = n - p, np.arange(n)
    active = ranks[(ranks >= 2 * extra) | (ranks % 2 == 1)]
    rows, shares = [], []
    for k in [*range(levels), *reversed(range(levels))]:
        row = np.full(n, -1, np.int32)
        row[active] = active[np.arange(p) ^ (1 << k)]
        rows.append(row)
        shares.append(2.0 ** -(k + 1))
    if extra:
        fold, unfold = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
        fold[0 : 2 * extra : 2] = ranks[1 : 2 * extra : 2]
        unfold[1 : 2 * extra : 2] = ranks[0 : 2 * extra : 2]
        rows, shares = [fold, *rows, unfold], [1.0, *shares, 1.0]
    dst = np.array(rows, np.int32).reshape(-1, 1, n)
    return Program("halving-doubling", dst, np.array(shares).reshape(-1, 1, 1))


def double_tree(n: int) -> Program:
    """Send along NCCL's double binary tree, each half of S in `PIECES` that follow one another."""
    trees = [(np.array(parent), *depths_and_heights(parent)) for parent in parents(n)]
    steps = max(2 * depth.max() + PIECES - 1 for _, depth, _ in trees) if n > 1 else 0
    dst = np.full((steps, 6, n), -1, np.int32)
    for half, (parent, depth, height) in enumerate(trees):
        child = np.flatnonzero(parent >= 0)
        up = parent[child]
        order = np.argsort(up, kind="stable")  # the first child of a rank takes one slot, the second the other one
        second = np.zeros(len(child), int)
        second[order[1:]] = up[order[1:]] == up[order[:-1]]
        for i in range(PIECES):
            dst[height[child] + i, half, child] = up
            dst[depth.max() + depth[child] - 1 + i, 2 + 2 * half + second, up] = child
    return Program("double tree", dst, np.full((steps, 1, 1), 1 / (2 * PIECES)))


BUILDERS: dict[str, Callable[[int], Program]] = {
    "ring": ring, "halving-doubling": halving_doubling, "double tree": double_tree, "Bruck": bruck, "PAT": pat,
}  # fmt: skip


def _gathering(name: str, n: int, gather: list[tuple[int, int]]) -> Program:
    """Add up by steps of (distance, chunks) forwards in the opposite order, then gather by the same ones back."""
    ranks = np.arange(n, dtype=np.int32)
    ways = [*reversed(gather), *((-bit, many) for bit, many in gather)]
    dst = np.array([(ranks + way) % n for way, _ in ways], np.int32).reshape(-1, 1, n)
    return Program(name, dst, np.array([many / n for _, many in ways]).reshape(-1, 1, 1))
