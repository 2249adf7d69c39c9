"""Pipeline schedules as data: in which order each rank passes micro-batches forward and back, and when it could.

>>> schedule = one_f_one_b(ranks=2, micro=2)
>>> schedule.orders
((('F', 0, 0), ('F', 1, 0), ('B', 0, 0), ('B', 1, 0)), (('F', 0, 0), ('B', 0, 0), ('F', 1, 0), ('B', 1, 0)))

An operation is (kind, micro-batch, chunk). "F" is a forward pass. "B" is a backward pass, and where a schedule also
has "W", the half of it that brings the gradient of the stage's input; "W" is the other half, the gradients of the
weights. A rank with v chunks holds v stages of the model: its chunk c is stage c · ranks + rank.

Sources: Huang and others, *GPipe*, 2018 (arXiv 1811.06965); Harlap and others, *PipeDream*, 2018 (arXiv 1806.03377);
Narayanan and others, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, 2021 (arXiv
2104.04473), section 2.2; Qi and others, *Zero Bubble Pipeline Parallelism*, 2023 (arXiv 2401.10241). Pure: neither
torch nor a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit.floor.errors import LabError

Operation = tuple[str, int, int]  # kind, micro-batch, chunk
NAMES = {"F": "forward", "B": "backward", "W": "weights"}
UNITS = {"F": 1.0, "B": 2.0, "W": 0.0}  # how long each takes, a forward pass being 1
SPLIT = {"F": 1.0, "B": 1.0, "W": 1.0}  # where the backward pass is split


@dataclass(frozen=True)
class Box:
    """One operation of one rank, from `start` to `end`."""

    rank: int
    kind: str
    micro: int
    chunk: int
    start: float
    end: float


@dataclass(frozen=True)
class Schedule:
    """What each of the ranks does in a training step with `micro` micro-batches: `orders[r]`, in its order.

    >>> gpipe(4, 8).bubble, one_f_one_b(4, 8).alive
    (0.2727272727272727, (4, 3, 2, 1))
    """

    name: str
    orders: tuple[tuple[Operation, ...], ...]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.orders)

    @property
    def micro(self) -> int:
        """The number of micro-batches."""
        return 1 + max((m for mine in self.orders for _, m, _ in mine), default=-1)

    @property
    def chunks(self) -> int:
        """The number of stages that a rank holds."""
        return 1 + max((c for mine in self.orders for *_, c in mine), default=0)

    @property
    def split(self) -> bool:
        """Whether the backward pass is in two halves."""
        return any(kind == "W" for mine in self.orders for kind, *_ in mine)

    @cached_property
    def played(self) -> tuple[tuple[Box, ...], ...]:
        """When each operation runs if every one starts as soon as it can, and messages take no time.

        A forward pass through all of a rank's layers takes 1, and the backward pass 2; each half of it takes 1.
        """
        return play(self.orders, SPLIT if self.split else UNITS)

    @cached_property
    def bubble(self) -> float:
        """The part of the ranks' time in which nothing is computed: 0 to 1."""
        return bubble(self.played)

    @cached_property
    def alive(self) -> tuple[int, ...]:
        """The most micro-batches whose activations each rank keeps at once."""
        return tuple(alive(order) for order in self.orders)

    def drawn(self, between: tuple[str, str] | None = None) -> Any:
        """Return what `labkit.draw` shows: a Gantt chart, played by arithmetic alone."""
        from labkit.plot.gantt import Bar  # matplotlib
        from labkit.show import gantt

        def names(kind: str, micro: int, chunk: int) -> tuple[str, ...]:
            return gantt.short(kind, f"{micro}{gantt.LETTERS[chunk]}" if self.chunks > 1 else str(micro))

        lanes = [
            [Bar(NAMES[b.kind], names(b.kind, b.micro, b.chunk), b.start, b.end, b.chunk) for b in mine]
            for mine in self.played
        ]
        kept = ", ".join(f"{pairs / self.chunks:g}" for pairs in self.alive)
        passes = "and the two halves of a backward pass 1 each" if self.split else "and a backward pass 2"
        notes = [
            f"Micro-batches whose activations ranks 0 to {self.ranks - 1} keep at their peaks: {kept}.",
            f"Computed, not run: a forward pass takes 1, {passes}, and messages take no time.",
        ]
        return gantt.Gantt(lanes, f"{self.name}, {self.ranks} ranks, {self.micro} micro-batches", notes)


def play(orders: Sequence[Iterable[Sequence[Any]]], units: Mapping[str, float] = UNITS) -> tuple[tuple[Box, ...], ...]:
    """Return when each operation of these orders runs, for each rank, if all start as soon as they can.

    `orders[r]` are (kind, micro-batch) or (kind, micro-batch, chunk). `units` is what a pass through **all** of a
    rank's layers takes; one through one of v chunks takes a v-th of it. Raises `LabError` for orders that can never
    end, and says who waits for what.

    >>> [(box.kind, box.start, box.end) for box in play([[("F", 0), ("B", 0)]])[0]]
    [('F', 0.0, 1.0), ('B', 1.0, 3.0)]
    """
    todo = [[operation(op) for op in mine] for mine in orders]
    n, chunks = len(todo), 1 + max((c for mine in todo for *_, c in mine), default=0)
    done: dict[tuple[str, int, int], float] = {}  # (kind, micro-batch, stage) → when
    found: list[list[Box]] = [[] for _ in todo]
    moved = True
    while moved:
        moved = False
        for r, mine in enumerate(todo):
            while len(found[r]) < len(mine):
                kind, m, c = mine[len(found[r])]
                needed = _needs(kind, m, c * n + r, n * chunks)
                if any(need not in done for need in needed):
                    break
                start = max([found[r][-1].end if found[r] else 0.0, *(done[need] for need in needed)])
                done[kind, m, c * n + r] = end = start + units[kind] / chunks
                found[r].append(Box(r, kind, m, c, start, end))
                moved = True
    stuck = [(r, mine[len(found[r])]) for r, mine in enumerate(todo) if len(found[r]) < len(mine)]
    if stuck:
        waits = [_waits(r, op, n, n * chunks, done) for r, op in stuck]
        raise LabError(f"These orders never end. {' '.join(waits)} Put what is waited for before what waits.")
    return tuple(map(tuple, found))


def operation(op: Sequence[Any]) -> Operation:
    """Return an operation with its chunk; raise `LabError` for what is none."""
    if not isinstance(op, (tuple, list)) or len(op) not in (2, 3) or op[0] not in NAMES:
        raise LabError(f'{op!r} is not an operation. Write ("F", 0) to take micro-batch 0 forward, or ("B", 0).')
    return str(op[0]), int(op[1]), int(op[2]) if len(op) == 3 else 0


def _needs(kind: str, m: int, stage: int, stages: int) -> list[tuple[str, int, int]]:
    """Return the operations, of any rank, that have to end before this one can begin."""
    if kind == "F":
        return [("F", m, stage - 1)] if stage else []
    if kind == "W":
        return [("B", m, stage)]
    return [("F", m, stage), *([("B", m, stage + 1)] if stage < stages - 1 else [])]


def _waits(r: int, op: Operation, n: int, stages: int, done: Mapping[Any, Any]) -> str:
    kind, m, c = op
    need, which, stage = next(x for x in _needs(kind, m, c * n + r, stages) if x not in done)
    own, others = (f" of chunk {x}" if stages > n else "" for x in (c, stage // n))
    return f"Rank {r} waits with {kind}{m}{own} for {need}{which}{others} of rank {stage % n}."


def bubble(boxes: Iterable[Iterable[Box]]) -> float:
    """Return which part of the time from the first box's start to the last one's end the ranks compute nothing in.

    >>> bubble([[Box(0, "F", 0, 0, 0.0, 1.0)], [Box(1, "F", 0, 0, 1.0, 2.0)]])
    0.5
    """
    each = [list(mine) for mine in boxes]
    every = [box for mine in each for box in mine]
    if not every:
        return 0.0
    whole = max(b.end for b in every) - min(b.start for b in every)
    return 1 - sum(b.end - b.start for b in every) / (len(each) * whole) if whole else 0.0


def alive(order: Iterable[Sequence[Any]]) -> int:
    """Return the most (micro-batch, chunk) pairs that are between the first and the last operation of a rank at once.

    >>> alive([("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("B", 2)])
    2
    """
    ops = [operation(op) for op in order]
    last = {op[1:]: i for i, op in enumerate(ops)}
    now = most = 0
    for i, op in enumerate(ops):
        now += op[0] == "F"
        most = max(most, now)
        now -= last[op[1:]] == i
    return most


# -- schedules --------------------------------------------------------------------------------------------------------


def gpipe(ranks: int, micro: int) -> Schedule:
    """Pass all micro-batches forward, then all of them back."""
    _check(ranks, micro)
    order = (*(("F", m, 0) for m in range(micro)), *(("B", m, 0) for m in range(micro)))
    return Schedule("GPipe", (order,) * ranks)


def one_f_one_b(ranks: int, micro: int) -> Schedule:
    """Run as many forward passes as stages follow, then one forward and one backward pass in turns."""
    return Schedule("1F1B", interleaved(ranks, micro, 1).orders)


def interleaved(ranks: int, micro: int, chunks: int = 2) -> Schedule:
    """1F1B for ranks that hold several stages each, as Megatron-LM has it; `ranks` has to divide `micro` then.

    >>> round(interleaved(4, 8).bubble, 3), round(3 / (2 * 8 + 3), 3)
    (0.158, 0.158)
    """
    _check(ranks, micro)
    if chunks > 1 and micro % ranks:
        raise LabError(
            f"Interleaving takes micro-batches in groups of {ranks}, one for each rank, and {micro} cannot be divided "
            f"into such groups. Take {ranks * -(-micro // ranks)}."
        )
    return Schedule(f"interleaved, {chunks} chunks", tuple(_interleaved(r, ranks, micro, chunks) for r in range(ranks)))


def _interleaved(rank: int, ranks: int, micro: int, chunks: int) -> tuple[Operation, ...]:
    def passed(kind: str, k: int) -> Operation:
        """Return the k-th pass of a kind: groups of micro-batches, through one chunk after the other."""
        group, within = divmod(k, ranks * chunks)
        chunk, m = divmod(within, ranks)
        return kind, group * ranks + m, chunk if kind == "F" else chunks - 1 - chunk

    total = micro * chunks
    ahead = min(total, ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks)
    order = [passed("F", k) for k in range(ahead)]
    for k in range(total):
        order += [passed("F", ahead + k)] if ahead + k < total else []
        order.append(passed("B", k))
    return tuple(order)


def zero_bubble(ranks: int, micro: int) -> Schedule:
    """1F1B with the backward pass split: what the stage before waits for comes first, the weights' half later.

    Rank r puts the weights' half off by r micro-batches, so that no rank keeps more than `ranks` of them: ZB-H1.

    >>> round(zero_bubble(4, 8).bubble, 3), round(3 / (3 * 8 + 3), 3)
    (0.111, 0.111)
    """
    _check(ranks, micro)
    orders = []
    for r, plain in enumerate(one_f_one_b(ranks, micro).orders):
        order: list[Operation] = []
        for op in plain:
            order.append(op)
            if op[0] == "B" and op[1] >= r:
                order.append(("W", op[1] - r, 0))
        orders.append((*order, *(("W", m, 0) for m in range(max(0, micro - r), micro))))
    return Schedule("zero bubble (ZB-H1)", tuple(orders))


SCHEDULES: Mapping[str, Callable[[int, int], Schedule]] = {
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": interleaved,
    "zero bubble": zero_bubble,
}


def _check(ranks: int, micro: int) -> None:
    if ranks < 1 or micro < 1:
        raise LabError(f"{ranks} ranks and {micro} micro-batches are not a pipeline. Take one or more of each.")
