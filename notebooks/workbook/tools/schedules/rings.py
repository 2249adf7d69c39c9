"""Rings: everyone sends to a neighbour. Few bytes, many steps."""

from __future__ import annotations

from collections.abc import Sequence

from workbook.tools.schedules.build import GATHERS, backwards, check, gathering, renumbered, step, together
from workbook.tools.schedules.schedule import Schedule, Send, Step


def around(ranks: Sequence[int], sets: Sequence[tuple[int, ...]], right: bool = True) -> tuple[Step, ...]:
    """Steps of an all-gather around a ring of these ranks: the i-th begins with the chunks `sets[i]`."""
    n, way = len(ranks), 1 if right else -1
    return tuple(
        step(Send(ranks[i], ranks[(i + way) % n], sets[(i - way * k) % n]) for i in range(n)) for k in range(n - 1)
    )


def ring(op: str, n: int, root: int = 0, pieces: int | None = None) -> Schedule:
    """Chunks travel around the ring; an all-reduce takes 2(N-1) steps and sends 2S(N-1)/N from every rank.

    All-reduce, reduce-scatter and all-gather as in NCCL (device/all_reduce.h): rank r begins with chunk r-1, and holds
    the total of chunk r after N-1 steps. A broadcast or a reduce is a chain that passes on `pieces` pieces (default
    N), N-2+pieces steps.

    >>> ring("all_reduce", 4).sent(4.0)
    [6.0, 6.0, 6.0, 6.0]
    """
    if op in ("broadcast", "reduce"):
        check("ring", op, ("broadcast", "reduce"), n, root)
        cut = n if pieces is None else pieces
        chain = tuple(
            step(Send(i, i + 1, (t - i,)) for i in range(n - 1) if 0 <= t - i < cut) for t in range(n - 2 + cut)
        )
        steps = renumbered(chain if n > 1 else (), [(r + root) % n for r in range(n)])
        return Schedule("ring", op, n, cut, steps if op == "broadcast" else backwards(steps), root)
    own = [(r,) for r in range(n)]
    return gathering("ring", op, n, n, lambda right: around(range(n), own, right))


def bidirectional_ring(op: str, n: int) -> Schedule:
    """Send to both neighbours at once: half the steps of a ring, and the same bytes.

    Chunks go ⌊(N-1)/2⌋ steps each way round; where N is even, the opposite rank gets a half from either side.

    >>> len(bidirectional_ring("all_gather", 8).steps)
    4
    """
    parts = 2 if n % 2 == 0 else 1

    def chunks(r: int, half: slice) -> tuple[int, ...]:
        return tuple(range(r % n * parts, r % n * parts + parts))[half]

    def gather(_: bool) -> tuple[Step, ...]:
        steps = []
        for k in range(n // 2):
            last = n % 2 == 0 and k == n // 2 - 1
            right, left = (slice(0, 1), slice(1, 2)) if last else (slice(None), slice(None))
            steps.append(
                step(
                    send
                    for r in range(n)
                    for send in (
                        Send(r, (r + 1) % n, chunks(r - k, right)),
                        Send(r, (r - 1) % n, chunks(r + k, left)),
                    )
                )
            )
        return tuple(steps)

    return gathering("bidirectional ring", op, n, n * parts, gather)


def hierarchical(op: str, nodes: int, gpus: int) -> Schedule:
    """Rings between nodes and rings inside them: `nodes` × `gpus` ranks, rank = node · gpus + place in the node.

    All-gather: first each place's ranks around the nodes, then each node's ranks. An all-reduce is that backwards and
    forwards: of S only 2S(nodes-1)/(nodes·gpus) leave through each rank's network card.

    >>> schedule = hierarchical("all_reduce", nodes=2, gpus=4)
    >>> len(schedule.steps), schedule.crossing(4, 8.0).tolist()  # steps; bytes out of each node
    (8, [8.0, 8.0])
    """
    check("hierarchical", op, GATHERS, min(nodes, gpus))
    n = nodes * gpus

    def gather(right: bool) -> tuple[Step, ...]:
        between = together(
            [around([m * gpus + i for m in range(nodes)], [(m * gpus + i,) for m in range(nodes)], right)
             for i in range(gpus)]
        )  # fmt: skip
        sets = [tuple(m * gpus + i for m in range(nodes)) for i in range(gpus)]
        inside = together([around([m * gpus + i for i in range(gpus)], sets, right) for m in range(nodes)])
        return between + inside

    return gathering(f"hierarchical {nodes}×{gpus}", op, n, n, gather)
