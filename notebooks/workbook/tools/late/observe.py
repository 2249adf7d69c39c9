"""Run a cell statement by statement, one rank late to each, and note who waits for it: `lab.late` and `%%late`."""

from __future__ import annotations

import ast

from labkit.cluster.console import Console
from labkit.cluster.stop_button import STOP
from labkit.floor.errors import LabError
from labkit.theory.cells import makes_group
from labkit.theory.record import read
from workbook.tools.late.lateness import Lateness, statements, states

SECONDS = 0.25  # that the rank comes late: far more than ranks differ by themselves, also on a busy machine
COME = "__import__('workbook.tools.rank.late', fromlist=['come']).come({late}, {seconds})"


@STOP
def observe(console: Console, code: str, late: int, seconds: float = SECONDS) -> list[Lateness]:
    """Run each statement of the code on all ranks, `late` so many seconds after the others; those that communicate."""
    engines = console.engines
    if isinstance(late, bool) or late not in range(engines.n):
        raise LabError(f"rank={late!r}: this lab has the ranks 0 to {engines.n - 1}. Choose the one that comes late.")
    if not 0 < seconds < engines.limit / 2:
        raise LabError(f"seconds={seconds!r}: give more than 0 and less than {engines.limit / 2:g}, half the time-out.")
    found = []
    cell = engines.remember(code, range(engines.n), well=None)  # the cell is one, in whatever parts it is sent
    for line, source in statements(code):
        come = COME.format(late=late, seconds=seconds)
        console.run(_behind(come, line, source), range(engines.n), cell, makes_group(source))
        record = read(console.records())
        if any(record.ops):
            found.append(Lateness(" ".join(source.split()), states(record, late)))
    return found


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
