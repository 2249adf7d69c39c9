"""Do labkit's clocks say what a bare loop says? `timed` and `lab.sweep` against torch alone, turn by turn.

All time the same operation on the same ranks with the same number of calls, and believe the slowest rank. They take
turns in random order, so that a busy second hits all of them, and each is believed by the median of its repetitions: on
a shared machine a single one may be off by a third. The bare loop takes part twice, against itself: what that ratio is
off 1 is the machine's noise, not a clock's error. It takes 15 to 20 minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from measure import options, table
from measure.processes import Program
from measure.report import each, report
from measure.table import Row

TITLE = "Labkit's clocks and a bare loop: `benchmarks/clock.py`"
PROGRAM = str(Path(__file__).resolve().parent / "programs" / "with_clock.py")
LIMIT = 1800.0  # seconds that all cases may take on one number of ranks
RANKS = (2, 4)
SIZES = {4: "4 B", 2**16: "64 KiB", 2**22: "4 MiB"}
CASES = [("all_reduce", size) for size in SIZES] + [("broadcast", 2**16)]
WITHIN = 0.05  # of the bare loop
WAYS: dict[str, tuple[str, float | None]] = {  # against the bare loop: its name, and how near it must come
    "timed": ("`timed`", WITHIN),
    "sweep": ("`lab.sweep`", WITHIN),
    "again": ("the bare loop again", None),
}
REPEAT = 8  # repetitions in a turn: short turns, since a machine's moods last for seconds

Told = dict[str, list[list[float] | None]]  # all samples as one round, in microseconds, by `key`


def key(n: int, op: str, size: int, who: str) -> str:
    """Under which name one way to measure one case is told."""
    return f"{n} {op} {size} {who}"


def wanted() -> Iterator[tuple[int, str, int, str]]:
    """Everything that is measured."""
    for n in RANKS:
        for op, size in CASES:
            for who in (*WAYS, "bare"):
                yield n, op, size, who


def measure(n: int, rounds: int) -> Told:
    """All cases on n ranks."""
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    told: Told = {}
    try:
        command = [sys.executable, PROGRAM, *map(str, (n, rounds, REPEAT)), json.dumps(CASES)]
        with Program(command, scratch, LIMIT) as program:
            for op, size in CASES:
                told |= {key(n, op, size, who): samples for who, samples in program.hear().items()}
                print(f"{n} ranks, {op} of {SIZES[size]}: done", file=sys.stderr, flush=True)
            program.rest()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return told


def rows(told: Told, failures: Sequence[str]) -> list[Row]:
    """One row a case and clock, each held to the bare loop that it took turns with."""
    return [
        Row(
            f"{what}: {op}, {SIZES[size]}, {n} ranks",
            "µs",
            told.get(key(n, op, size, who), ()),
            "a bare loop",
            told.get(key(n, op, size, "bare"), ()),
            within=within,
            failures=tuple(failures),
        )
        for n in RANKS
        for op, size in CASES
        for who, (what, within) in WAYS.items()
    ]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return options.parser(__doc__, 161, f"of one turn a way, {REPEAT} repetitions each").parse_args(argv)


def main() -> int:
    """Measure and print the table."""
    args = arguments()
    method = (
        f"{args.rounds} rounds of one turn a way, in random order; a turn: 3 warm-ups, then {REPEAT} times a barrier "
        "and as many calls as fill 12 ms, the slowest rank; min / median / max of all repetitions; a ratio is that of "
        "the medians; Gloo on loopback, 1 thread a rank"
    )
    return report(
        "clock",
        ["torch"],
        {"method": method},
        lambda: each(RANKS, lambda n: measure(n, args.rounds)),
        lambda facts, told, failures: table.render(TITLE, facts, rows(merged(told.values()), failures)),
        args.write,
    )


def merged(told: Iterable[Told]) -> Told:
    """What was measured on all numbers of ranks; each key has its own."""
    return {name: samples for part in told for name, samples in part.items()}


if __name__ == "__main__":
    sys.exit(main())
