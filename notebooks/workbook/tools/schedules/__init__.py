"""How collectives are done, step by step: rings, trees, halving and doubling, as lists of sends. No torch.

>>> from workbook.tools import schedules
>>> [s.name for s in schedules.of("all_gather", 4)]
['ring', 'bidirectional ring', 'halving-doubling', 'Bruck', 'PAT']

`labkit.draw(schedule)` draws one; `schedule.run(xs)` performs it on values, `schedule.traffic(nbytes)` counts.
"""

from workbook.tools.schedules.build import GATHERS
from workbook.tools.schedules.direct import linear, naive, pairwise
from workbook.tools.schedules.links import loads, seconds
from workbook.tools.schedules.logarithmic import bruck, halving_doubling, pat, recursive_doubling
from workbook.tools.schedules.rings import bidirectional_ring, hierarchical, ring
from workbook.tools.schedules.schedule import Schedule, Send, Step
from workbook.tools.schedules.switches import collnet_chain, collnet_direct, nvls, nvls_tree
from workbook.tools.schedules.trees import double_tree, node_parents, parents, tree

# What each algorithm does, of those that need no more than an operation and a number of ranks.
ALGORITHMS = {
    naive: ("broadcast", "reduce", "all_reduce"),
    linear: ("gather", "scatter"),
    ring: (*GATHERS, "broadcast", "reduce"),
    bidirectional_ring: GATHERS,
    tree: ("broadcast", "reduce", "all_reduce"),
    double_tree: ("all_reduce",),
    recursive_doubling: ("all_reduce",),
    halving_doubling: GATHERS,
    bruck: (*GATHERS, "all_to_all"),
    pat: ("all_gather", "reduce_scatter"),
    pairwise: ("all_to_all",),
}

__all__ = [
    "ALGORITHMS",
    "Schedule",
    "Send",
    "Step",
    "bidirectional_ring",
    "bruck",
    "collnet_chain",
    "collnet_direct",
    "double_tree",
    "halving_doubling",
    "hierarchical",
    "linear",
    "loads",
    "naive",
    "node_parents",
    "nvls",
    "nvls_tree",
    "of",
    "pairwise",
    "parents",
    "pat",
    "recursive_doubling",
    "ring",
    "seconds",
    "tree",
]


def of(op: str, n: int) -> list[Schedule]:
    """Return all schedules of an operation for n ranks.

    >>> [len(s.steps) for s in of("broadcast", 8)]  # naive, ring, tree
    [7, 14, 3]
    """
    return [
        make(op, n)
        for make, ops in ALGORITHMS.items()
        if op in ops and not (make is halving_doubling and op != "all_reduce" and n & (n - 1))
    ]
