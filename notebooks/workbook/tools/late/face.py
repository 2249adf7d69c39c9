"""`lab.late` and `%%late`: who waits for a rank that comes late to each statement of a cell."""

from __future__ import annotations

import ast
from typing import Any

from labkit.cluster.console import Console
from labkit.cluster.stop_button import STOP
from labkit.faces import arguments
from labkit.floor.errors import LabError
from labkit.theory.cells import makes_group
from labkit.theory.record import read
from workbook.tools.late.show import Late, Lateness, states

SECONDS = 0.25  # that the rank comes late: far more than ranks differ by themselves, also on a busy machine
COME = "__import__('workbook.tools.rank.late', fromlist=['come']).come({late}, {seconds})"


@STOP
def late(lab: Any, code: str, rank: int, seconds: float = SECONDS) -> Late:
    """Run a cell's statements one by one, one rank late to each, and draw who waits for it; also `%%late 1`.

    >>> lab.late("dist.barrier()\\ndist.broadcast(x, src=0)", rank=1)

    Each statement runs once, on your variables. Raises `CellError` as a `%%px` cell does.
    """
    arguments.text('lab.late("dist.barrier()", rank=1)', code)
    console: Console = lab._console
    engines = console.engines
    if isinstance(rank, bool) or rank not in range(engines.n):
        raise LabError(f"rank={rank!r}: this lab has the ranks 0 to {engines.n - 1}. Choose the one that comes late.")
    if not 0 < seconds < engines.limit / 2:
        raise LabError(f"seconds={seconds!r}: give more than 0 and less than {engines.limit / 2:g}, half the time-out.")
    found = []
    cell = engines.remember(code, range(engines.n), well=None)  # the cell is one, in whatever parts it is sent
    for line, source in statements(code):
        come = COME.format(late=rank, seconds=seconds)
        console.run(_behind(come, line, source), range(engines.n), cell, makes_group(source))
        record = read(console.records())
        if any(record.ops):
            found.append(Lateness(" ".join(source.split()), states(record, rank)))
    return Late(rank, engines.n, found)


def _behind(come: str, line: int, source: str) -> str:
    """Put a statement behind the call that delays, on the line where the learner wrote it, which an error names.

    >>> _behind("come()", 3, "x = 1")
    'come()\\n\\nx = 1'
    >>> _behind("come()", 1, "x = 1")
    'come(); x = 1'

    A `for`, `if`, `def` … bears nothing before it: in the first line it moves down by one. %%late has none there.
    """
    if line > 1:
        return come + "\n" * (line - 1) + source
    try:
        ast.parse(f"{come}; {source}")
    except SyntaxError:
        return f"{come}\n{source}"
    return f"{come}; {source}"


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
