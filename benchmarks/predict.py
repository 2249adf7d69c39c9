"""How long until labkit has said what 100,000 ranks would take? Formulas, NCCL's model, a slider's whole picture.

`python benchmarks/predict.py --write` takes a few seconds. Nothing runs but formulas: no rank, no GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

from measure import machine, options, table
from measure.table import Row

from labkit.theory import published
from labkit.theory.costs import H100, choose, predict
from labkit.whatif import WhatIf

RANKS = 100_000
LIMIT = 100.0  # ms, so that a slider feels live
CALLS = 20  # of a round


def samples(call: Callable[[], object]) -> list[float]:
    """Milliseconds of each of CALLS calls, after one that warms up."""
    call()
    found = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        call()
        found.append((time.perf_counter() - begin) * 1e3)
    return found


def cases(widget: WhatIf) -> dict[str, tuple[Callable[[], object], Callable[[], object] | None]]:
    """What is measured, and beside it the same for 8 ranks where that makes sense."""
    sizes = iter(range(10**9))

    def moved() -> None:
        widget.go(nbytes=2.0 ** (3 + next(sizes) % 30))

    return {
        "`predict`: all algorithms and NCCL's choice": (
            lambda: predict("all_reduce", 1e9, RANKS, H100),
            lambda: predict("all_reduce", 1e9, 8, H100),
        ),
        "`choose`: NCCL's choice alone": (
            lambda: choose("all_reduce", 1e9, RANKS, H100),
            lambda: choose("all_reduce", 1e9, 8, H100),
        ),
        "`WhatIf`: curves and map, as numbers": (lambda: widget.scene, None),
        "`WhatIf`: a slider moves, the picture is there": (moved, None),
        "`published.compare`: 118 rows": (published.compare, None),
    }


def rows(rounds: int) -> list[Row]:
    """All rounds, case by case in turn."""
    widget = WhatIf("all_reduce", n=RANKS, nbytes=2**20, cluster="H100")
    every = cases(widget)
    ours: dict[str, list[list[float]]] = {what: [] for what in every}
    others: dict[str, list[list[float]]] = {what: [] for what in every}
    for _ in range(rounds):
        for what, (call, few) in every.items():
            ours[what].append(samples(call))
            if few is not None:
                others[what].append(samples(few))
    return [
        Row(
            what,
            "ms",
            ours[what],
            "for 8 ranks" if others[what] else "",
            others[what],
            limit=LIMIT if "predict" in what or "choose" in what else None,
        )
        for what in every
    ]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return options.parser(__doc__, 3, f"of {CALLS} calls each").parse_args(argv)


def main() -> int:
    """Measure and print the table."""
    args = arguments()
    facts = machine.describe(["numpy", "matplotlib"]) | {"load before": machine.load()}
    measured = rows(args.rounds)
    facts["load after"] = machine.load()
    facts["method"] = f"{args.rounds} rounds of {CALLS} calls, after one to warm up; min / median / max of all calls"
    section = table.render(f"What {RANKS:,} ranks would take: `benchmarks/predict.py`", facts, measured)
    print(section)
    if args.write:
        table.write("predict", section)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
