"""The course of a benchmark that starts programs: describe the machine, measure, print the table and maybe keep it."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from measure import machine, table
from measure.processes import Failed

T = TypeVar("T")
Facts = dict[str, str]


def report(
    name: str,
    packages: Sequence[str],
    method: Mapping[str, str],
    measure: Callable[[], tuple[T, Sequence[str]]],
    section: Callable[[Facts, T, Sequence[str]], str],
    write: bool,
) -> int:
    """Measure; the exit code: 1 where something failed, 130 after Ctrl-C, else 0, whatever the targets say.

    `measure` returns its results and sentences about what failed; `section` makes the benchmark's part of RESULTS.md of
    facts about the machine and the method, and of those two.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` ends what was started
    facts = machine.describe(packages) | {"load before": machine.load()}
    with contextlib.suppress(KeyboardInterrupt):
        results, failures = measure()
        text = section({**facts, "load after": machine.load(), **method}, results, failures)
        print(text)
        if write:
            table.write(name, text)
        return int(bool(failures))
    return 130


def each(ranks: Sequence[int], measure: Callable[[int], T]) -> tuple[dict[int, T], list[str]]:
    """What was measured on each number of ranks, and what failed."""
    told, failures = {}, []
    for n in ranks:
        try:
            told[n] = measure(n)
        except Failed as failure:
            failures.append(f"{n} ranks: {failure}")
    return told, failures
