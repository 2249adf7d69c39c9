"""Switches that add up on the way: NVLS inside a node, CollNet (SHARP) between nodes. Each is a participant of its own.

After NCCL 2.28: src/device/all_reduce.h and src/graph/connect.cc (connectCollNet, connectNvls). Not run here: this
needs NVSwitches, or SHARP in the network's switches. Every rank is taken to be a *head*: one that talks to the switch
for one share of the buffer, with a network card of its own. NCCL has as many heads as its search finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workbook.tools.schedules.build import GATHERS, check, filled, renumbered, step, together
from workbook.tools.schedules.schedule import Schedule, Send, Step
from workbook.tools.schedules.trees import parents, pipelined

NETWORK = -1  # the node of a switch between nodes


def nvls(op: str, n: int) -> Schedule:
    """NVLS, on the n ranks of one node: the NVSwitch reads chunk r from all, adds it up and gives rank r the total;
    then rank r writes it once, and the NVSwitch writes it to all.

    The first half is a reduce-scatter (the instruction multimem.ld_reduce), the second one an all-gather (multimem.st).
    A rank's own copy is read through the switch, too: an all-reduce sends S + S/N from every rank, in four steps
    whatever N is, where a ring sends 2 S (N-1)/N in 2 (N-1).

    >>> schedule = nvls("all_reduce", 8)
    >>> len(schedule.steps), schedule.sent(8.0)[0], schedule.received(8.0)[0]
    (4, 9.0, 9.0)
    """
    check("NVLS", op, GATHERS, n)
    up, down = _through(n, range(n), lambda h: (h,))
    steps = {"reduce_scatter": up, "all_gather": down, "all_reduce": up + down}[op]
    return Schedule("NVLS", op, n, n, filled(steps), switches=(0,))


def nvls_tree(op: str, nodes: int, gpus: int) -> Schedule:
    """NVLSTree: NVLS inside each node, and between nodes a double binary tree for each head.

    Rank = node · gpus + place. Head h's share of the buffer goes up and down the two trees over the h-th ranks of all
    nodes, a half in each.

    >>> len(nvls_tree("all_reduce", 4, 8).steps)  # two, up and down a tree of depth 2, two
    8
    """
    check("NVLSTree", op, ("all_reduce",), min(nodes, gpus))
    n = nodes * gpus
    ups, downs = zip(
        *(_through(n + m, [m * gpus + h for h in range(gpus)], lambda h: (2 * h, 2 * h + 1)) for m in range(nodes)),
        strict=True,
    )
    trees = []
    for h in range(gpus):
        for half, parent in enumerate(parents(nodes)):
            trees.append(renumbered(pipelined(parent, (2 * h + half,)), range(h, n, gpus)))
    steps = together(ups) + together(trees) + together(downs)
    return Schedule(f"NVLSTree {nodes}×{gpus}", op, n, 2 * gpus, filled(steps), switches=tuple(range(nodes)))


def collnet_direct(op: str, nodes: int, gpus: int) -> Schedule:
    """CollNetDirect: in a node all give chunk h to head h at once; the network's switch adds up the nodes' chunks.

    Then the total comes back the same way. Four steps whatever the number of nodes is, and a node sends S and receives
    S: N has cancelled out.

    >>> schedule = collnet_direct("all_reduce", nodes=4, gpus=8)
    >>> len(schedule.steps), schedule.crossing(8, 8.0).tolist()
    (4, [8.0, 8.0, 8.0, 8.0])
    """
    check("CollNetDirect", op, ("all_reduce",), min(nodes, gpus))
    inside = step(
        Send(m * gpus + i, m * gpus + h, (h,), True)
        for m in range(nodes)
        for h in range(gpus)
        for i in range(gpus)
        if i != h
    )
    return _collnet("CollNetDirect", op, nodes, gpus, [inside])


def collnet_chain(op: str, nodes: int, gpus: int) -> Schedule:
    """CollNetChain: in a node chunk h is passed on from rank to rank up to head h, which sends it to the switch.

    Each head has a chain of its own, so that all links of the node work at once: 2 (gpus-1) steps more than the two
    through the network.

    >>> len(collnet_chain("all_reduce", nodes=4, gpus=8).steps)
    16
    """
    check("CollNetChain", op, ("all_reduce",), min(nodes, gpus))
    inside = [
        step(
            Send(m * gpus + (h + far) % gpus, m * gpus + (h + far - 1) % gpus, (h,), True)
            for m in range(nodes)
            for h in range(gpus)
        )
        for far in range(gpus - 1, 0, -1)
    ]
    return _collnet("CollNetChain", op, nodes, gpus, inside)


def _collnet(name: str, op: str, nodes: int, gpus: int, inside: Sequence[Step]) -> Schedule:
    """Sums to the heads, up to the switch, and all of it backwards without adding."""
    n = nodes * gpus
    up = [*inside, step(Send(m * gpus + h, n, (h,), True) for m in range(nodes) for h in range(gpus))]
    down = [tuple(Send(s.dst, s.src, s.chunks) for s in each) for each in reversed(up)]
    return Schedule(f"{name} {nodes}×{gpus}", op, n, gpus, filled((*up, *down)), switches=(NETWORK,))


def _through(
    switch: int, ranks: Sequence[int], chunks: Callable[[int], tuple[int, ...]]
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Through an NVSwitch: the sums of all `chunks(h)` to rank h, and these chunks from rank h to all."""
    heads = list(enumerate(ranks))
    everything = tuple(c for h, _ in heads for c in chunks(h))
    own = [(r, chunks(h)) for h, r in heads]
    reads = step(Send(r, switch, everything, True) for r in ranks)
    totals = step(Send(switch, r, mine) for r, mine in own)
    writes = step(Send(r, switch, mine) for r, mine in own)
    copies = step(Send(switch, r, everything) for r in ranks)
    return (reads, totals), (writes, copies)
