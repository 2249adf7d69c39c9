"""A race of all-reduces by size: Gloo, a ring in Python, the ranks' own shared memory, MPI; and what waiting costs.

`python benchmarks/race.py --write` takes two to four minutes. Every round starts the ranks anew, two of them and then
four; in each race all contestants take turns (`lab.race`), MPI with ranks of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from measure import options, races, table
from measure.races import GLOO, MIB, MINE, REPEAT, Told, boards, figures, key, said
from measure.report import report

MPI, COPY = "MPI", "one copy of S"
RING = "ring_all_reduce(x)"
WHOLE, HALL, BUSY = "sum_slots(x, hall)", "shared_all_reduce(x, hall)", "shared_all_reduce(x, busy)"
NAMES = {
    GLOO: "Gloo",
    RING: "a ring in Python",
    MINE: "shared memory",
    HALL: "the same, in one piece",
    WHOLE: "everyone reads every slot",
    BUSY: "the same, never yielding",
    MPI: "MPI",
    COPY: "one copy of S",
}
SIZES = {
    2: (4, 64, 2**10, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26),
    4: (4, 2**14, 2**20, 2**24),
}
CONTESTANTS = {2: (RING, MINE, HALL, WHOLE), 4: (RING, MINE, BUSY)}
BOARD = {2: (GLOO, RING, MINE, HALL, WHOLE, MPI, COPY), 4: (GLOO, RING, MINE, BUSY, MPI, COPY)}
FASTER, COPIES = 7.0, 2.5  # what shared memory has to reach, at 1 MiB and at 64 MiB


def rows(done: dict[int, list[Told]], failures: Sequence[str] = ()) -> list[table.Row]:
    """What was promised, and what waiting costs; times in µs."""

    def of(ranks: int, name: str) -> list[list[float] | None]:
        return [[1e6 * s for s in told[name]] if name in told else None for told in done[ranks]]

    def row(what: str, ranks: int, ours: str, other: str, theirs: str, **target: float) -> table.Row:
        failed = tuple(f for f in failures if f": {MPI}: " not in f) if target else ()
        return table.Row(
            f"{what}, {ranks} ranks", "µs", of(ranks, ours), other, of(ranks, theirs), **target, failures=failed
        )

    one, large, small = key(MINE, MIB), key(MINE, 64 * MIB), key(MINE, 4)
    return [
        row("shared memory: all_reduce, 1 MiB", 2, one, "Gloo", key(GLOO, MIB), ratio=round(1 / FASTER, 3)),
        row("shared memory: all_reduce, 64 MiB", 2, large, "one copy of S", key(COPY, 64 * MIB), ratio=COPIES),
        row("shared memory: all_reduce, 64 MiB", 2, large, "in one piece", key(HALL, 64 * MIB)),
        row("a meeting by flags", 2, "meeting", "`dist.barrier`", "barrier"),
        row("a core's work while another rank is 0.3 s late", 2, "mine", "Gloo", "gloos"),
        row("shared memory: all_reduce, 4 B", 4, small, "Gloo", key(GLOO, 4)),
        row("shared memory: all_reduce, 4 B, never yielding", 4, key(BUSY, 4), "yielding", small),
    ]


def board(ranks: int, done: Sequence[Told]) -> list[tuple[str, ...]]:
    """The scoreboard: a row a size, "min / median" of each, the fastest by its median in bold."""
    lines = [(f"S, {ranks} ranks", *(NAMES[name] for name in BOARD[ranks]))]
    for size in SIZES[ranks]:
        seconds = {name: [s for told in done for s in told.get(key(name, size), [])] for name in BOARD[ranks]}
        medians = {name: table.median(each) for name, each in seconds.items() if each and name != COPY}
        best = min(medians, key=lambda name: medians[name], default=None)
        cells = [("**{}**" if name == best else "{}").format(figures(each)) for name, each in seconds.items()]
        lines.append((said(size), *cells))
    return [lines[0], ("---",) * len(lines[0]), *lines[1:]]


def section(facts: dict[str, str], done: dict[int, list[Told]], failures: Sequence[str]) -> str:
    """What was promised, then a scoreboard for each number of ranks."""
    title = "A race of all-reduces: `benchmarks/race.py`"
    text = table.render(title, facts, rows(done, failures))
    told = [f for f in failures if f"- failed: {f}" not in text]
    text += "".join(f"\n- {f}\n" for f in dict.fromkeys(told))
    return text + boards(board, done)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return options.parser(__doc__, 3, "how often each race is run").parse_args(argv)


def main() -> int:
    """Measure and print the tables."""
    args = arguments()
    method = (
        f"rounds: {args.rounds}; in each a race of 2 ranks and one of 4, in fresh processes; {REPEAT} repetitions "
        "of 12 ms, or of one call that takes longer, in three passes over all sizes, all contestants of a size "
        "taking turns; the slowest rank; results checked outside the clock; min / median (/ max) a call; a ratio "
        "is the median of the rounds' ratios of medians; float32, 1 thread a rank; S is a rank's buffer; one copy "
        "of S: all ranks at once copy a buffer of S bytes in memory; shared memory: lesson 06b's "
        "`shared_all_reduce` in pieces of 2 MiB; MPI with ranks of its own, which sleep while others take theirs"
    )
    packages = ["torch", "mpi4py", "mpich"]
    return report(
        "race", packages, {"method": method}, lambda: races.run(args.rounds, SIZES, CONTESTANTS), section, args.write
    )


if __name__ == "__main__":
    sys.exit(main())
