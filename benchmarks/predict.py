"""How long until labkit has said what 100,000 ranks would take, and how far off is it on tables that it has not seen?

`python benchmarks/predict.py --write` takes some minutes, for the estimate's constants are fitted again without each
publisher's tables. Nothing runs but formulas: no rank, no GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from measure import machine, options, table
from measure.learn import learn
from measure.table import Row

from workbook.tools import published
from workbook.tools.costs import H100, calibrate, choose, estimate
from workbook.tools.costs.estimate import FITTED, Constants
from workbook.tools.costs.machine import Cluster
from workbook.tools.published import Judgement, Table
from workbook.tools.published.judge import GIVEN, Error
from workbook.tools.whatif.face import WhatIf

RANKS = 100_000
LIMIT = 100.0  # ms, so that a slider feels live
CALLS = 20  # of a round
SIX = [(float(1 << k), 100 + (1 << k) / 1e5) for k in (3, 8, 14, 20, 26, 32)]
AIMS = {("all rows", 0): 0.07, ("from 64 MiB", 0): 0.03, ("all rows", 3): 0.05, ("all rows", 6): 0.03}
ENOUGH = 1e-3  # gain of a step, as a share, at which a fit may stop: with a thousandth of it no figure here changes
AIMS_90 = {("all rows", 0): 0.25}  # of the 90th percentile


def again(tables: Sequence[Table]) -> Constants:
    """The estimate's constants, fitted to these tables alone."""
    return learn(tables, FITTED, ENOUGH)


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

    def moved() -> bytes:
        widget.go(nbytes=2.0 ** (3 + next(sizes) % 30))
        return widget.svg

    return {
        "`choose`: NCCL's choice alone": (
            lambda: choose("all_reduce", 1e9, RANKS, H100),
            lambda: choose("all_reduce", 1e9, 8, H100),
        ),
        "`estimate`: what NCCL takes": (
            lambda: estimate("all_reduce", 1e9, RANKS, H100),
            lambda: estimate("all_reduce", 1e9, 8, H100),
        ),
        "`calibrate`: six rows of one's own": (
            lambda: calibrate("all_reduce", RANKS, H100, SIX),
            lambda: calibrate("all_reduce", 8, H100, SIX),
        ),
        "`WhatIf`: curves and map, as numbers": (lambda: widget.scene, None),
        "`WhatIf`: a move by `go`, and the static picture": (moved, None),
        f"`published.compare`: {len(published.compare().rows):,} rows": (published.compare, None),
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
            limit=LIMIT if what.split("`")[1] in ("choose", "estimate") else None,
        )
        for what in every
    ]


def aimed(aims: dict[tuple[str, int], float], name: str, given: int, off: float) -> str:
    """Beside a figure, what it should be; "" where nothing is aimed at."""
    aim = aims.get((name, given))
    return f" (aim {aim:.0%}: {'met' if off <= aim else '**not met**'})" if aim else ""


def others(tables: Sequence[Table] = published.TABLES) -> Judgement:
    """How far off other publishers' measurements are, taken as the estimate of a row: the median of theirs.

    They have the same operation, number of GPUs and described cluster at the row's size. A row that nobody else has is
    left out. What then remains, a data sheet does not tell.
    """
    measured: dict[tuple[str, int, Cluster | None, int], list[tuple[Table, float]]] = {}
    for known in (t for t in tables if t.claimed):
        for size, us in known.rows:
            measured.setdefault((known.op, known.n, known.cluster, size), []).append((known, us))
    errors = []
    for (*_, size), found in measured.items():
        for known, us in found:
            if theirs := [t for other, t in found if other.publisher != known.publisher]:
                errors.append(Error(known, size, 0, abs(float(np.median(theirs)) / us - 1)))
    return Judgement(tuple(errors))


def errors(judged: Judgement) -> str:
    """How far the estimate is off: a section of medians and 90th percentiles, and of every publisher left out."""
    groups = judged.groups
    for publisher in sorted({e.table.publisher for e in judged.errors}):
        groups[f"without {publisher}"] = lambda e, publisher=publisher: e.table.publisher == publisher
    lines = []
    for name, which in groups.items():
        cells = [name]
        for given in GIVEN:
            off, p90, count = judged.off(given, which)
            cells.append(f"{off:.1%}{aimed(AIMS, name, given, off)} / {p90:.0%}{aimed(AIMS_90, name, given, p90)}")
            cells[-1] = cells[-1].replace("%", " %") if count else "–"
        lines.append([*cells, f"{judged.off(0, which)[2]:,}"])
    known, own = [t for t in published.TABLES if t.claimed], published.compare()
    measured = others()
    both = {(e.table, e.nbytes) for e in measured.errors}
    theirs, ours = measured.off(0), judged.off(0, lambda e: (e.table, e.nbytes) in both)
    facts = {
        "method": "each publisher's tables are left out, all constants fitted again to the others', and the "
        "estimate is held against the tables left out: as it comes, with three of a table's rows given, with six; "
        "errors are of rows not given, medians / 90th percentiles; the formula's form was chosen with all tables at "
        "hand",
        "tables": f"{len(known)} of {len(published.TABLES)}, {sum(len(t.rows) for t in known):,} rows by "
        f"{len({t.publisher for t in known})} publishers; no claim for RCCL, Slingshot, TCPX and tables marked odd",
        "NCCL's own model, as it is": f"{median(abs(r.ratio - 1) for r in own.rows):.0%} off in the median",
        "others' tables of a machine described alike, as the estimate": f"{theirs[0]:.1%} / {theirs[1]:.0%} "
        f"on the {theirs[2]:,} rows that have such a one; the estimate there: {ours[0]:.1%} / {ours[1]:.0%}",
    }
    columns = ("rows", "as it comes", "three rows given", "six rows given", "how many")
    facts = {name: fact.replace("%", " %") for name, fact in facts.items()}
    return table.markdown("How far off the estimate is where it has not been fitted", facts, columns, lines, [])


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
    section += "\n" + errors(published.judge(again=again))
    print(section)
    if args.write:
        table.write("predict", section)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
