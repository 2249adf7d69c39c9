"""What a recorded run cost: bytes that each rank sent, and rounds in which a rank sends and receives one at a time.

Sends are counted as they were recorded, objects as what carries them; a collective counts as its textbook's figure.
Beside it stands what the kernel counted on the wire, where it counts. Neither torch nor a cluster.
"""

from __future__ import annotations

from labkit.theory.log import Op
from labkit.theory.primitives import find
from labkit.theory.record import Record, rounds

AROUND = 144  # bytes that Gloo puts around a message: 96 from its sender, 48 from its receiver (measured, torch 2.13)
PIECES = 4  # messages that a collective of Gloo makes for each other rank, at most, while its buffer is small
HEADER = 1024  # bytes that a rank tells each other one before a call of comms


def sent(record: Record) -> list[float]:
    """Count the bytes that each rank sent."""
    total = [0.0] * record.n
    for op in (op for op in record.calls if op.kind == "send"):
        total[op.rank] += op.bytes or 0
    for meeting in record.meetings:
        first = meeting.ops[0]
        primitive = find(first.op)
        brought = [op.bytes or 0 for op in meeting.ops]
        if primitive and primitive.textbook and any(brought):
            n = len(meeting.ranks)
            size = sum(brought) * n / len(brought) if primitive.partial else max(brought)
            root = meeting.ranks.index(first.peer) if first.peer in meeting.ranks else 0
            for r, row in zip(meeting.ranks, primitive.traffic(n, size, root), strict=True):
                total[r] += float(row.sum())
    return total


def wired(record: Record) -> float | None:
    """Return the bytes that the busiest rank put on the wire, without those around data; None where not counted."""
    if any(log.sent is None for log in record.logs):
        return None
    each = zip(record.ops, record.logs, strict=True)
    return max((max(0, (log.sent or 0) - sum(map(_around, mine))) for mine, log in each), default=0)


def _around(op: Op) -> float:
    """Bound what Gloo and comms put around the data of a call."""
    comms = op.op.startswith("comms.")
    parts = 3 if comms or (op.primitive and op.primitive.objects) else 1  # sizes go first
    others = len(op.ranks) - 1 if op.kind == "collective" else 1
    pieces = PIECES if op.kind == "collective" else 1
    return others * (AROUND * pieces * parts + HEADER * comms)


def steps(record: Record) -> int:
    """Count the steps that the messages take if a rank sends one and receives one at a time.

    A message comes one step after all that its sender and its receiver had finished before they called for it.
    """
    place = rounds(record)
    busy: dict[tuple[int, str], int] = {}  # a rank and which way → the last step in which it sent, or received
    reached: dict[int, int] = {}

    def finished(op: Op) -> int:
        before = (reached.get(id(o), 0) for o in record.ops[op.rank] if o.done is not None and o.done < op.issued)
        return max(before, default=0)

    ends = [message.ends for message in record.messages]
    for i in sorted(place, key=lambda i: (place[i], min(op.issued for op in ends[i]))):
        step = 1 + max(max(finished(op), busy.get((op.rank, op.kind), 0)) for op in ends[i])
        busy.update(((op.rank, op.kind), step) for op in ends[i])
        reached.update((id(op), step) for op in ends[i])
    return max(busy.values(), default=0)


def in_a_row(record: Record) -> int:
    """Count how many messages and collectives follow one another, at most: the steps, and each collective call."""
    calls = [sum(op.kind == "collective" for op in mine) for mine in record.ops]
    return steps(record) + max(calls, default=0)
