"""How long until a learner has ranks, what they weigh, and what a cell costs: labkit, torchrun, plain ipyparallel.

`python benchmarks/start.py --write` takes about half a minute a round. In every round each program starts in fresh
processes, and the order of the programs rotates; torch is in the page cache from the second round on.
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

from measure import options, table
from measure.processes import Failed, Program
from measure.report import report
from measure.table import Row

PROGRAMS = Path(__file__).resolve().parent / "programs"
COMMANDS = {
    "labkit": [sys.executable, str(PROGRAMS / "with_labkit.py")],
    "torchrun": [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"),
        str(PROGRAMS / "with_torchrun.py"),
    ],
    "ipyparallel": [sys.executable, str(PROGRAMS / "with_ipyparallel.py")],
}
LIMIT = 120.0  # seconds that a program may take for all it is asked
LEAVING = 5.0  # seconds in which what a program started must be gone


@dataclass
class Outcome:
    """What one program did in one round: samples by metric, and why it did no more if it failed."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    failure: str = ""

    def of(self, metric: str) -> list[float] | None:
        """The samples of a metric: empty where it was not asked for, None where the program failed before it."""
        return self.samples.get(metric, None if self.failure else [])


def measure(name: str, cells: int, idle: float) -> Outcome:
    """Run one program once."""
    outcome = Outcome()
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with Program(COMMANDS[name], scratch, LIMIT + idle) as program:
            if name == "torchrun":
                outcome.samples["first"] = [max(program.hear()["first"] for _ in range(4)) - program.began]
            else:
                _measure_cluster(program, outcome.samples, cells, idle)
            program.popen.wait(LEAVING)
            if name == "labkit" and (left := program.started()):
                outcome.failure = f"{len(left)} processes outlived stop()"
    except Failed as failure:
        outcome.failure = str(failure)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return outcome


def _measure_cluster(program: Program, samples: dict[str, list[float]], cells: int, idle: float) -> None:
    samples["first"] = [program.hear()["first"] - program.began]
    time.sleep(1)  # what start-up still had to do is done
    samples["memory"] = [program.memory()]
    if idle:
        before, began = program.cpu(), time.monotonic()
        time.sleep(idle)
        samples["idle"] = [100 * (program.cpu() - before) / (time.monotonic() - began)]
    program.tell(f"cells {cells}")
    samples.update(program.hear())
    program.tell("stop")
    samples["stop"] = [program.hear()["stop"]]


def rows(rounds: Sequence[dict[str, Outcome]]) -> list[Row]:
    """The table's rows, each with the targets that the workbook promises."""

    def row(what: str, metric: str, unit: str, other: str, shown_as: str, its: str = "", **target: float) -> Row:
        names = ("labkit", other)
        return Row(
            what,
            unit,
            [r["labkit"].of(metric) for r in rounds],
            shown_as,
            [r[other].of(its or metric) for r in rounds],
            failures=tuple(
                f"round {i}, {name}: {r[name].failure}"
                for i, r in enumerate(rounds, 1)
                for name in names
                if r[name].failure
            ),
            **target,
        )

    first, cell = "Python's start to the first finished all-reduce, 4 ranks", "trivial `%%px` on 4 ranks, round trip"
    plain = "plain ipyparallel"
    return [
        row(first, "first", "s", "torchrun", "torchrun", ratio=0.6),
        row(first, "first", "s", "ipyparallel", f"{plain}, torch, a group", ratio=0.35),
        row("memory (PSS) of all that 4 idle ranks need", "memory", "MiB", "ipyparallel", plain, limit=600),
        row(cell, "%%px", "ms", "ipyparallel", f"{plain}, `%%px`", ratio=1.2),
        row(cell, "%%px", "ms", "ipyparallel", f"{plain}, `%%px --no-stream`", "%%px --no-stream", ratio=1.2),
        row("`lab.stop()`", "stop", "s", "ipyparallel", f"{plain}, `stop_cluster`", limit=1),
        row("CPU that 4 idle ranks use, of one core", "idle", "%", "ipyparallel", plain),
    ]


def run(rounds: int, cells: int, idle: float) -> list[dict[str, Outcome]]:
    """All rounds; the programs' order rotates, so that none always follows the same one."""
    done: list[dict[str, Outcome]] = []
    names = list(COMMANDS)
    for i in range(rounds):
        outcomes = {}
        for name in names[i % len(names) :] + names[: i % len(names)]:
            outcomes[name] = outcome = measure(name, cells, idle if i == rounds - 1 else 0.0)
            first = outcome.samples.get("first")
            told = [f"{first[0]:.2f} s" if first else "", f"FAILED: {outcome.failure}" if outcome.failure else ""]
            print(f"round {i + 1} of {rounds}, {name}:", *filter(None, told), file=sys.stderr, flush=True)
        done.append(outcomes)
    return done


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = options.parser(__doc__, 5, "how often each program starts")
    parser.add_argument("--cells", type=options.count, default=20, help="trivial cells a round and magic (default 20)")
    options.idle(parser, 10, "the last round")
    return parser.parse_args(argv)


def main() -> int:
    """Measure and print the table."""
    args = arguments()
    method = (
        f"{args.rounds} rounds, {args.cells} cells in each; min / median / max of all samples; a ratio is the median "
        "of the rounds' ratios; 1 thread a rank, Gloo on loopback; memory and CPU leave the notebook's own process out"
    )

    def measured() -> tuple[list[dict[str, Outcome]], list[str]]:
        rounds = run(args.rounds, args.cells, args.idle)
        return rounds, [o.failure for r in rounds for o in r.values() if o.failure]

    return report(
        "start",
        ["torch", "ipyparallel", "ipykernel"],
        {"method": method},
        measured,
        lambda facts, rounds, _: table.render("Starting, idling, stopping: `benchmarks/start.py`", facts, rows(rounds)),
        args.write,
    )


if __name__ == "__main__":
    sys.exit(main())
