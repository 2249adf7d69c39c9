"""Which numbers of a value are changed to see where a result comes from, and how the answers are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.theory import provenance
from labkit.theory.provenance import Part, Response
from labkit.theory.values import split

MOST = 8  # ranks, and elements a rank, up to which every element is probed on its own


@dataclass(frozen=True)
class Seen:
    """What a cell did to a value: `before[r]` and `after[r]` as `labkit.rank.probe.told` has them.

    `sources[j]` is (rank, start, stop): the stretch of rank's x that was changed as one. `parts[r]` are stretches
    (start, stop, part) of rank r's result, empty where `why` says that their origin is unknown.
    """

    code: str
    x: str
    y: str
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    sources: list[tuple[int, int, int]]
    parts: list[list[tuple[int, int, Part]]]
    why: str = ""


def sources(before: Sequence[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """Cut every rank's x into stretches to change: elements where that can be drawn, else blocks, or the whole."""
    n = len(before)
    fine = n <= MOST and all(b["size"] <= MOST for b in before)
    found = []
    for r, b in enumerate(before):
        size = b["size"]
        blocks = size if fine else min(size, n) if n <= MOST else min(size, 1)
        start = 0
        for block in split(range(size), blocks) if blocks else []:
            found.append((r, start, start + len(block)))
            start += len(block)
    return found


def values(sources: list[tuple[int, int, int]], before: list[dict[str, Any]]) -> dict[tuple[int, int], float] | None:
    """Return the number of each source; None where one is not a number."""
    known = {(r, start): before[r]["values"][start] for r, start, _ in sources}
    return known if all(isinstance(v, (int, float)) for v in known.values()) else None


def read(
    answer: dict[str, Any],
    families: list[tuple[int, int]],
    sources: list[tuple[int, int, int]],
    after: dict[str, Any],
    values: dict[tuple[int, int], float] | None,
    n: int,
) -> list[tuple[int, int, Part | None]]:
    """Read where the stretches of one rank's result came from: (start, stop, part); a part is None where unknown."""
    names, counted = [], dict.fromkeys(range(n), 0)
    for r, _, _ in sources:
        names.append((r, counted[r]))
        counted[r] += 1
    stops = [*answer["starts"][1:], after["size"]][: len(answer["starts"])]
    row = []
    for i, (start, stop) in enumerate(zip(answer["starts"], stops, strict=True)):
        responses = {
            family: Response(
                answer["rest"][f][i],
                {s: answer["changes"][f][j][i] for j, s in enumerate(names)},
                answer["changes"][f][-1][i],
            )
            for f, family in enumerate(families)
        }
        value = after["values"][start] if values is not None and start < len(after["values"]) else None
        value = value if isinstance(value, (int, float)) else None
        row.append((start, stop, provenance.read(responses, n, value, values if value is not None else None)))
    return row
