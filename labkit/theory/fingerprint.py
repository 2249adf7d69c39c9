"""What a rank is about to do in a group, told so that ranks can compare it, and in what calls disagree.

Calls fit where every rank makes the same one, with the same reduction, root and dtype,
and each pair of ranks agrees on how many elements go from one to the other.
"""

from __future__ import annotations

import ast
import itertools
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from labkit.floor.words import alike, count, listed, ranks

LATER = 8  # statements behind one that are remembered
SHOWN = 60  # characters of a statement
Elements = int | tuple[int, ...]  # the same number for each rank of the group, or one a rank


@dataclass(frozen=True)
class Statement:
    """A statement of the learner's and those that follow it in its block, each as a number that its text gives."""

    mark: int
    later: tuple[int, ...] = ()


@dataclass(frozen=True)
class Call:
    """One rank's call. `gives[j]` elements go to the group's rank j, `takes[j]` come from it; None: unknown.

    `root` is a rank of the world; `path` are the statements that the call is in, the innermost first. `sizes` are the
    elements of its input and of its output, where it has one tensor of each and each rank's part is as long.
    `strides` are those of a tensor that is moved as it lies in memory, and not row by row: a transposed one's.
    """

    kind: str
    reduce: str = ""
    root: int | None = None
    other: str = ""  # "src" or "dst": what torch calls the root
    dtype: str = ""
    shape: str = ""
    strides: str = ""
    gives: Elements | None = None
    takes: Elements | None = None
    sizes: tuple[int, int] | None = None
    place: str = ""
    text: str = ""
    path: tuple[Statement, ...] = ()

    def __str__(self) -> str:
        """Write it for a learner: "all_reduce(MAX, float32[4])"."""
        parts = self.gives if isinstance(self.gives, tuple) and self.root is None else ()
        size = f" in parts of {listed(list(map(str, parts)))}" if len(set(parts)) > 1 else ""
        root = f"{self.other}={self.root}" if self.root is not None else ""
        given = ", ".join(filter(None, [self.reduce.upper(), root, self.dtype + self.shape + size]))
        return f"{self.kind}({given})" if given else self.kind


@lru_cache(maxsize=1024)  # a training loop makes the same calls again and again
def pack(call: Call, room: int = sys.maxsize) -> bytes:
    """Turn a call into bytes; where there is no room for all, without its elements and statements."""
    data = json.dumps(asdict(call), separators=(",", ":")).encode()
    return data if len(data) <= room else pack(replace(call, gives=None, takes=None, path=()))


@lru_cache(maxsize=1024)
def unpack(data: bytes) -> Call:
    """Read what `pack` made."""
    told = json.loads(data)
    path = tuple(Statement(s["mark"], tuple(s["later"])) for s in told["path"])
    elements = {name: tuple(v) if isinstance(v := told[name], list) else v for name in ("gives", "takes", "sizes")}
    return Call(**{**told, **elements, "path": path})


def statement(source: str, line: int) -> tuple[str, Statement]:
    """Find the innermost statement at a line of a cell: its text, and its mark with those of the next in its block.

    >>> text, found = statement("if rank == 1:\\n    f(b)\\n    f(a)\\nelse:\\n    f(a)\\n    f(b)\\n", 2)
    >>> text, found.later == (_mark("f(a)"),)
    ('f(b)', True)
    """
    return _statements(source).get(line, ("", Statement(0)))


@lru_cache(maxsize=32)
def _statements(source: str) -> dict[int, tuple[str, Statement]]:
    """Find the innermost statement on each line."""
    found: dict[int, tuple[str, Statement]] = {}

    def read(block: Sequence[ast.stmt]) -> None:
        texts = [ast.unparse(s) for s in block]
        marks = [_mark(text) for text in texts]
        for i, s in enumerate(block):
            at = texts[i], Statement(marks[i], tuple(marks[i + 1 : i + 1 + LATER]))
            found.update(dict.fromkeys(range(s.lineno, (s.end_lineno or s.lineno) + 1), at))
            for _, value in ast.iter_fields(s):  # inner blocks write over what their lines have so far
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    read(value)
                for handler in value if isinstance(value, list) else ():
                    if isinstance(handler, (ast.ExceptHandler, ast.match_case)):
                        read(handler.body)

    try:
        read(ast.parse(source).body)
    except SyntaxError:  # a cell with IPython's own syntax
        return {}
    return found


def _mark(text: str) -> int:
    return zlib.crc32(text.encode())


# -- comparing ----------------------------------------------------------------------------------------------------

ORDER, OPERATION, REDUCTION, ROOT, DTYPE, LAYOUT, ELEMENTS = (
    "order of their calls",
    "operation",
    "reduction",
    "root",
    "dtype",
    "order of the elements in memory",
    "number of elements",
)
REMEDY = {
    ORDER: "Make the calls in the same order on every rank.",
    DTYPE: "Convert with x.to(dtype) before the call.",
    LAYOUT: "Make the call with x.contiguous().",
    ELEMENTS: "Give every rank what the others expect of it.",
}
SAME = "Make the same call with the same arguments on every rank."
ROOM = {  # of a call with one input and one output, on so many ranks
    "all_gather": "The output has to be {n} times as long as the input.",
    "all_to_all": "The output has to be as long as the input.",
    "gather": "The root's output has to be {n} times as long as the input.",
    "reduce_scatter_tensor": "The input has to be {n} times as long as the output.",
}
EQUAL = "Their length has to be a multiple of {n}."


def differs(calls: Mapping[int, Call], members: Sequence[int]) -> str:
    """Find in what these calls of one group do not fit, one of `REASONS`; "" where they fit.

    `calls` are by rank of the world, of those that have come so far; `members[i]` is the group's rank i.
    """
    pairs = _compared(calls, members)
    if any(swapped(calls[a], calls[b]) for (_, a), (_, b), d in pairs if d and a != b):
        return ORDER
    return next((each for each in REASONS if any(d == each for *_, d in pairs)), "")


def disagreement(calls: Mapping[int, Call], members: Sequence[int]) -> str:
    """Say what is wrong with these calls of one group, and what to do about it; "" where they fit."""
    if not (what := differs(calls, members)):
        return ""
    come = [(i, r) for i, r in enumerate(members) if r in calls]
    told = alike({r: _told(calls[r], what) for _, r in come})
    fewest_first = sorted(told.items(), key=lambda each: len(each[1]))
    said = [f"{ranks(rs)} {'calls' if len(rs) == 1 else 'call'} {text}" for text, rs in fewest_first]
    if absent := [r for r in members if r not in calls]:
        said.append(f"{ranks(absent)} {'has' if len(absent) == 1 else 'have'} not come yet")
    uneven = next((_uneven(calls, a, b) for a, b, d in _compared(calls, members) if d == what == ELEMENTS), "")
    remedy = uneven + REMEDY.get(what, SAME)
    if own := [calls[r] for i, r in come if what == ELEMENTS and calls[r].sizes and _differ(calls[r], i, calls[r], i)]:
        cut = all(c.kind == "all_to_all" and c.sizes and c.sizes[0] == c.sizes[1] for c in own)
        remedy = (EQUAL if cut else ROOM[own[0].kind]).format(n=len(members))
    fault = f"The {what} does not fit" if what == ELEMENTS and len(told) == 1 else f"Ranks disagree on the {what}"
    return f"{fault}: {'; '.join(said)}. {remedy}"


def _compared(calls: Mapping[int, Call], members: Sequence[int]) -> list[tuple[tuple[int, int], tuple[int, int], str]]:
    """Compare each rank with each other one, and at last each with itself: what it takes of itself is what it gives."""
    come = [(i, r) for i, r in enumerate(members) if r in calls]
    pairs = itertools.chain(itertools.combinations(come, 2), zip(come, come, strict=True))
    return [(a, b, _differ(calls[a[1]], a[0], calls[b[1]], b[0])) for a, b in pairs]


def fit(a: Call, i: int, b: Call, j: int) -> bool:
    """Tell whether the calls of the group's ranks i and j fit."""
    return not _differ(a, i, b, j)


REASONS = (OPERATION, REDUCTION, ROOT, DTYPE, ELEMENTS, LAYOUT, ORDER)


def _differ(a: Call, i: int, b: Call, j: int) -> str:
    """Name what two calls of the group's ranks i and j differ in; "" where they fit."""
    if a.kind != b.kind:
        return OPERATION
    if a.reduce != b.reduce:
        return REDUCTION
    if a.root != b.root:
        return ROOT
    if a.dtype != b.dtype and a.dtype and b.dtype:
        return DTYPE
    if not (_agree(a.gives, j, b.takes, i) and _agree(b.gives, i, a.takes, j)):
        return ELEMENTS
    if a.strides != b.strides:
        return LAYOUT
    return ORDER if a.path and b.path and _crossed(a.path[0], b.path[0]) else ""


def _agree(gives: Elements | None, to: int, takes: Elements | None, of: int) -> bool:
    given, taken = _at(gives, to), _at(takes, of)
    return given is None or taken is None or given == taken


def _at(elements: Elements | None, rank: int) -> int | None:
    if elements is None or isinstance(elements, int):
        return elements
    return elements[rank] if rank < len(elements) else None


def swapped(a: Call, b: Call) -> bool:
    """Tell whether each of two ranks is where the other comes next: the same statements in another order."""
    return any(_crossed(x, y) for x in a.path for y in b.path)


def _crossed(x: Statement, y: Statement) -> bool:
    return x.mark != y.mark and x.mark in y.later and y.mark in x.later


def _told(call: Call, what: str) -> str:
    where = f" ({call.place})" if call.place else ""
    if what == ORDER and call.text:
        text = call.text if len(call.text) <= SHOWN else f"{call.text[: SHOWN - 1]}…"
        return f"{text} first{where}"
    if what == LAYOUT:
        return f"{call} with {f'strides {call.strides}' if call.strides else 'its rows one behind the other'}{where}"
    if what == ELEMENTS and call.sizes:
        return f"{call} with {count(call.sizes[0], 'element')} of input and {call.sizes[1]} of output{where}"
    return f"{call}{where}"


def _uneven(calls: Mapping[int, Call], a: tuple[int, int], b: tuple[int, int]) -> str:
    """Say, of ranks that bring lists, which gives how much to which, and how much is expected there."""
    for (i, r), (j, s) in ((a, b), (b, a)):
        gives, takes = calls[r].gives, calls[s].takes
        given, taken = _at(gives, j), _at(takes, i)
        if given != taken and not (isinstance(gives, int) and isinstance(takes, int)):
            whom, who = ("itself", "") if r == s else (f"rank {s}", f"rank {s} ")
            return f"Rank {r} gives {count(given or 0, 'element')} to {whom}, and {who}expects {taken}. "
    return ""
