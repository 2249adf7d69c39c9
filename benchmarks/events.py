"""How long does a step on 100,000 ranks take to simulate, message by message, on a described fabric?

`python benchmarks/events.py --write` takes a minute or two. Nothing runs but the simulation: no rank, no GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

from measure import machine, options, table
from measure.table import Row

from workbook.tools import events
from workbook.tools.events.failures import YEAR

RANKS = 100_000
LIMIT = 2.0  # s
SIZE = 14e9
BETWEEN = ("ring", "double tree", "halving-doubling", "Bruck", "PAT")


def cases() -> dict[str, Callable[[], object]]:
    """What is measured."""
    ready = events.drawn(RANKS, 2.0, 0.04)
    crowded = events.H100S.but(over=4)

    def step(way: str, fabric: events.Fabric, late: bool) -> Callable[[], object]:
        return lambda: events.all_reduce(way, fabric, RANKS, SIZE, ready if late else None)

    found = {"flat ring, stragglers": step("ring", events.H100S, True)}
    for name in BETWEEN:
        way = f"hierarchical, {name}"
        found[f"{way}"] = step(way, events.H100S, False)
        found[f"{way}, stragglers"] = step(way, events.H100S, True)
        found[f"{way}, stragglers, 4:1"] = step(way, crowded, True)
    one = events.all_reduce("hierarchical, ring", events.H100S, RANKS, SIZE, ready)
    found["a run of ten days' work with its failures"] = lambda: events.train(one, 5 * YEAR)
    return found


def rows(rounds: int) -> list[Row]:
    """All rounds, case by case in turn."""
    every = cases()
    found: dict[str, list[list[float]]] = {what: [] for what in every}
    for _ in range(rounds):
        for what, call in every.items():
            begin = time.perf_counter()
            call()
            found[what].append([time.perf_counter() - begin])
    return [Row(what, "s", measured, limit=LIMIT) for what, measured in found.items()]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return options.parser(__doc__, 3, "of one call each").parse_args(argv)


def main() -> int:
    """Measure and print the table."""
    args = arguments()
    facts = machine.describe(["numpy"]) | {"load before": machine.load()}
    measured = rows(args.rounds)
    facts["load after"] = machine.load()
    facts["method"] = f"{args.rounds} rounds of one call each; min / median / max"
    section = table.render(f"A step on {RANKS:,} ranks, simulated: `benchmarks/events.py`", facts, measured)
    print(section)
    if args.write:
        table.write("events", section)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
