"""What a recorded run cost: bytes that each rank sent, and rounds in which a rank sends and receives one at a time.

Sends are counted as they were recorded, objects as what carries them; a collective counts as its textbook's figure.
Beside it stands what the kernel counted on the wire, where it counts. Neither torch nor a cluster.
"""

from __future__ import annotations

from labkit.theory.primitives import find
from labkit.theory.record import Op, Record
from labkit.theory.record import rounds as places

AROUND = 144  # bytes that Gloo puts around a message: 96 from its sender, 48 from its receiver (measured, torch 2.13)
PIECES = 4  # messages that a collective of Gloo makes for each other rank, at most, while its buffer is small
HEADER = 1024  # bytes that a rank tells each other one before a call of comms


def sent(record: Record) -> list[float]:
    """Bytes that each rank sent."""
    total = [0.0] * record.n
    for mine in record.ops:
        for op in mine:
            if op.kind == "send":
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
    """Bytes that the busiest rank put on the wire, without what Gloo and comms put around data; None: not counted."""
    if any(log.sent is None for log in record.logs):
        return None
    each = zip(record.ops, record.logs, strict=True)
    return max((max(0, (log.sent or 0) - sum(map(_around, mine))) for mine, log in each), default=0)


def _around(op: Op) -> float:
    """What may be put around the data of a call, at most."""
    comms = op.op.startswith("comms.")
    parts = 3 if comms or (op.primitive and op.primitive.objects) else 1  # sizes go first
    others = len(op.ranks) - 1 if op.kind == "collective" else 1
    pieces = PIECES if op.kind == "collective" else 1
    return others * (AROUND * pieces * parts + HEADER * comms)


def steps(record: Record) -> int:
    """How many steps the messages take if a rank sends one and receives one at a time.

    A message comes one step after all that its sender and its receiver had finished before they called for it.
    """
    place = places(record)
    sending = [0] * record.n
    taking = [0] * record.n
    reached: dict[int, int] = {}

    def finished(op: Op) -> int:
        before = (reached.get(id(o), 0) for o in record.ops[op.rank] if o.done is not None and o.done < op.issued)
        return max(before, default=0)

    order = sorted(range(len(record.messages)), key=lambda i: (place[i], _issued(record, i)))
    for i in order:
        message = record.messages[i]
        ends = [op for op in (message.send, message.recv) if op is not None]
        step = max(map(finished, ends))
        if message.send is not None:
            step = max(step, sending[message.send.rank])
        if message.recv is not None:
            step = max(step, taking[message.recv.rank])
        step += 1
        if message.send is not None:
            sending[message.send.rank] = step
        if message.recv is not None:
            taking[message.recv.rank] = step
        reached.update((id(op), step) for op in ends)
    return max(sending + taking, default=0)


def rounds(record: Record) -> int:
    """How many messages and collectives follow one another, at most: the steps, and each call of a collective."""
    calls = [sum(op.kind == "collective" for op in mine) for mine in record.ops]
    return steps(record) + max(calls, default=0)


def _issued(record: Record, i: int) -> float:
    message = record.messages[i]
    return min(op.issued for op in (message.send, message.recv) if op is not None)
