"""Schedules for very many ranks, as arrays: who sends to whom in which step, and how much. No torch, no cluster.

They are those of `tools.schedules`, whose objects (a tuple of chunks for each send) would not fit into memory for
100,000 ranks. What a message carries is left out, its size is kept: a test holds every builder against them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools.formulas import log2_up
from workbook.tools.schedules import Schedule, parents

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Program:
    """`dst[step, slot, r]` is the rank to which rank r sends, or -1; `share` the part of S that goes, of its shape."""

    name: str
    dst: Numbers
    share: Numbers

    @property
    def n(self) -> int:
        """The ranks."""
        return int(self.dst.shape[2])

    @property
    def messages(self) -> int:
        """How many messages all ranks send."""
        if len(self.dst) and self.dst.strides[0] == 0:  # one step again and again, as a ring's
            return int(np.count_nonzero(self.dst[0] >= 0)) * len(self.dst)
        return int(np.count_nonzero(self.dst >= 0))


def of_schedule(schedule: Schedule) -> Program:
    """The same of a `workbook.tools.schedules` object.

    >>> from workbook.tools import schedules
    >>> of_schedule(schedules.ring("all_gather", 3)).dst[:, 0].tolist()
    [[1, 2, 0], [1, 2, 0]]
    """
    slots = max([1, *(sum(s.src == r for s in step) for step in schedule.steps for r in range(schedule.n))])
    dst = np.full((len(schedule.steps), slots, schedule.n), -1, np.int32)
    share = np.zeros(dst.shape)
    for k, step in enumerate(schedule.steps):
        taken = [0] * schedule.n
        for send in step:
            dst[k, taken[send.src], send.src] = send.dst
            share[k, taken[send.src], send.src] = len(send.chunks) / schedule.chunks
            taken[send.src] += 1
    return Program(schedule.name, dst, share)


def ring(op: str, n: int) -> Program:
    """Each step a chunk to the next rank."""
    steps = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}[_known("ring", op)] * (n - 1)
    to = (np.arange(n, dtype=np.int32) + 1) % n
    return Program("ring", np.broadcast_to(to, (steps, 1, n)), np.full((steps, 1, 1), 1 / n))


def bruck(op: str, n: int) -> Program:
    """Bruck's: step k of an all-gather goes to the rank 2ᵏ before, the near ones first."""
    bits = [1 << k for k in range(log2_up(n))]
    return _gathering("Bruck", op, n, [(bit, min(bit, n - bit)) for bit in bits])


def pat(op: str, n: int) -> Program:
    """PAT with as many chunks a message as there are: Bruck's distances from far to near."""
    bits = [1 << k for k in reversed(range(log2_up(n)))]
    return _gathering("PAT", op, n, [(bit, ((n - 1) // bit + 1) // 2) for bit in bits])


def halving_doubling(op: str, n: int) -> Program:
    """Rabenseifner's all-reduce, the near ranks first; what is more than a power of two is folded."""
    if op != "all_reduce":
        raise LabError(f"halving-doubling is no {op} here. Take all_reduce, or PAT's {op}.")
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


def double_tree(op: str, n: int, pieces: int = 8) -> Program:
    """NCCL's double binary tree, each half of S in so many pieces that follow one another."""
    if op != "all_reduce":
        raise LabError(f"double tree is no {op}. It does all_reduce.")
    trees = [_tree(np.array(parent)) for parent in parents(n)]
    steps = max((2 * deepest + pieces - 1 for *_, deepest in trees), default=0) if n > 1 else 0
    dst = np.full((steps, 6, n), -1, np.int32)
    for half, (parent, depth, height, deepest) in enumerate(trees):
        child = np.flatnonzero(parent >= 0)
        up = parent[child]
        order = np.argsort(up, kind="stable")  # the first child of a rank takes one slot, the second the other one
        second = np.zeros(len(child), int)
        second[order[1:]] = up[order[1:]] == up[order[:-1]]
        for i in range(pieces):
            dst[height[child] + i, half, child] = up
            dst[deepest + depth[child] - 1 + i, 2 + 2 * half + second, up] = child
    return Program("double tree", dst, np.full((steps, 1, 1), 1 / (2 * pieces)))


BUILDERS: dict[str, Callable[[str, int], Program]] = {
    "ring": ring, "Bruck": bruck, "PAT": pat, "halving-doubling": halving_doubling, "double tree": double_tree,
}  # fmt: skip


def _gathering(name: str, op: str, n: int, gather: list[tuple[int, int]]) -> Program:
    """Steps of (distance, chunks) back; the same forwards and in the opposite order for what adds up."""
    ranks = np.arange(n, dtype=np.int32)
    ways = [(bit, many) for bit, many in reversed(gather)] * (_known(name, op) != "all_gather")
    ways += [(-bit, many) for bit, many in gather] * (op != "reduce_scatter")
    dst = np.array([(ranks + way) % n for way, _ in ways], np.int32).reshape(-1, 1, n)
    return Program(name, dst, np.array([many / n for _, many in ways]).reshape(-1, 1, 1))


def _tree(parent: Numbers) -> tuple[Numbers, Numbers, Numbers, int]:
    """A tree's parents, each rank's depth, its height, and the greatest depth."""
    depth, at = np.zeros(len(parent), int), parent.copy()
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, parent[at], -1)
    height, deepest = np.zeros(len(parent), int), int(depth.max())
    for level in range(deepest, 0, -1):
        at = np.flatnonzero(depth == level)
        np.maximum.at(height, parent[at], height[at] + 1)
    return parent, depth, height, deepest


def _known(name: str, op: str) -> str:
    if op not in ("all_reduce", "reduce_scatter", "all_gather"):
        raise LabError(f"{name} is no {op} here. Take all_reduce, reduce_scatter or all_gather.")
    return op
