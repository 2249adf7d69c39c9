"""Say ranks, lists, seconds and bytes, in one way for every room. Imports nothing of labkit."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

Same = TypeVar("Same", bound=Hashable)

# What only a terminal understands: colours, titles, the cursor's moves.
ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")


def ranks(which: Iterable[int]) -> str:
    """Name ranks the way one says them.

    >>> ranks([2]), ranks([0, 2]), ranks([0, 1, 2, 5])
    ('rank 2', 'ranks 0, 2', 'ranks 0–2, 5')
    """
    each = sorted(set(which))
    return f"rank{'s' * (len(each) > 1)} {spans(each, ', ')}" if each else "no rank"


def spans(numbers: Iterable[int], comma: str = ",") -> str:
    """Write numbers in short; three or more in a row as a span.

    >>> spans([7, 0, 1, 2, 3]), spans([0, 1])
    ('0–3,7', '0,1')
    """
    runs: list[list[int]] = []
    for k in sorted(set(numbers)):
        if runs and k == runs[-1][-1] + 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    return comma.join(f"{run[0]}–{run[-1]}" if len(run) > 2 else comma.join(map(str, run)) for run in runs)


def listed(items: Sequence[str], last: str = "and") -> str:
    """Write things in a row.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"], "or")
    ('a', 'a and b', 'a, b or c')
    """
    return f" {last} ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def alike(texts: Mapping[int, Same]) -> dict[Same, list[int]]:
    """Group the ranks that say the same, or have the same value, in the order of their first.

    >>> alike({0: "hi", 1: "ho", 2: "hi"})
    {'hi': [0, 2], 'ho': [1]}
    """
    groups: dict[Same, list[int]] = {}
    for r in sorted(texts):
        groups.setdefault(texts[r], []).append(r)
    return groups


def sentence(parts: Sequence[str]) -> str:
    """Join notes to one line that begins with a capital letter and ends with a full stop.

    >>> sentence(["rank 2 was started anew", "the others keep theirs"])
    'Rank 2 was started anew; the others keep theirs.'
    """
    joined = "; ".join(parts)
    return f"{joined[:1].upper()}{joined[1:].rstrip('.')}."


def count(k: int, what: str, several: str = "") -> str:
    """Write so many of a thing, or of `several` where that is more than an s.

    >>> count(1, "rank"), count(3, "rank"), count(2, "copy", "copies")
    ('1 rank', '3 ranks', '2 copies')
    """
    return f"{k:,} {what if k == 1 else several or f'{what}s'}"


def seconds(s: float) -> str:
    """Write seconds with three digits and the unit that fits them.

    >>> seconds(4.12e-4), seconds(2.5), seconds(0.9999), seconds(1234)
    ('412 µs', '2.5 s', '1 s', '1,234 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if s >= 0.9995 * size:
            value = s / size
            return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"
    return f"{s * 1e9:.3g} ns"


def nbytes(size: float) -> str:
    """Write a number of bytes in the unit that fits.

    >>> nbytes(12), nbytes(1536), nbytes(2**24)
    ('12 B', '1.5 KiB', '16 MiB')
    """
    for unit, many in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= many:
            return f"{size / many:.4g} {unit}"
    return f"{size:.4g} B"
