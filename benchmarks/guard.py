"""What the guard costs: the same calls on the same ranks with and without it, turn by turn.

A turn is one cell with each, in alternating order, so that a slow second hits both. The rest of what the lab does
beside a call, its recorder above all, is on both sides. It takes about two minutes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from measure import options, table
from measure.processes import Program
from measure.report import each, report
from measure.table import Row

TITLE = "What the guard costs: `benchmarks/guard.py`"
PROGRAM = str(Path(__file__).resolve().parent / "programs" / "with_guard.py")
LIMIT = 900.0  # seconds on one number of ranks
RANKS = (2, 4)
NAMES = ("all_reduce of 4 B", "all_reduce of 4 MiB", "a training step of DDP")

Told = dict[int, Mapping[str, Mapping[str, list[list[float]]]]]  # ranks, what, "with" or "without": µs, a round each


def measure(n: int, rounds: int) -> Mapping[str, Mapping[str, list[list[float]]]]:
    """All cases on n ranks."""
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with Program([sys.executable, PROGRAM, str(n), str(rounds)], scratch, LIMIT) as program:
            told: Mapping[str, Mapping[str, list[list[float]]]] = program.hear()
            program.rest()
            return told
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def rows(told: Told, failures: Sequence[str] = ()) -> list[Row]:
    """One row a case."""
    return [
        Row(
            f"{name}, {n} ranks, with the guard",
            "µs",
            told.get(n, {}).get(name, {}).get("with", ()),
            "without",
            told.get(n, {}).get(name, {}).get("without", ()),
            failures=tuple(failures),
        )
        for n in RANKS
        for name in NAMES
    ]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return options.parser(__doc__, 21, "of a cell with and one without the guard").parse_args(argv)


def main() -> int:
    """Measure and print the table."""
    args = arguments()
    method = (
        f"{args.rounds} rounds of a cell with the guard and one without, in alternating order; the slowest rank; min / "
        "median / max over rounds; a ratio is the median of the rounds' ratios; Gloo on loopback, 1 thread a rank"
    )
    return report(
        "guard",
        ["torch"],
        {"method": method},
        lambda: each(RANKS, lambda n: measure(n, args.rounds)),
        lambda facts, told, failures: table.render(TITLE, facts, rows(told, failures)),
        args.write,
    )


if __name__ == "__main__":
    sys.exit(main())
