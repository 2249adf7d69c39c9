"""Lesson 06c's all-reduces as Triton interprets them on CPU ranks, beside Gloo and lesson 06b's shared memory.

None of it says what a kernel takes: an interpreter runs its lines one after another in Python and numpy, and the lab
watches each. It says what a learner waits for. `python benchmarks/kernels.py --write` takes about two minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from measure import options, races, table
from measure.races import GLOO, KIB, MINE, REPEAT, Told, boards, figures, key, said
from measure.report import report

TITLE = "All-reduces in Triton's interpreter: `benchmarks/kernels.py`"
ONE, TWO = "by_kernel(one_shot, x)", "by_kernel(two_shot, x, world_size)"
NAMES = {GLOO: "Gloo", MINE: "shared memory", ONE: "one-shot, interpreted", TWO: "two-shot, interpreted"}
SIZES = (4, KIB, 16 * KIB, 128 * KIB)
RANKS = (2, 4)


def rows(done: dict[int, list[Told]], failures: Sequence[str] = ()) -> list[table.Row]:
    """Each kernel against Gloo and against shared memory; times in µs, and no target."""

    def of(ranks: int, name: str, size: int) -> list[list[float] | None]:
        return [[1e6 * s for s in told[key(name, size)]] if key(name, size) in told else None for told in done[ranks]]

    return [
        table.Row(
            f"{NAMES[ours]}: all_reduce, {said(size)}, {ranks} ranks",
            "µs",
            of(ranks, ours, size),
            NAMES[other],
            of(ranks, other, size),
        )
        for ranks in RANKS
        for size in (SIZES[0], SIZES[-1])
        for ours in (ONE, TWO)
        for other in (GLOO, MINE)
    ]


def board(ranks: int, done: Sequence[Told]) -> list[tuple[str, ...]]:
    """A row a size, "min / median" of each."""
    lines = [(f"S, {ranks} ranks", *NAMES.values()), ("---",) * (1 + len(NAMES))]
    for size in SIZES:
        seconds = [[s for told in done for s in told.get(key(name, size), [])] for name in NAMES]
        lines.append((said(size), *map(figures, seconds)))
    return lines


def section(facts: dict[str, str], done: dict[int, list[Told]], failures: Sequence[str]) -> str:
    """The ratios, then a table for each number of ranks."""
    text = table.render(TITLE, facts, rows(done))
    text += "".join(f"\n- {failure}\n" for failure in dict.fromkeys(failures))
    return text + boards(board, done)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return options.parser(__doc__, 3, "how often each race is run").parse_args(argv)


def main() -> int:
    """Measure and print the tables."""
    args = arguments()
    method = (
        "**an interpreter's time is no kernel's time**: Triton's interpreter runs the programs of a kernel one after "
        "another, line by line in numpy, and the lab notes every load, store and flag; on a GPU the same lines take "
        f"microseconds. Rounds: {args.rounds}; in each a race of 2 ranks and one of 4, in fresh processes; {REPEAT} "
        "repetitions in three passes, all taking turns; the slowest rank; results checked outside the clock; min / "
        "median (/ max) a call; a ratio is the median of the rounds' ratios of medians; float32, 1 thread a rank; S is "
        "a rank's buffer; shared memory: lesson 06b's `shared_all_reduce`; one-shot and two-shot: lesson 06c's "
        "`one_shot` and `two_shot`, 4,096 numbers a program"
    )
    sizes, contestants = (dict.fromkeys(RANKS, each) for each in (SIZES, (MINE, ONE, TWO)))
    measured = partial(races.run, args.rounds, sizes, contestants)
    return report("kernels", ["torch", "triton"], {"method": method}, measured, section, args.write)


if __name__ == "__main__":
    sys.exit(main())
