"""What a run that went wrong has left: calls that cannot fit one another, and the stack of a process that crashed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.floor.source_lines import is_cell
from labkit.floor.words import alike, count, nbytes, ranks, sentence
from labkit.theory.log import Op
from labkit.theory.record import Meeting, Message, Record

MOST = 3  # contradictions; later ones are often consequences of the first

# What all ranks must agree on in a collective: what each rank has there, how that is said, and what follows it.
ASPECTS: Sequence[tuple[str, Callable[[Op], Any], str]] = (
    ("call{} {}", lambda op: op.op, ""),
    ("name{} rank {}", lambda op: op.peer, " as the root of {}"),
    ("ask{} for {}", lambda op: op.reduce or None, " in {}"),
    ("bring{} {}", lambda op: op.dtype or None, " to {}"),
    ("bring{} {}", lambda op: _size(op) if _equal(op) else None, " to {}"),
)


@dataclass(frozen=True)
class Size:
    """How much a call carries: in elements, or in bytes where it has a list of tensors."""

    amount: int
    elements: bool

    def __str__(self) -> str:
        return count(self.amount, "element") if self.elements else nbytes(self.amount)


def contradictions(record: Record, finished: Collection[int]) -> list[str]:
    """Say which calls cannot fit one another; `finished` are the ranks that reached the function's end.

    A rank that exchanges with itself, ranks that disagree in a collective, a receive that does not fit its send, one
    tensor for several results, and what was started and never waited for.
    """
    lost = [op for op in _lost(record.messages) if op.rank not in finished]
    found = [
        *with_themselves(record),
        *filter(None, map(_disagreement, record.meetings)),
        *filter(None, map(_misfit, record.messages)),
        *_other_tags(record),
        *_together((op for op in record.calls if op.shared), _overwritten),
        *never_waited(record, finished, lost),
    ]
    return list(dict.fromkeys(found))[:MOST]


def never_waited(record: Record, finished: Collection[int], lost: Sequence[Op] = ()) -> list[str]:
    """Say what was started, by ranks that reached the function's end, and never waited for; `lost` by others.

    "Rank 0 started isend (line 3) and never waited for it."
    """
    waiting = [op for r in sorted(finished) for op in record.ops[r] if op.asynchronous and not (op.waited or op.asked)]
    return _together([*waiting, *lost], lambda op: f"{{}} started {op.op}{op.at} and never waited for it")


def unreached(record: Record) -> list[int]:
    """Find the ranks to which no message and no collective has brought anything."""
    return [r for r, mine in enumerate(record.ops) if all(op.kind == "send" or op.name == "barrier" for op in mine)]


def with_themselves(record: Record) -> list[str]:
    """Say which ranks tried to send to themselves or to receive from themselves.

    "Rank 0 receives from itself (line 8)."
    """
    failed = [op for op in record.calls if op.error or op.left is None]
    ops = [op for op in failed if op.kind in ("send", "recv") and op.peer == op.rank]

    def says(op: Op) -> str:
        return f"{{}} {'send{s} to' if op.kind == 'send' else 'receive{s} from'} {{self}}{op.at}"

    return _together(ops, says)


def with_others(record: Record, died: Collection[int], but: Collection[int] = ()) -> list[str]:
    """Say of each rank, but for those in `but`, the last call in which it met those that died."""
    last = {}
    for op in record.calls:
        meets = set(op.ranks) & set(died) if op.kind == "collective" else op.peer in died
        if meets and op.rank not in but:
            last[op.rank] = op

    def says(op: Op) -> str:
        size = _size(op)
        return f"{{}} called {op.op}{f' with {size} of {op.dtype}' if size and op.dtype else ''}{op.at}"

    return _together(last.values(), says)


def _together(ops: Iterable[Op], says: Callable[[Op], str]) -> list[str]:
    """Say once what several ranks do alike."""
    who: dict[str, list[int]] = {}
    for op in ops:
        who.setdefault(says(op), []).append(op.rank)
    return [
        sentence([text.format(ranks(rs), s="s" * one, self="itself" if one else "themselves")])
        for text, rs in who.items()
        for one in [len(set(rs)) == 1]
    ]


def _disagreement(meeting: Meeting) -> str:
    """Say what the ranks of a collective do not agree on, the fewest first.

    "Rank 0 brings 2 elements to all_reduce (line 4), and the others bring 3."
    """
    first = {op.rank: op for op in meeting.ops}
    for says, what, tail in ASPECTS if meeting.mixed else ASPECTS[1:]:
        values = {r: what(op) for r, op in first.items()}
        groups = sorted(alike(values).items(), key=lambda group: len(group[1]))
        if len(groups) == 1 or None in values.values():
            continue
        parts = []
        for i, (value, rs) in enumerate(groups):
            op = first[rs[0]]
            who = "the others" if i and len(groups) == 2 and len(rs) > 1 else ranks(rs)
            at = tail.format(op.op) + op.at if i == 0 else "" if tail else op.at
            said = f"{value.amount:,}" if i and isinstance(value, Size) and value.elements else value
            parts.append(f"{who} {says.format('s' * (len(rs) == 1), said)}{at}")
        return sentence([", and ".join(parts)])
    return ""


def _misfit(message: Message) -> str:
    """Say where a receive makes room for something else than what is sent."""
    send, recv = message.send, message.recv
    if send is None or recv is None:
        return ""
    for what in (lambda op: op.dtype, _size):
        brought, room = what(send), what(recv)
        if brought and room and brought != room:
            end = f"rank {recv.rank} makes room for {room}{recv.at}"
            return f"Rank {send.rank} sends {brought}{send.at}, and {end}."
    return ""


def _lost(messages: Iterable[Message]) -> list[Op]:
    """Find sends that were started and not waited for, and never came to the receive that waits for them.

    Where the handle of an `isend` is not kept, the message goes with it.
    """
    pairs = [(m.send, m.recv) for m in messages if m.send and m.recv and not _misfit(m)]
    return [a for a, b in pairs if a.asynchronous and not a.waited and (b.error or b.left is None)]


def _overwritten(op: Op) -> str:
    """Say that one tensor stands several times in a list of results: `[torch.empty(1)] * n`."""
    same = f"the same tensor in it {op.shared} times{op.at}"
    return f"{{}} give{{s}} {op.op} a list with {same}: each result overwrites the one before"


def _other_tags(record: Record) -> list[str]:
    """Say which sends and receives of two ranks do not meet because their tags differ."""
    return [
        f"Rank {a.rank} sends to rank {b.rank} with tag {a.tag}{a.at}, and rank {b.rank} receives with tag "
        f"{b.tag}{b.at}."
        for a, b in record.mistagged
    ]


def _equal(op: Op) -> bool:
    """Tell whether all ranks must bring equally much: torch's own all-to-all may be uneven, and comms asks first."""
    uneven = op.primitive is None or op.primitive.name == "all_to_all"
    return not (uneven or op.witnessed or op.op.startswith("comms."))


def _size(op: Op) -> Size | None:
    if op.shape is not None:
        return Size(math.prod(op.shape), True)
    return None if op.bytes is None else Size(op.bytes, False)


@dataclass(frozen=True)
class LastWords:
    """Where a process was when it crashed: the operation, if any, and the line of the cell.

    `own` is whether it crashed in that very line; otherwise a thread of Gloo's or torch's took the process down.
    """

    op: str | None
    place: str
    own: bool

    def __str__(self) -> str:
        return f"in {self.op} ({self.place})" if self.op else f"in {self.place}"


FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
TORCH_OR_COMMS = re.compile(r"torch/distributed/distributed_c10d\.py$|labkit/rank/comms\.py$")


def last_words(stacks: str) -> LastWords | None:
    """Read where a process crashed from what Python's faulthandler wrote; None where that names no cell."""
    for thread in stacks.split("\n\n"):
        frames = FRAME.findall(thread)
        cells = [i for i, (file, _, _) in enumerate(frames) if is_cell(file)]
        if cells:
            (_, inner, name), (_, outer, _) = frames[cells[0]], frames[cells[-1]]
            called = [name for file, _, name in frames[: cells[0]] if TORCH_OR_COMMS.search(file)]
            public = [name for name in called if not name.startswith("_")]
            waits = any(file.endswith("labkit/rank/recorder.py") and name == "wait" for file, _, name in frames)
            place = f"line {inner}" + (f" of {name}, called in line {outer}" if cells[0] != cells[-1] else "")
            op = public[-1] if public else "wait" if waits else None
            return LastWords(op, place, thread.startswith("Current thread"))
    return None
