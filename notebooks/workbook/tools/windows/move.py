"""A put, an accumulate or a get, as the rank that called it recorded it. Plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labkit.floor.words import count
from labkit.show.tiles import short

SIGN = {"put": "put", "accumulate": "+=", "get": "get"}
VERB = {"put": "puts {} into", "accumulate": "adds {} to", "get": "gets {} from"}


@dataclass(frozen=True)
class Move:
    """Rank `rank` put `numbers` into rank `of`'s window from place `at` on, added them to it, or got them from it."""

    rank: int
    what: str
    of: int
    at: int
    size: int
    numbers: list[float] | None  # None where they are too many to be kept
    before: list[float] | None  # what stood there
    began: float
    ended: float
    fences: int  # that the rank had passed

    @property
    def told(self) -> str:
        """ "rank 0 puts [7] into rank 2's window, place 1"."""
        what = numbers(self.numbers, self.size)
        whose = "its own window" if self.of == self.rank else f"rank {self.of}'s window"
        return f"rank {self.rank} {VERB[self.what].format(what)} {whose}, {_places(self.at, self.size)}"


def numbers(values: Iterable[float] | None, size: int) -> str:
    """Write numbers in brackets, or how many there are where they were not kept."""
    return count(size, "number") if values is None else f"[{', '.join(map(short, values))}]"


def _places(at: int, size: int) -> str:
    return f"place {at}" if size == 1 else f"places {at}–{at + size - 1}"
