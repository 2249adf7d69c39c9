"""Races of all-reduces on a lab's ranks, in fresh processes round after round, and how their times are said."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from measure import table
from measure.processes import Failed, Program

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "with_race.py"
LIMIT = 240.0  # seconds that one race may take
REPEAT = 9
GLOO, MINE = "dist.all_reduce(x)", "shared_all_reduce(x, room)"
KIB, MIB = 2**10, 2**20
Told = dict[str, list[float]]  # "MPI, 4" → seconds, a repetition each


def key(name: str, size: int) -> str:
    """Under which name a program tells a contestant's times."""
    return f"{name}, {size}"


def measure(ranks: int, sizes: Sequence[int], contestants: Sequence[str]) -> tuple[Told, str]:
    """One race in fresh processes: its times, or why there are none."""
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    arguments = [str(ranks), str(REPEAT), json.dumps(sizes), json.dumps(contestants)]
    try:
        with Program([sys.executable, str(PROGRAM), *arguments], scratch, LIMIT) as program:
            told: dict[str, Any] = program.hear()
            program.rest()
            return told["samples"], "; ".join(f"{name}: {why}" for name, why in told["out"].items())
    except (Failed, OSError) as failure:
        return {}, str(failure)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run(
    rounds: int,
    sizes: Mapping[int, Sequence[int]],
    contestants: Mapping[int, Sequence[str]],
) -> tuple[dict[int, list[Told]], list[str]]:
    """All rounds, and what failed in them; sizes and contestants are those of each number of ranks."""
    done: dict[int, list[Told]] = {ranks: [] for ranks in contestants}
    failures = []
    for i in range(rounds):
        for ranks in contestants:
            told, failure = measure(ranks, sizes[ranks], contestants[ranks])
            done[ranks].append(told)
            failures += [f"round {i + 1}, {ranks} ranks: {failure}"] if failure else []
            print(f"round {i + 1} of {rounds}, {ranks} ranks: {failure or 'done'}", file=sys.stderr, flush=True)
    return done, failures


def boards(board: Callable[[int, list[Told]], list[tuple[str, ...]]], done: Mapping[int, list[Told]]) -> str:
    """The table that `board` makes of each number of ranks, in Markdown."""
    tables = ([f"| {' | '.join(line)} |" for line in board(ranks, each)] for ranks, each in done.items())
    return "".join("\n" + "\n".join(lines) + "\n" for lines in tables)


def figures(seconds: Sequence[float]) -> str:
    """ "min / median µs" of all repetitions."""
    if not seconds:
        return "–"
    unit, factor = ("ms", 1e3) if table.median(seconds) >= 1e-3 else ("µs", 1e6)
    return f"{min(seconds) * factor:.3g} / {table.median(seconds) * factor:.3g} {unit}"


def said(size: int) -> str:
    """Bytes as they are said."""
    for unit, many in (("MiB", MIB), ("KiB", KIB)):
        if size >= many:
            return f"{size // many} {unit}"
    return f"{size} B"
