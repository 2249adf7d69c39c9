"""Place the ranks of a plan: where each is along each dimension, to whom it sends, which messages leave a host.

Rank r is in host r // (ranks in a host). In the order "pipe data tensor", neighbours differ in their place along
tensor, then in that along data, and the stages are farthest apart. Pure numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from workbook.tools.planning.job import Plan

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Edge:
    """From every rank a message to one other rank, along a dimension: `to[r]`, r itself where it sends none."""

    to: Array
    leaves: Array  # whether it leaves the host of r


@dataclass(frozen=True)
class Places:
    """Each rank's place along each dimension, its host, and to whom it sends along each dimension."""

    at: dict[str, Array]
    host: Array
    edges: dict[str, Edge]  # "data" and "tensor": to the next in the ring; "next" and "before": stages


@cache
def places(plan: Plan, per_host: int) -> Places:
    """Place the ranks of a plan, with so many ranks in a host."""
    names = plan.order.split()
    ranks = np.arange(plan.mesh.ranks).reshape([getattr(plan, name) for name in names])  # neighbours: the last axis
    host = np.arange(ranks.size) // per_host
    index = np.indices(ranks.shape)
    at = {name: index[i].ravel() for i, name in enumerate(names)}

    def edge(name: str, step: int, ends: bool) -> Edge:
        to = np.roll(ranks, -step, axis=names.index(name)).ravel()
        if ends:  # a pipeline is not a ring
            last = (at[name] + step < 0) | (at[name] + step >= getattr(plan, name))
            to = np.where(last, np.arange(ranks.size), to)
        return Edge(to, host[to] != host)

    edges = {name: edge(name, 1, False) for name in ("data", "tensor")}
    edges |= {"next": edge("pipe", 1, True), "before": edge("pipe", -1, True)}
    return Places(at, host, edges)
