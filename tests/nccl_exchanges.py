"""What NCCL makes of a run's messages, told from the ranks' records: it stands in for a GPU where there is none.

`labkit.outcome.why` says how NCCL connects two ranks, and what becomes of messages that its buffer holds or does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from labkit.theory.log import Op
from labkit.theory.record import Message, Record


def faults(record: Record, short: bool = False) -> list[str]:
    """Return what does not get through on NCCL, and which messages are taken for others; nothing of a run that holds.

    A single call waits for the other rank's, and a batch for all of its own together: each time, or where messages are
    `short` the first time only. Collectives are left out: who calls them in another order hangs on Gloo, too.
    """
    left = [_calls([op for op in ops if op.kind != "collective"]) for ops in record.ops]
    ways: Counter[tuple] = Counter()  # messages that are under way between ranks that are connected
    while through := _through({r: calls[0] for r, calls in enumerate(left) if calls}, ways):
        for op in (op for r in through for op in left[r].pop(0)):
            ways[_way(op)] += (1 if op.kind == "send" else -1) if short else 0
        ways = ways if short else Counter()
    held = [f"rank {r} is held up in {calls[0][0].op}" for r, calls in enumerate(left) if calls]
    return held + [f"rank {m.recv.rank} takes a message by its tag" for m in record.messages if _by_tag(record, m)]


def _way(op: Op) -> tuple:
    return (op.rank, op.peer, op.within) if op.kind == "send" else (op.peer, op.rank, op.within)


def _calls(ops: Sequence[Op]) -> list[list[Op]]:
    """A rank's messages by calls: a batch is one, and takes numbers that follow one another."""
    calls = [[op] for op in ops[:1]]
    for before, op in pairwise(ops):
        if before.batch and op.batch and op.issued == before.issued + 1:
            calls[-1].append(op)
        else:
            calls.append([op])
    return calls


def _through(now: dict[int, list[Op]], ways: Counter[tuple]) -> set[int]:
    """The ranks whose calls can end: all that they do is met by calls that can end as well, or has been."""
    found = set(now)

    def goes(op: Op) -> bool:
        if _way(op) in ways and (op.kind == "send" or ways[_way(op)] > 0):
            return True
        return op.peer in found and any(_way(o) == _way(op) and o.kind != op.kind for o in now[op.peer])

    while late := {r for r in found if not all(map(goes, now[r]))}:
        found -= late
    return found


def _by_tag(record: Record, message: Message) -> bool:
    """Whether a message is not the next one on its way for both of its ranks: NCCL compares no tags."""
    if message.send is None or message.recv is None:
        return False
    places = []
    for op in (message.send, message.recv):
        way = [o for o in record.ops[op.rank] if o.kind == op.kind and _way(o) == _way(op)]
        places.append(next(i for i, o in enumerate(way) if o is op))
    return places[0] != places[1]
