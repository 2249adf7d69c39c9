"""Hold what a learner predicts that every rank holds against what the ranks hold. Plain data in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

from labkit.floor.errors import LabError
from labkit.floor.words import count
from labkit.show.tiles import short
from labkit.theory.values import leaves

TOLD = 3  # wrong tiles in words; the tiles show the others
NEAR = 0.005  # how far a number may be off that is not a whole one, as a part of it: three digits are enough
HOW = "Type a number such as 3, -inf or nan, None if the rank has no value, or ? if its value is undefined."


class Nothing(Enum):
    """A tile without a value: left empty, holding none, or undefined by the primitive."""

    EMPTY = ""
    NONE = "None"
    UNDEFINED = "?"


NONE = ("none", "–", "-", "—", "nothing", "[]")  # ways to say that a rank has no value


@dataclass(frozen=True)
class Place:
    """One tile after the cell: its place, what it truly holds, and whether the primitive that is meant defines it."""

    rank: int
    index: int | None  # None where it is the only one of its rank
    value: Any  # Nothing.NONE where the rank has none
    defined: bool = True

    @property
    def name(self) -> str:
        """The tile's name: "rank 2, place 1"."""
        return f"rank {self.rank}" if self.index is None else f"rank {self.rank}, place {self.index}"

    @property
    def text(self) -> str:
        """The value that it holds, in short."""
        return self.value.value if isinstance(self.value, Nothing) else short(self.value)

    def holds(self, said: Any) -> bool:
        """Tell whether that is what it holds."""
        if not self.defined:
            return said is Nothing.UNDEFINED or (said is Nothing.NONE and self.value is Nothing.NONE)
        if isinstance(said, Nothing) or isinstance(self.value, Nothing):
            return said is self.value
        if isinstance(said, str) or isinstance(self.value, str):
            return str(said) == str(self.value)
        a, b = float(said), float(self.value)
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return math.isclose(a, b, rel_tol=1e-6 if b.is_integer() else NEAR, abs_tol=1e-9)


def read(said: Any, place: Place, words: bool) -> Any:
    """Read what a learner means: a number, a `Nothing`, or, where the ranks hold words, a word.

    >>> read("1/4", Place(0, 0, 1.0), False), read(" none ", Place(0, 0, 1.0), False)
    (0.25, <Nothing.NONE: 'None'>)
    """
    if isinstance(said, (bool, int, float)):
        return said
    text = {None: "None", ...: ""}.get(said, str(said)).strip()
    if text in ("", "?") or text.lower() in NONE:
        return Nothing.EMPTY if not text else Nothing.UNDEFINED if text == "?" else Nothing.NONE
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(Fraction(text)) if "/" in text else float(text.replace("−", "-"))
    except (ValueError, ZeroDivisionError):
        if words:
            return text
        raise LabError(f"{place.name.capitalize()}: {text!r} is not a number. {HOW}") from None


@dataclass(frozen=True)
class Held:
    """A learner's tiles against the ranks': (place, what was typed, what it means), row by row."""

    rows: Sequence[Sequence[tuple[Place, str, Any]]]
    means: str = ""

    @property
    def filled(self) -> list[tuple[Place, str, Any]]:
        """The tiles that were filled in."""
        return [tile for row in self.rows for tile in row if tile[2] is not Nothing.EMPTY]

    @property
    def sentences(self) -> list[str]:
        """The number of right tiles, then what is wrong, a sentence each."""
        wrong = [self._told(place, typed) for place, typed, said in self.filled if not place.holds(said)]
        filled = len(self.filled)
        empty = sum(map(len, self.rows)) - filled
        left = f", {empty} left empty" if empty else ""
        head = f"All {count(filled, 'tile')} are right" if filled > 1 else "Your tile is right"
        right = filled - len(wrong)
        head = f"{right} of {count(filled, 'tile')} {'is' if right == 1 else 'are'} right" if wrong else head
        more = len(wrong) - TOLD
        rest = [f"{count(more, 'more tile')} {'is' if more == 1 else 'are'} wrong."] if more > 0 else []
        return [f"{head}{left}.", *wrong[:TOLD], *rest]

    def _told(self, place: Place, typed: str) -> str:
        name = place.name.capitalize()
        if not place.defined:
            return f"{name}: you said {typed}, but {self.means} leaves nothing there that you can rely on."
        holds = "nothing" if place.value is Nothing.NONE else place.text
        return f"{name}: you said {typed}, but it holds {holds}."


def hold(places: Sequence[Sequence[Place]], rows: Sequence[Any], means: str = "") -> Held:
    """Compare rows, one per rank, with the places; a row is a list as long as the rank has places, or one value.

    Raises `LabError` where rows or values are missing or too many, where one cannot be read, where all are empty.
    """
    n = len(places)
    if isinstance(rows, (str, int, float)) or not hasattr(rows, "__len__") or len(rows) != n:
        raise LabError(f"Write one row for each of the {n} ranks: {_example(places)}.")
    words = any(isinstance(p.value, str) for row in places for p in row)
    held = []
    for r, (row, mine) in enumerate(zip(rows, places, strict=True)):
        said = [""] * len(mine) if row is ... else leaves(row)
        if not said and len(mine) == 1:
            said = [None]  # an empty list, for a rank that has nothing
        if len(said) != len(mine):
            raise LabError(
                f"Rank {r} has {count(len(mine), 'tile')}, but its row has {count(len(said), 'value')}. "
                f"Write {_example(places)}."
            )
        held.append([(p, _typed(s), read(s, p, words)) for p, s in zip(mine, said, strict=True)])
    found = Held(held, means)
    if not found.filled:
        raise LabError("Every tile is still empty. Fill in at least one.")
    return found


def _typed(said: Any) -> str:
    return said.strip() if isinstance(said, str) else "" if said is ... else "None" if said is None else short(said)


def _example(places: Sequence[Sequence[Place]]) -> str:
    """Show how a prediction of this size is written, without its values."""
    rows = [", ".join(["…"] * len(row)) for row in places]
    return f"fill([{', '.join(f'[{row}]' for row in rows)}])"
