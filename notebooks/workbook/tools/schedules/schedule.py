"""A collective as steps: who sends which chunk to whom, and whether the receiver adds it. No torch, no cluster.

A buffer of S bytes is cut into `chunks` equal pieces, and all sends of a step go out at once: each carries what its
sender held before the step. S is the largest buffer that one rank holds: the tensor of an all-reduce, a reduce and a
broadcast; all that is gathered (N·D) or scattered; the N chunks that a rank brings to a reduce-scatter or all-to-all.
In an all-to-all the chunk from rank r to rank q has the number r·N + q; everywhere else a chunk is a place in S.
A switch that adds up or copies on the way is a participant without a buffer, numbered after the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from labkit.floor.words import count, spans
from labkit.theory.primitives import PART, PARTS, PRIMITIVES, WHOLE
from labkit.theory.values import Op, combine, copy, join, split

LINES = 24  # steps that are told in words; of more the first and the last ones


@dataclass(frozen=True)
class Send:
    """Rank `src` sends its `chunks` to rank `dst`, which adds them to its own (`reduce`) or puts them in place."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    reduce: bool = False


Step = tuple[Send, ...]


@dataclass(frozen=True, repr=False)
class Schedule:
    """The steps by which `n` ranks perform `op` on a buffer of `chunks` chunks.

    >>> from workbook.tools import schedules
    >>> ring = schedules.ring("all_reduce", 4)
    >>> len(ring.steps), ring.sent(4)      # steps, and bytes that each rank sends of a buffer of four
    (6, [6.0, 6.0, 6.0, 6.0])

    `switches` has the node of each switch that takes part, -1 for one in the network between the nodes. The i-th is
    participant n + i in the sends; it keeps what reaches it first and adds what is sent to be added.
    """

    name: str
    op: str
    n: int
    chunks: int
    steps: tuple[Step, ...]
    root: int = 0
    switches: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return text(self)

    def run(self, xs: Sequence[Any], op: Op = "SUM") -> list[Any]:
        """Return what every rank holds in the end, as in `theory.collectives`: `xs[r]` is what rank r brings.

        >>> from workbook.tools import schedules
        >>> schedules.ring("all_reduce", 3).run([[1, 2, 3], [10, 20, 30], [100, 200, 300]])
        [[111, 222, 333], [111, 222, 333], [111, 222, 333]]
        """
        if len(xs) != self.n:
            raise LabError(f"The schedule is for {self.n} ranks and got {len(xs)} values. Give it one for each rank.")
        return self._read(self.states(xs, op)[-1], xs)

    def states(self, xs: Sequence[Any], op: Op = "SUM") -> list[list[dict[int, Any]]]:
        """Return each rank's chunks before every step and in the end, `states(xs)[k][r][chunk]`; then switches'."""
        states = [[*(dict(mine) for mine in self._begin(xs)), *({} for _ in self.switches)]]
        for step in self.steps:
            held = states[-1]
            after = [dict(mine) for mine in held]
            for send in step:
                for c in send.chunks:
                    assert c in held[send.src], f"{self.name}: rank {send.src} sends chunk {c} that it has not"
                    came = held[send.src][c]
                    mine = after[send.dst]
                    first = send.dst >= self.n and c not in mine  # a switch has no buffer of its own
                    mine[c] = combine([mine[c], came], op) if send.reduce and not first else copy(came)
            states.append(after)
        return states

    def traffic(self, nbytes: float = 1.0) -> np.ndarray:
        """Count the bytes from each rank, then switch, to each other one: `traffic(S)[src, dst]`; by default S is 1."""
        return self._counts * (nbytes / self.chunks)

    def sent(self, nbytes: float = 1.0) -> list[float]:
        """Return the bytes that each rank sends, of a buffer of `nbytes`."""
        return [float(b) for b in self.traffic(nbytes).sum(axis=1)[: self.n]]

    def received(self, nbytes: float = 1.0) -> list[float]:
        """Return the bytes that each rank receives."""
        return [float(b) for b in self.traffic(nbytes).sum(axis=0)[: self.n]]

    def crossing(self, gpus: int, nbytes: float = 1.0) -> np.ndarray:
        """Return the bytes that leave each node, where every `gpus` ranks in a row are a node."""
        node = np.array([*(r // gpus for r in range(self.n)), *self.switches])
        out = (self.traffic(nbytes) * (node[:, None] != node)).sum(axis=1)
        return np.bincount(node[node >= 0], weights=out[node >= 0])

    @cached_property
    def _counts(self) -> np.ndarray:
        counts = np.zeros((self.n + len(self.switches),) * 2)
        for step in self.steps:
            for send in step:
                counts[send.src, send.dst] += len(send.chunks)
        return counts

    def _begin(self, xs: Sequence[Any]) -> list[dict[int, Any]]:
        """Return the chunks that each rank holds at first."""
        each, primitive = self.chunks // self.n, PRIMITIVES[self.op]

        def begins(r: int, x: Any) -> dict[int, Any]:
            if primitive.from_root and r != self.root:
                return {}
            if primitive.brings == WHOLE:
                return dict(enumerate(split(x, self.chunks)))
            if primitive.brings == PART:
                return {r * each + i: piece for i, piece in enumerate(split(x, each))}
            if primitive.gets == PARTS:  # an all-to-all
                return {r * self.n + q: chunk for q, chunk in enumerate(x)}
            return {q * each + i: piece for q, chunk in enumerate(x) for i, piece in enumerate(split(chunk, each))}

        return [begins(r, x) for r, x in enumerate(xs)]

    def _read(self, held: Sequence[dict[int, Any]], xs: Sequence[Any]) -> list[Any]:
        """Return what a rank's chunks are in the end, None where the operation leaves it nothing."""
        n, each, primitive = self.n, self.chunks // self.n, PRIMITIVES[self.op]

        def block(r: int, q: int) -> Any:
            return join([held[r][q * each + i] for i in range(each)])

        def ends(r: int) -> Any:
            if primitive.to_root and r != self.root:
                return None
            if primitive.gets == WHOLE:
                return join([held[r][c] for c in range(self.chunks)])
            if primitive.gets == PART:
                return block(r, r)
            return [held[r][q * n + r] if primitive.brings == PARTS else block(r, q) for q in range(n)]

        return [ends(r) for r in range(n)]


def title(s: Schedule) -> str:
    """Return a schedule's ranks, chunks and steps, and what the ranks send of a buffer of S bytes."""
    ranks, chunks, steps = (count(k, what) for k, what in ((s.n, "rank"), (s.chunks, "chunk"), (len(s.steps), "step")))
    sent = sorted({round(b, 9) for b in s.sent()})
    told = f"a rank sends {sent[0]:.4g} S to {sent[-1]:.4g} S" if len(sent) > 1 else f"each rank sends {sent[0]:.4g} S"
    return f"{s.name}, {s.op} on {ranks}: {chunks}, {steps}, {told}"


def text(s: Schedule) -> str:
    """Return the title, then who sends what to whom in each step: +2 adds chunk 2, =2 puts it in its place."""
    lines = [f"step {k}: {told(s, step)}" for k, step in enumerate(s.steps, 1)]
    if len(lines) > LINES:
        lines = [*lines[: LINES - 4], "…", *lines[-3:]]
    return "\n".join([title(s), *lines])


def told(s: Schedule, step: Step) -> str:
    """Return who sends what to whom in a step."""
    sends = sorted(step, key=lambda a: (a.src, a.dst))
    return " · ".join(f"{named(s, a.src)}→{named(s, a.dst)} {carried(s, a)}" for a in sends)


def named(s: Schedule, who: int) -> str:
    """Return a rank's number, or "switch", with a number where there are several."""
    if who < s.n:
        return str(who)
    return "switch" if len(s.switches) == 1 else f"switch{who - s.n}"


def carried(s: Schedule, send: Send) -> str:
    """Return what a send carries, in short."""
    if s.op == "all_to_all":
        if len(send.chunks) > 1:
            return f"{len(send.chunks)} chunks"
        src, dst = divmod(send.chunks[0], s.n)
        return f"({src}→{dst})" if (src, dst) != (send.src, send.dst) else "its own"
    return f"{'+' if send.reduce else '='}{spans(send.chunks)}"
