"""Read from ranks' records which of them wait for a rank that comes late to a statement. Pure."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from labkit.theory.record import Record


@dataclass(frozen=True)
class Lateness:
    """One statement: `states[r]` is "late", "waits", "goes on", or "" where rank r has no part in it."""

    call: str
    states: tuple[str, ...]


def statements(code: str) -> list[tuple[int, str]]:
    """Split code into statements, each with its line; code that is no Python is one, so that a rank raises its error.

    >>> statements("a = 1\\nif a:\\n    b = 2")
    [(1, 'a = 1'), (2, 'if a:\\n    b = 2')]
    """
    try:
        nodes = ast.parse(code).body
    except SyntaxError:
        return [(1, code)]
    lines = code.splitlines()
    spans: list[tuple[int, int]] = []
    for node in nodes:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        if spans and first <= spans[-1][1]:  # behind a semicolon
            spans[-1] = (spans[-1][0], node.end_lineno or first)
        else:
            spans.append((first, node.end_lineno or first))
    return [(first, "\n".join(lines[first - 1 : last])) for first, last in spans]


def states(record: Record, late: int) -> tuple[str, ...]:
    """Return for each rank whether it was still in the call when the late rank came to it, or had left.

    Where only the process group noted the call, its end is unknown: then the statement's end counts.
    """
    came = min((op.entered for op in record.ops[late]), default=None)
    found = []
    for r, mine in enumerate(record.ops):
        over = record.logs[r].ended
        ends = [over if op.witnessed else op.left if op.ended is None else op.ended for op in mine]
        if not mine:
            found.append("")
        elif r == late:
            found.append("late")
        elif came is not None and any(end is None or end >= came for end in ends):
            found.append("waits")
        else:
            found.append("goes on")
    return tuple(found)
