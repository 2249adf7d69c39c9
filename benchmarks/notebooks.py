"""How long the whole workbook takes: every notebook run and compared with its committed outputs, as its tests do.

`python benchmarks/notebooks.py --write` takes as long as three runs of `make test-notebooks`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

from measure import options, table
from measure.processes import Failed, Program
from measure.report import report

ROOT = Path(__file__).resolve().parents[1]
NBVAL = ("--nbval", "--nbval-current-env", "--nbval-cell-timeout=120")  # as the Makefile's test-notebooks has it
SANITIZE = f"--nbval-sanitize-with={ROOT / '.ci/nbval-sanitize.cfg'}"
COLUMNS = ("notebook", "cells", "cells' time", "slowest cell")
LIMIT = 1800.0  # seconds


@dataclass(frozen=True)
class Run:
    """One run of all notebooks: its seconds, those of each cell by notebook, and what failed."""

    seconds: float
    cells: dict[str, list[float]] = field(default_factory=dict)
    failure: str = ""


def measure(notebooks: Sequence[str]) -> Run:
    """Run the notebooks once, in fresh processes."""
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    report = scratch / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", *NBVAL, SANITIZE, f"--junitxml={report}", *notebooks]
    try:
        with Program(command, scratch, LIMIT) as program:
            said = program.rest()
            seconds = time.monotonic() - program.began
            if program.popen.wait() not in (0, 1) or not report.is_file():
                raise Failed(said.strip().rpartition("\n")[2] or "pytest said nothing")
            return read(report.read_text(), seconds)
    except Failed as failure:
        return Run(0.0, failure=str(failure))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read(report: str, seconds: float) -> Run:
    """pytest's own report of the run."""
    cells: dict[str, list[float]] = {}
    failed: dict[str, list[str]] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        notebook = case.get("classname", "").removesuffix(".ipynb").rpartition(".")[2]
        cells.setdefault(notebook, []).append(float(case.get("time", 0)))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.setdefault(notebook, []).append(str(case.get("name")))
    told = "; ".join(f"{len(which)} of {notebook}, first {which[0]}" for notebook, which in failed.items())
    return Run(seconds, cells, f"cells that fail: {told}" if failed else "")


def section(facts: dict[str, str], runs: Sequence[Run]) -> str:
    """A row a notebook, and one for the whole."""
    done = [r for r in runs if r.cells]

    def row(name: str, mine: Sequence[Sequence[float]], wall: Sequence[float]) -> tuple[str, ...]:
        if not mine:
            return name, "–", "failed", "–"
        slowest = median(max(times) for times in mine)
        return name, str(len(mine[0])), table.summary([list(wall)], "s"), f"{slowest:.1f} s"

    names = sorted({name for run in done for name in run.cells})
    rows = [
        row(name, mine := [r.cells[name] for r in done if name in r.cells], [sum(times) for times in mine])
        for name in names
    ]
    together = [[t for times in r.cells.values() for t in times] for r in done]
    rows.append(row("**the whole suite, from pytest's start to its end**", together, [r.seconds for r in done]))
    failures = [f"run {i}: {run.failure}" for i, run in enumerate(runs, 1) if run.failure]
    return table.markdown("The whole notebook suite: `benchmarks/notebooks.py`", facts, COLUMNS, rows, failures)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = options.parser(__doc__, 3, "how often the suite runs")
    parser.add_argument("notebooks", nargs="*", default=[str(ROOT / "notebooks")], help="default: all of them")
    return parser.parse_args(argv)


def run(rounds: int, notebooks: Sequence[str]) -> tuple[list[Run], list[str]]:
    """All rounds, and what failed in them: an output that differed, or nothing that ran."""
    runs = []
    for i in range(rounds):
        runs.append(measure(notebooks))
        said = runs[-1].failure or f"{runs[-1].seconds:.0f} s"
        print(f"round {i + 1} of {rounds}: {said}", file=sys.stderr, flush=True)
    return runs, [f"run {i}: {run.failure}" for i, run in enumerate(runs, 1) if run.failure]


def main() -> int:
    """Measure and print the table."""
    args = arguments()
    method = (
        f"runs of pytest with nbval, strict: {args.rounds}; four ranks start once for all notebooks, each notebook "
        "has a kernel of its own; min / median / max"
    )
    packages = ["torch", "ipyparallel", "ipykernel", "nbval"]
    return report(
        "notebooks",
        packages,
        {"method": method},
        lambda: run(args.rounds, args.notebooks),
        lambda facts, runs, _: section(facts, runs),
        args.write,
    )


if __name__ == "__main__":
    sys.exit(main())
