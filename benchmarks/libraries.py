"""Collectives of one host, library against library: Gloo, MPI through shared memory, a ring in Python, memory itself.

`python benchmarks/libraries.py --write` takes about a minute a round. In every round torchrun starts the ranks of one
program and mpiexec those of the other, one after the other and in alternating order, so that neither waits for its
share of the cores: an MPI rank that waits is busy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from measure import options, table
from measure.processes import Failed, Program
from measure.report import report
from programs.loop import REPEAT, SIZES

PROGRAMS = Path(__file__).resolve().parent / "programs"
OPS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
RING, COPY = "all_reduce, a ring in Python", "copy"
COLUMNS = ("what, S", "Gloo", "MPI", "one copy of S", "Gloo / MPI", "Gloo / copy")
LIMIT = 300.0  # seconds that a program may take
Seconds = dict[str, list[float]]  # "all_reduce, 4 MiB" → a figure a repetition


def commands(ranks: int) -> dict[str, list[str]]:
    """The programs, each with its own launcher."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    mpiexec = str(Path(sys.executable).with_name("mpiexec.gforker"))  # hydra's mpiexec listens on all addresses
    return {
        "Gloo": [*launcher, str(PROGRAMS / "with_gloo.py")],
        "MPI": [mpiexec, "-n", str(ranks), sys.executable, str(PROGRAMS / "with_mpi.py")],
    }


def measure(command: list[str]) -> tuple[Seconds, str]:
    """Run one program once: what it measured, or why it did not."""
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with Program(command, scratch, LIMIT) as program:
            told = program.hear()
            program.rest()  # until it has ended by itself: MPI takes its shared memory away then
            return told, ""
    except (Failed, OSError) as failure:  # OSError: there is no mpiexec
        return {}, str(failure)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run(rounds: int, ranks: int) -> tuple[list[dict[str, Seconds]], list[str]]:
    """All rounds, and what failed in them."""
    done, failures = [], []
    names = list(commands(ranks))
    for i in range(rounds):
        outcomes = {}
        for name in names[i % 2 :] + names[: i % 2]:
            outcomes[name], failure = measure(commands(ranks)[name])
            failures += [f"round {i + 1}, {name}: {failure}"] if failure else []
            print(f"round {i + 1} of {rounds}, {name}: {failure or 'done'}", file=sys.stderr, flush=True)
        done.append(outcomes)
    return done, failures


def rows(rounds: Sequence[dict[str, Seconds]]) -> list[tuple[str, ...]]:
    """One row per operation and size, then the ring by hand against Gloo's own all-reduce."""

    def of(library: str, what: str) -> list[list[float]]:
        return [r[library].get(what, []) for r in rounds]

    lines = []
    for op in OPS:
        for size in SIZES:
            gloo, mpi, copy = of("Gloo", f"{op}, {size}"), of("MPI", f"{op}, {size}"), of("Gloo", f"{COPY}, {size}")
            lines.append((f"{op}, {size}", *map(figures, (gloo, mpi, copy)), ratio(gloo, mpi), ratio(gloo, copy)))
    return lines


def ring(rounds: Sequence[dict[str, Seconds]]) -> list[tuple[str, ...]]:
    """The ring by hand against Gloo's own all-reduce."""
    lines = []
    for size in SIZES:
        ours = [r["Gloo"].get(f"{RING}, {size}", []) for r in rounds]
        gloo = [r["Gloo"].get(f"all_reduce, {size}", []) for r in rounds]
        lines.append((f"all_reduce, {size}", figures(ours), figures(gloo), ratio(ours, gloo)))
    return lines


def figures(rounds: Sequence[Sequence[float]]) -> str:
    """ "min / median µs" of all repetitions."""
    values = [v for samples in rounds for v in samples]
    if not values:
        return "failed"
    unit, factor = ("ms", 1e3) if median(values) >= 1e-3 else ("µs", 1e6)
    return f"{min(values) * factor:.3g} / {median(values) * factor:.3g} {unit}"


def ratio(ours: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> str:
    """The median over rounds of the ratio of medians."""
    pairs = [median(a) / median(b) for a, b in zip(ours, others, strict=True) if a and b]
    return f"{median(pairs):.2f}" if pairs else "–"


def section(facts: dict[str, str], rounds: Sequence[dict[str, Seconds]], failures: Sequence[str]) -> str:
    """Both tables."""
    title = "Collectives on one host, Gloo against MPI: `benchmarks/libraries.py`"
    columns = ("what, S", "a ring in Python", "Gloo's all_reduce", "ratio")
    second = "\n".join("| " + " | ".join(row) + " |" for row in [columns, ("---",) * 4, *ring(rounds)])
    return f"{table.markdown(title, facts, COLUMNS, rows(rounds), failures)}\n{second}\n"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = options.parser(__doc__, 3, "how often each program starts")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--ranks", type=int, default=max(2, min(4, cores)), help="default: a rank a core, 2 to 4")
    args = parser.parse_args(argv)
    if not 2 <= args.ranks <= 16:
        parser.error("--ranks wants 2 to 16")
    return args


def main() -> int:
    """Measure and print the tables."""
    args = arguments()
    method = (
        f"rounds: {args.rounds}; in each, {REPEAT} repetitions of 12 ms, or of one call that takes longer, all "
        "operations of one size taking turns, a barrier between repetitions, the slowest rank of each; min / "
        "median a call; a ratio is the median of the rounds' ratios of medians; float32, 1 thread a rank; S is the "
        "whole buffer; Gloo over TCP on loopback, MPI through shared memory; one copy of S: all ranks at once copy "
        "a buffer of S bytes in memory"
    )
    packages, how = ["torch", "mpi4py", "mpich"], {"ranks": f"{args.ranks} on one host", "method": method}
    return report("libraries", packages, how, lambda: run(args.rounds, args.ranks), section, args.write)


if __name__ == "__main__":
    sys.exit(main())
