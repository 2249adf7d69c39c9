"""Labs of a workshop on one machine: ten that start at the same moment, and what they cost while nobody does anything.

`python benchmarks/together.py --write` takes about a minute a round. In every round ten labs start in fresh processes,
taking turns, and ten others all at once.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from measure import options, table
from measure.processes import Failed, Program, cpu_seconds
from measure.report import report
from measure.table import Row

TITLE = "Labs on one machine: `benchmarks/together.py`"
PROGRAM = [sys.executable, str(Path(__file__).resolve().parent / "programs" / "with_others.py")]
WAYS = {"in turn": PROGRAM, "at once": [*PROGRAM, "all"]}
LABS = 10
WORKSHOP = 40  # labs that are open and idle
LIMIT = 300.0  # seconds
UP = 15.0  # seconds after which the last lab should be up
CORE = 100.0  # per cent of a core that all labs of a workshop may take while they are idle

Samples = dict[str, list[float]]


def measure(way: str, labs: int, idle: float) -> tuple[Samples, str]:
    """Start so many labs at the same moment; samples by metric, and what failed."""
    samples: Samples = {}
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with contextlib.ExitStack() as stack:
            programs = []
            for k in range(labs):
                (scratch / str(k)).mkdir()
                programs.append(stack.enter_context(Program(WAYS[way], scratch / str(k), LIMIT)))
            began = programs[0].began
            up = sorted(program.hear()["first"] - began for program in programs)
            samples |= {"last": [up[-1]], "middle": [up[labs // 2]], "cpu": [_cpu(programs) / labs]}
            if idle:
                time.sleep(1)  # what start-up still had to do is done
                before, since = _cpu(programs), time.monotonic()
                time.sleep(idle)
                samples["idle"] = [WORKSHOP * 100 * (_cpu(programs) - before) / labs / (time.monotonic() - since)]
            for program in programs:
                program.tell("stop")
            for program in programs:
                program.popen.wait(LIMIT)
    except Failed as failure:
        return samples, str(failure)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return samples, ""


def _cpu(programs: Sequence[Program]) -> float:
    """CPU seconds of the programs and of all that they started."""
    return sum(program.cpu() + cpu_seconds(program.popen.pid) for program in programs)


def run(rounds: int, labs: int, idle: float) -> tuple[list[dict[str, Samples]], list[str]]:
    """All rounds, and what failed; the two ways take turns in being the first."""
    done, failures = [], []
    for i in range(rounds):
        told = {}
        for way in list(WAYS)[:: 1 if i % 2 else -1]:
            told[way], failure = measure(way, labs, idle)
            failures += [f"round {i + 1}, {way}: {failure}"] if failure else []
        done.append(told)
    return done, failures


def rows(rounds: Sequence[dict[str, Samples]], labs: int, failures: Sequence[str] = ()) -> list[Row]:
    """The table's rows."""

    def row(what: str, metric: str, unit: str, limit: float | None = None) -> Row:
        ours, others = ([r[way].get(metric, []) for r in rounds] for way in WAYS)
        return Row(what, unit, ours, "all at once", others, limit=limit, failures=tuple(failures))

    return [
        row(f"{labs} labs start together, 4 ranks each: the last one is up", "last", "s", UP),
        row(f"{labs} labs start together: half of them are up", "middle", "s"),
        row("CPU seconds that a start costs, with the notebook's side", "cpu", "s"),
        row(f"CPU that {WORKSHOP} idle labs use, of one core", "idle", "%", CORE),
    ]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = options.parser(__doc__, 3, "how often all labs start")
    parser.add_argument("--labs", type=options.count, default=LABS, help=f"labs that start together (default {LABS})")
    options.idle(parser, 20, "each round")
    return parser.parse_args(argv)


def main() -> int:
    """Measure and print the table."""
    args = arguments()
    method = (
        f"{args.rounds} rounds, {args.labs} labs in each, once taking turns and once all at once; min / median / max; "
        f"a ratio is the median of the rounds' ratios; idle: {args.idle:g} s of {args.labs} labs, for {WORKSHOP}, with "
        "the notebook's side"
    )
    return report(
        "together",
        ["torch", "ipyparallel", "ipykernel"],
        {"method": method},
        lambda: run(args.rounds, args.labs, args.idle),
        lambda facts, rounds, failures: table.render(TITLE, facts, rows(rounds, args.labs, failures)),
        args.write,
    )


if __name__ == "__main__":
    sys.exit(main())
