"""What a check costs: the workbook's solution of an exercise, and the same with every result one too large.

All exercises of the list in turn, on the same four ranks; it takes about a minute a round.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from measure import options, table
from measure.processes import Failed, Program, cpu_seconds
from measure.report import report
from measure.table import Row

TITLE = "What a check costs: `benchmarks/check.py`"
PROGRAM = [sys.executable, str(Path(__file__).resolve().parent / "programs" / "with_check.py")]
LIMIT = 900.0  # seconds for all rounds
EXERCISES = [  # of most lessons
    "hello_sum", "two_sums", "grid_sums", "ring_shift", "halo", "read_whole", "accuracy", "deal", "repair_mean",
    "centred", "bench_by_hand", "ring_all_reduce", "tree_all_reduce", "ring_time", "distributed_mean",
    "sync_batch_norm", "contrast", "local_sgd", "my_shard", "clip_shards", "cut_linear", "rows_to_columns",
    "cut_layers", "later_linear", "exchange_tokens", "merge_pieces", "part_of", "restack", "mean_loss",
    "count_hits", "exam_edges", "rails_all_reduce", "my_place", "served", "mesh_norm",
]  # fmt: skip
# ms of CPU that the median exercise may take. What is right is called 48 times on each rank, so that a mistake in one
# call of twenty shows nine times in ten; of what is wrong the first call or two tell.
TARGETS = {"right": 1100.0, "wrong": 150.0}
SAID = {"right": "a right solution", "wrong": "a wrong result"}

Told = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]  # how, "cpu" or "seconds": ms of each exercise, by rounds


def measure(rounds: int) -> tuple[Told, list[str]]:
    """Check all exercises so many times, after one to warm up; what failed."""
    told: dict[str, dict[str, list[list[float]]]] = {how: {"cpu": [], "seconds": []} for how in TARGETS}
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    failures = []
    try:
        with Program(PROGRAM, scratch, LIMIT) as program:
            program.hear()
            for k in range(rounds + 1):
                for how in TARGETS:
                    cpu, seconds = zip(*(_checked(program, how, name) for name in EXERCISES), strict=True)
                    if k:
                        told[how]["cpu"].append(list(cpu))
                        told[how]["seconds"].append(list(seconds))
            program.tell("stop")
            program.rest()
    except Failed as failure:
        failures.append(str(failure))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return told, failures


def _checked(program: Program, how: str, name: str) -> tuple[float, float]:
    """What one check took of the CPU, in all processes, and of the time, in ms."""
    program.tell(f"{how} {name}")
    program.hear()
    pids = [program.popen.pid, *program.started()]
    before = sum(map(cpu_seconds, pids))
    program.tell("go")
    told = program.hear()
    after = sum(map(cpu_seconds, pids))
    if told["state"] != how:
        raise Failed(f"{name}, {how}: the verdict was {told['state']}")
    return 1e3 * (after - before), 1e3 * told["seconds"]


def rows(told: Told, failures: Sequence[str] = ()) -> list[Row]:
    """One row for the CPU and one for the time; of each round the exercise in the middle."""

    def middle(how: str, what: str) -> list[list[float]]:
        return [[median(values)] for values in told.get(how, {}).get(what, ())]

    return [
        Row(
            f"{said}, {what}",
            "ms",
            middle(how, key),
            limit=TARGETS[how] if key == "cpu" else None,
            failures=tuple(failures),
        )
        for how, said in SAID.items()
        for key, what in (("cpu", "CPU of all processes"), ("seconds", "time"))
    ]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return options.parser(__doc__, 5, "of all exercises").parse_args(argv)


def main() -> int:
    """Measure and print the table."""
    args = arguments()
    method = (
        f"{args.rounds} rounds of {len(EXERCISES)} exercises, from {EXERCISES[0]} to {EXERCISES[-1]}, after one to "
        "warm up; the median exercise of each round; min / median / max over rounds; CPU of the notebook's process, "
        "four ranks, controller and all else that the lab has started; Gloo on loopback, 1 thread a rank"
    )
    return report(
        "check",
        ["torch", "ipyparallel", "ipykernel"],
        {"method": method},
        lambda: measure(args.rounds),
        lambda facts, told, failures: table.render(
            TITLE,
            facts,
            rows(told, failures),
        ),
        args.write,
    )


if __name__ == "__main__":
    sys.exit(main())
