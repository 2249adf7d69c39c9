"""What a function should have delivered, and in which words its mistakes are told. Neither torch nor a cluster.

`expected` feeds Origin tokens to `theory.collectives`; `mistakes` compares them with the origins that were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from labkit.floor.words import listed, ranks
from labkit.theory.origin import Origin
from labkit.theory.primitives import Means, meaning, meant
from labkit.theory.values import cut, leaves, split

TOLD = 4  # mistakes in words; the picture shows the others

Span = tuple[int, int, Origin | None]  # elements start to stop of a result come from here; None: undefined


def expected(means: str | Means, groups: Sequence[Sequence[int]], root: int = 0) -> list[list[Origin] | None]:
    """Return the origins that a primitive, or any `means(xs)`, leaves on every rank by element; None: undefined.

    `groups[r]` has the lengths of the chunks that rank r brings: [4] for a tensor of four, [2, 2] for a list of two.
    A primitive that takes chunks gets them, also of a tensor; a function of one's own gets what the ranks bring.

    >>> expected("reduce", [[1], [1]])
    [[r0[0] + r1[0]], None]
    """
    primitive = meant(means)
    n = len(groups)
    xs: list[Any] = []
    for r, sizes in enumerate(groups):
        tokens = [Origin(r, i) for i in range(sum(sizes))]
        if primitive.chunked if primitive else len(sizes) > 1:
            xs.append(cut(tokens, sizes) if len(sizes) == n else split(tokens, n))
        else:
            xs.append(tokens)
    out = meaning(means)(xs, **({"root": root} if primitive and primitive.rooted else {}))
    return [None if o is None else leaves(o) for o in out]


def aligned(got: Sequence[Span], wanted: Sequence[Span]) -> list[tuple[int, int, Origin | None, Origin | None]]:
    """Cut two results into pieces on which neither changes: (start, stop, what came, what should have come)."""
    bounds = sorted({b for span in (*got, *wanted) for b in span[:2]})

    def at(spans: Sequence[Span], start: int) -> Origin | None:
        return next((origin for a, b, origin in spans if a <= start < b), Origin.of({}))

    return [(a, b, at(got, a), at(wanted, a)) for a, b in pairwise(bounds)]


def mistakes(
    got: Sequence[Sequence[Span]], wanted: Sequence[Sequence[Span] | None], noun: str = "element"
) -> list[str]:
    """Put each mistake into words, ranks that make the same one together; none where the result is right.

    >>> mistakes([[(0, 1, Origin(0))]], [[(0, 1, Origin(0) + Origin(1))]])
    ["rank 0 lacks rank 1's element 0"]
    """
    told: dict[str, list[int]] = {}
    for r, (came, should) in enumerate(zip(got, wanted, strict=True)):
        if should is not None:
            for said in _told(aligned(came, should), should, noun):
                told.setdefault(said, []).append(r)
    sentences = [f"{ranks(rs)} {_plural(said, len(rs))}" for said, rs in told.items()]
    rest = len(sentences) - TOLD
    return sentences[:TOLD] + ([f"and {rest} more mistake{'s' * (rest > 1)}"] if rest > 0 else [])


def repeated(got: Sequence[Sequence[Span]], noun: str = "element") -> list[str]:
    """Say what is counted more than once, without knowing what was meant."""
    once = [[(a, b, None if o is None else Origin.of(o.counts.keys())) for a, b, o in row] for row in got]
    return mistakes(got, once, noun)


def _told(pieces: list[tuple[int, int, Origin | None, Origin | None]], should: Sequence[Span], noun: str) -> list[str]:
    lacks: set[tuple[int, int]] = set()
    often: dict[int, set[tuple[int, int]]] = {}
    moved: dict[
        tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, int]]
    ] = {}  # by whose element came, and belongs
    others: list[str] = []
    for start, _, came, want in pieces:
        if want is None or came is None or came == want:
            continue
        if not came.counts:
            lacks |= set(want.counts)
        elif set(came.counts) <= set(want.counts):
            lacks |= set(want.counts) - set(came.counts)
            for s in came.counts - want.counts:
                often.setdefault(came.counts[s], set()).add(s)
        else:
            a, b = ({i for _, i in o.counts} for o in (came, want))
            whose = tuple(came.ranks), tuple(want.ranks)
            if len(a) == len(b) == 1 and (a != b or len(whose[0]) == len(whose[1]) == 1):
                moved.setdefault(whose, []).append((a.pop(), b.pop()))
            else:
                inside = any(begin <= start < end for begin, end, _ in should)
                belongs = _made_of(want, noun) if want.counts else "a 0" if inside else "nothing"
                others.append(f"{_made_of(came, noun)} where {belongs} belong{'s' * (len(want.counts) < 2)}")
    whole = {s for _, _, want in should if want is not None for s in want.counts}
    said = ["lacks " + _sources(lacks, noun, whole, "'s numbers")] if lacks else []
    for times, which in sorted(often.items()):
        said.append(f"counts {_sources(which, noun, whole)} {'twice' if times == 2 else f'{times} times'}")
    for held in ([_moved(*whose, pairs, noun) for whose, pairs in moved.items()], others):
        if held:
            said.append(f"holds {', '.join(dict.fromkeys(held[:TOLD]))}{', …' if len(held) > TOLD else ''}")
    return said


def _moved(givers: tuple[int, ...], owners: tuple[int, ...], pairs: list[tuple[int, int]], noun: str) -> str:
    """Say which elements are in the places of others; the ranks are left out where both are of the same ones."""
    shared = givers == owners and len(givers) > 1

    def named(which: tuple[int, ...], indices: Sequence[int]) -> str:
        some = f"{noun}{'s' * (len(pairs) > 1)} {', '.join(map(str, indices))}"
        if len(which) == 1:
            return f"rank {which[0]}'s {some}"
        return some if shared else f"{some} of {ranks(which)}"

    came_from, belong = zip(*pairs, strict=True)
    return f"{named(givers, came_from)} where {named(owners, belong)} belong{'s' * (len(pairs) == 1)}"


def _made_of(origin: Origin, noun: str) -> str:
    """Say what a number is made of: "rank 1's element 2"; "element 0 of ranks 0–3"; of many only how many."""
    indices = {i for _, i in origin.counts}
    if len(indices) == 1 and len(origin.counts) > 1:
        return f"{noun} {indices.pop()} of {ranks(origin.ranks)}"
    return _sources(set(origin.counts), noun) if len(origin.counts) <= TOLD else f"{len(origin.counts)} {noun}s"


def _sources(which: set[tuple[int, int]], noun: str, whole: set[tuple[int, int]] | None = None, every: str = "") -> str:
    """Name sources: "rank 3's element 1"; "rank 3" and `every` where all that rank 3 has to give is meant."""
    parts = []
    for r in sorted({r for r, _ in which}):
        mine = sorted(i for s, i in which if s == r)
        if whole is not None and len(mine) > 1 and {(r, i) for i in mine} == {s for s in whole if s[0] == r}:
            parts.append(f"rank {r}{every}")
        else:
            parts.append(f"rank {r}'s {noun}{'s' * (len(mine) > 1)} {', '.join(map(str, mine))}")
    return listed(parts)


def _plural(said: str, count: int) -> str:
    verb, rest = said.split(" ", 1)
    many = {"lacks": "lack", "counts": "count", "holds": "hold"}
    return f"{many[verb] if count > 1 else verb} {rest}"
