"""Bytes from rank to rank: what a cell's recorded calls would cost by the textbook, and the form of what was seen.

Pure: plain data in, plain data out; neither torch nor a cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from labkit.theory.log import Op
from labkit.theory.primitives import PRIMITIVES, TEXTBOOK, find
from labkit.theory.record import Meeting, Record

SLIGHT = 0.02  # of the largest figure: less is headers, not data
CLOSE = 0.01  # two figures are the same up to here


@dataclass(frozen=True)
class Counted:
    """What a cell sent: `matrix[src][dst]` in bytes, or None with `why`.

    `sent[r]` is what rank r's GPU sent over NVLink, where that is counted. `notes` say what the figures lack.
    """

    n: int
    matrix: list[list[int]] | None
    why: str = ""
    sent: list[int] | None = None
    notes: tuple[str, ...] = ()


def flows(told: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int, int, int]]:
    """Find connections that have a rank at both ends: (address, address) → (src, dst, bytes sent, bytes received).

    One direction each; the addresses tell which socket of one rank is the other end of which of another.
    """
    ends = {(local, peer): (r, s, got) for r, t in enumerate(told) for local, peer, s, got in t["sockets"]}
    return {
        (local, peer): (r, ends[peer, local][0], sent, ends[peer, local][2])
        for (local, peer), (r, sent, _) in ends.items()
        if (peer, local) in ends and ends[peer, local][0] != r
    }


@dataclass(frozen=True)
class Call:
    """One collective: its name in textbooks, its ranks, the bytes S of the whole buffer, and the root's world rank."""

    op: str
    ranks: tuple[int, ...]
    nbytes: int
    root: int

    def matrix(self, n: int, op: str | None = None) -> np.ndarray:
        """Return the textbook's bytes between n ranks; `op` asks what another collective would do with the buffer."""
        k = len(self.ranks)
        root = self.ranks.index(self.root) if self.root >= 0 else 0
        own = PRIMITIVES[op or self.op].traffic(k, self.nbytes, root)
        world = np.zeros((n, n))
        world[np.ix_(self.ranks, self.ranks)] = own
        return world


@dataclass(frozen=True)
class Asked:
    """What a cell asked for: its collectives, the bytes of its sends, and what no textbook has a figure for."""

    n: int
    calls: tuple[Call, ...]
    sends: np.ndarray
    unknown: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the textbook has a figure for all of it."""
        return not self.unknown and bool(self.calls or self.sends.any())

    def matrix(self, instead: dict[str, str] | None = None) -> np.ndarray:
        """Add up the bytes from each rank to each other; `instead` counts some collectives as others."""
        swap = instead or {}
        return sum((c.matrix(self.n, swap.get(c.op)) for c in self.calls), self.sends.copy())

    @property
    def name(self) -> str:
        """The calls that the figure is made of: "3 × all_reduce (ring: 2S(N-1)/N from each rank)"."""
        count = Counter(c.op for c in self.calls)
        parts = [f"{f'{k} × ' if k > 1 else ''}{op} ({PRIMITIVES[op].route})" for op, k in count.items()]
        return "; ".join([*parts, *(["what the cell's sends carry"] if self.sends.any() else [])])


def home(hosts: Sequence[Sequence[int]], n: int) -> list[int]:
    """Return the number of the host that each of n ranks is on; `LabError` where a rank is on none, or on two.

    >>> home([[0, 2], [1, 3]], 4)
    [0, 1, 0, 1]
    """
    if sorted(r for ranks in hosts for r in ranks) != list(range(n)):
        raise LabError(
            f"hosts={[list(ranks) for ranks in hosts]} does not have each of the ranks 0 to {n - 1} once. "
            "Give a list of ranks for each host, such as [[0, 1], [2, 3]]."
        )
    return [next(h for h, ranks in enumerate(hosts) if r in ranks) for r in range(n)]


def asked(record: Record) -> Asked:
    """Read from the recorded calls of a cell what it asked for."""
    calls, unknown = [], []
    sends = np.zeros((record.n, record.n))
    for meeting in sorted(record.meetings, key=_turn):
        ops = [o for o in meeting.ops if not o.error]
        call = _call(meeting.ranks, ops)
        if call is None:
            unknown.append(meeting.names[0])
        else:
            calls.append(call)
    for op in (o for o in record.calls if o.kind == "send" and not o.error):
        if op.bytes is None or op.peer is None:
            unknown.append(op.op)
        else:
            sends[op.rank, op.peer] += op.bytes
    if any(log.dropped for log in record.logs):
        unknown.append("the calls before the last ones, of which there is no record")
    return Asked(record.n, tuple(calls), sends, tuple(dict.fromkeys(unknown)))


def _turn(meeting: Meeting) -> tuple[int, float]:
    """Order a meeting as the lowest rank in it comes to it: groups that meet side by side may come in any order."""
    first = min(meeting.ops, key=lambda op: op.rank)
    return first.rank, first.entered


def _call(ranks: tuple[int, ...], ops: Sequence[Op]) -> Call | None:
    names = {o.name for o in ops}
    primitive = find(names.pop()) if len(names) == 1 else None
    if primitive is None or not primitive.textbook:
        return None
    if not primitive.brings:
        return Call(primitive.name, ranks, 0, -1)
    sizes = [o.bytes for o in ops if o.bytes is not None]
    if not sizes or len(ops) < len(ranks) or (primitive.name != "broadcast" and len(set(sizes)) > 1):
        return None
    roots = {o.peer for o in ops}
    root = roots.pop() if len(roots) == 1 else None
    if primitive.rooted and root is None:
        return None
    nbytes = max(sizes) * (len(ranks) if primitive.partial else 1)
    return Call(primitive.name, ranks, nbytes, -1 if root is None else root)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two matrices agree to 1 % wherever data moves, headers left out."""
    data = np.maximum(a, b) > SLIGHT * max(a.max(initial=0), b.max(initial=0))
    return bool((np.abs(a - b) <= CLOSE * np.maximum(a, b))[data].all())


def likeness(matrix: np.ndarray, asked: Asked) -> dict[str, str] | None:
    """Find which collectives must be counted as which others for the textbook to have these bytes: {} as they are.

    None where no single change explains what was seen.
    """
    if same(matrix, asked.matrix()):
        return {}
    for op in dict.fromkeys(c.op for c in asked.calls):
        for other in TEXTBOOK:
            if other != op and same(matrix, asked.matrix({op: other})):
                return {op: other}
    return None


def form(matrix: np.ndarray) -> str:
    """Name the form of who sends to whom, "" where it has no name.

    >>> form(np.array([[0, 9, 0], [0, 0, 9], [9, 0, 0]]))
    'a ring, each rank to the next one'
    """
    edges = {(int(s), int(d)) for s, d in np.argwhere(matrix > SLIGHT * matrix.max(initial=0))}
    who = sorted({r for edge in edges for r in edge})
    n = len(who)
    if len(edges) == 1:
        ((src, dst),) = edges
        return f"rank {src} to rank {dst}"
    among = "" if n == len(matrix) else f" among ranks {', '.join(map(str, who))}"
    for name, its in _forms(who):
        if edges == its:
            return name + among
    return ""


def _forms(who: Sequence[int]) -> Iterator[tuple[str, set[tuple[int, int]]]]:
    """Yield every form that has a name, with its edges, for these ranks."""
    n = len(who)
    if n < 2:
        return
    yield "each rank to each other one", {(s, d) for s in who for d in who if s != d}
    ring = {(who[i], who[(i + 1) % n]) for i in range(n)}
    yield "a ring, each rank to the next one", ring
    yield "a ring, each rank to the one before it", {(d, s) for s, d in ring}
    for i, root in enumerate(who):
        star = {(root, d) for d in who if d != root}
        yield f"a star, rank {root} to each other one", star
        yield f"a star, each other rank to rank {root}", {(d, s) for s, d in star}
        tree = {(who[(v - (1 << v.bit_length() - 1) + i) % n], who[(v + i) % n]) for v in range(1, n)}
        yield f"a binomial tree below rank {root}", tree
