"""A learner's messages held against the right ones: what is missing, extra, late, or carries something else.

Messages are told apart by who sends to whom and what is carried: the numbers, and whose they are where that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.floor.words import count, sentence, spans
from labkit.theory.record import Message
from labkit.theory.replay import Replay

FEW = 8  # numbers of a message that are told one by one


@dataclass(frozen=True)
class Difference:
    """One difference: its step, from 0; the mark of the learner's message and of the right one, and a sentence."""

    step: int
    mine: Message | None
    right: Message | None
    mark: str
    says: str


@dataclass(frozen=True)
class _Sent:
    step: int
    message: Message
    values: tuple[Any, ...]
    chunk: frozenset[int] | None  # the places in the ranks' inputs that its numbers belong to
    whose: frozenset[int]

    @property
    def way(self) -> tuple[int | None, int | None]:
        return self.message.src, self.message.dst

    def same(self, other: _Sent) -> bool:
        """Tell whether it carries the same numbers of the same ranks: sums of different parts can be equal."""
        known = self.chunk and other.chunk
        return self.values == other.values and (not known or (self.chunk, self.whose) == (other.chunk, other.whose))

    @property
    def words(self) -> str:
        return f"rank {self.message.src} to rank {self.message.dst}"

    @property
    def what(self) -> str:
        if self.chunk:
            elements = f"element{'s' * (len(self.chunk) > 1)} {spans(self.chunk)}"
            return f"{elements} of {'rank' if len(self.whose) == 1 else 'ranks'} {spans(self.whose)}"
        return self.numbers

    @property
    def numbers(self) -> str:
        if not (self.message.send and self.message.send.view):
            return "a tensor"
        few = len(self.values) <= FEW and all(isinstance(v, (int, float)) for v in self.values)
        return f"[{', '.join(f'{v:g}' for v in self.values)}]" if few else count(len(self.values), "number")


def differences(mine: Replay, right: Replay) -> list[Difference]:
    """List where the learner's messages are not the right ones, in the order of the steps; each message once.

    Pairs are found from the most alike to the least: the same message in another step, the same chunk to another
    rank, another chunk on the same way. What is left over is extra, or missing.
    """
    ours, theirs = _sent(mine), _sent(right)
    found: list[Difference] = []
    for a, b in _pairs(ours, theirs, lambda a, b: (a.step, a.way, a.values) == (b.step, b.way, b.values)):
        if a.message.recv is None and b.message.recv is not None:
            says = f"step {a.step + 1}: no rank receives what goes from {a.words}"
            found.append(Difference(a.step, a.message, b.message, "no recv", says))

    for a, b in _pairs(ours, theirs, lambda a, b: a.way == b.way and a.same(b)):
        late = a.step - b.step
        by = f"{count(abs(late), 'step')} {'late' if late > 0 else 'early'}"
        says = f"step {a.step + 1}: what goes from {a.words} belongs in step {b.step + 1}, so it is {by}"
        found.append(Difference(a.step, a.message, b.message, "late" if late > 0 else "early", says))

    def elsewhere(a: _Sent, b: _Sent) -> bool:
        same = a.chunk == b.chunk if a.chunk and b.chunk else a.values == b.values
        return same and (a.step, a.way[0]) == (b.step, b.way[0]) and a.way != b.way

    for a, b in _pairs(ours, theirs, elsewhere):
        says = f"step {a.step + 1}: rank {a.way[0]} sends {a.what} to rank {a.way[1]}, and not to rank {b.way[1]}"
        found.append(Difference(a.step, a.message, b.message, "≠ rank", says))

    for a, b in _pairs(ours, theirs, lambda a, b: (a.step, a.way) == (b.step, b.way)):
        mark = "≠ chunk" if a.chunk and b.chunk and a.chunk != b.chunk else "≠ data"
        goes, meant = (a.what, b.what) if a.chunk and b.chunk else (a.numbers, b.numbers)
        other = f"and not {meant}" if goes != meant else "but not the right ones"
        says = f"step {a.step + 1}: rank {a.way[0]} sends {goes} to rank {a.way[1]}, {other}"
        found.append(Difference(a.step, a.message, b.message, mark, says))

    for a in ours:
        says = f"step {a.step + 1}: the message from {a.words} has no counterpart"
        found.append(Difference(a.step, a.message, None, "extra", says))
    for b in theirs:
        says = f"step {b.step + 1}: a message from {b.words} is missing"
        found.append(Difference(b.step, None, b.message, "missing", says))
    return sorted(found, key=lambda d: d.step)


def told(found: Sequence[Difference]) -> list[str]:
    """Say the differences: those of one kind in one step as the first of them, and how many are like it."""
    kinds: dict[tuple[int, str], list[Difference]] = {}
    for d in found:
        kinds.setdefault((d.step, d.mark), []).append(d)
    more = {kind: f" (and {len(ds) - 1} more like it)" if len(ds) > 1 else "" for kind, ds in kinds.items()}
    return [sentence([f"{ds[0].says}{more[kind]}"]) for kind, ds in kinds.items()]


def _sent(replay: Replay) -> list[_Sent]:
    sent = []
    for k, messages in enumerate(replay.steps):
        for m in messages:
            if m.send is None:
                continue
            carried = replay.carried(m)
            origins = [e.origin for e in carried]
            known = carried and all(o is not None for o in origins)
            sources = {source for o in origins if o for source in o.counts} if known else set()
            chunk, whose = frozenset(i for _, i in sources), frozenset(r for r, _ in sources)
            sent.append(_Sent(k, m, tuple(e.value for e in carried) or m.send.shape or (), chunk or None, whose))
    return sent


def _pairs(ours: list[_Sent], theirs: list[_Sent], alike: Callable[[_Sent, _Sent], bool]) -> list[tuple[_Sent, _Sent]]:
    """Pair messages that are alike, of several the nearest in the steps, and take both out of their lists."""
    pairs = []
    for a in list(ours):
        b = min((b for b in theirs if alike(a, b)), key=lambda b: abs(a.step - b.step), default=None)
        if b is not None:
            pairs.append((a, b))
            ours.remove(a)
            theirs.remove(b)
    return pairs
