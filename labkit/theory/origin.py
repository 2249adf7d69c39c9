"""Where a number came from: tokens that add and remember, and integers that do the same on real ranks.

Feed tokens through `theory.collectives` and every result says which ranks' elements are in it. Feed the integers of
`passes(n, k)` through a learner's own function on the ranks, and `merge` reads the same from the numbers. It works for
functions that move and add.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from labkit.floor.errors import LabError

BASE = 16  # one hexadecimal digit a contribution: it can be counted up to 15 times
INT64 = 62  # bits of an int64 tensor that a probe may use


class Origin:
    """A token for element `index` of `rank`; a sum of tokens remembers all of them and how many times each.

    >>> Origin(0, 1) + Origin(2, 1) + Origin(2, 1)
    r0[1] + 2·r2[1]

    `counts` is the Counter of (rank, index). Scaling a token leaves it as it is: a mean comes from the same
    places. Tokens do not change after they are made, and can be compared, hashed and summed with `sum`.
    """

    __slots__ = ("counts",)
    counts: Counter[tuple[int, int]]

    def __init__(self, rank: int, index: int = 0) -> None:
        self.counts = Counter({(rank, index): 1})

    @classmethod
    def of(cls, counts: Mapping[tuple[int, int], int] | Iterable[tuple[int, int]]) -> Origin:
        """Make the token of these contributions; `Origin.of({})` comes from nowhere, as a zero does."""
        token = cls.__new__(cls)
        token.counts = +Counter(counts)
        return token

    @property
    def ranks(self) -> list[int]:
        """The ranks that contributed, in order."""
        return sorted({rank for rank, _ in self.counts})

    def __add__(self, other: Any) -> Origin:
        if isinstance(other, Origin):
            return Origin.of(self.counts + other.counts)
        return self if isinstance(other, (int, float)) and other == 0 else NotImplemented

    __radd__ = __add__  # sum() starts from 0

    def __mul__(self, factor: Any) -> Origin:
        return self if isinstance(factor, (int, float)) else NotImplemented

    __rmul__ = __truediv__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin) and self.counts == other.counts

    def __hash__(self) -> int:
        return hash(frozenset(self.counts.items()))

    def __repr__(self) -> str:
        terms = [f"{k}·r{r}[{i}]" if k > 1 else f"r{r}[{i}]" for (r, i), k in sorted(self.counts.items())]
        return " + ".join(terms) or "nothing"


def passes(n: int, k: int, bits: int = INT64) -> list[list[list[int]]]:
    """Make n ranks' buffers of k probe numbers, in so many runs that all sums fit into `bits` bits.

    Rank r's element i is a power of 16 of its own in one of the runs, and 0 in the others: a sum is read by digit,
    which says how many times the element is in it. More than 15 times carries into the next digit unnoticed.
    `bits` is 62 for int64 tensors, 30 for int32, 53 for float64, 24 for float32: 15, 7, 13 and 6 elements per run.

    >>> passes(2, 1, bits=4)
    [[[1], [0]], [[0], [1]]]
    """
    room = _room(bits)
    return [
        [[_digit(r * k + i - start, room) for i in range(k)] for r in range(n)]
        for start in range(0, max(1, n * k), room)
    ]


def merge(values: Sequence[int], n: int, k: int, bits: int = INT64) -> Origin:
    """Read one result from all the runs of `passes`, one value per run, in their order.

    >>> merge([1, 2], n=2, k=1, bits=4)
    r0[0] + 2·r1[0]
    """
    room = _room(bits)
    starts = range(0, max(1, n * k), room)
    if len(values) != len(starts):
        raise LabError(f"{len(values)} values for {len(starts)} probe runs. Give one value per run.")
    counts: Counter[tuple[int, int]] = Counter()
    for start, value in zip(starts, values, strict=True):
        if not 0 <= value < BASE ** min(room, n * k - start) or value != int(value):
            raise LabError(f"{value} is not a sum of probe numbers. Probe a function that only moves and adds.")
        for digit in range(min(room, n * k - start)):
            counts[divmod(start + digit, k)] += int(value) // BASE**digit % BASE
    return Origin.of(counts)


def _room(bits: int) -> int:
    if bits < 4:
        raise LabError(f"A probe of {bits} bits holds no element. Give it 4 or more.")
    return bits // 4


def _digit(place: int, room: int) -> int:
    return BASE**place if 0 <= place < room else 0
