"""What a learner's cells meet in labkit and in four other ways to run several ranks from a notebook.

`python benchmarks/beside.py --others=/path/to/python --write` runs every system in a real Jupyter kernel, in rotating
order: the time to the first all-reduce, memory, a rank that skips a call, a rank that is killed. The others' Python is
of an environment of their own: `pip install torch==2.13.0 nbdistributed==0.1.0 jupyter-distributed==0.1.1 accelerate`.
Needs root and `unshare`: a system gets process numbers and a network of its own, for one of them ends processes by
pattern and listens beyond loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import options, table
from measure.report import report

TITLE = "Labkit beside other notebooks: `benchmarks/beside.py`"
PROGRAM = Path(__file__).resolve().parent / "programs" / "in_kernel.py"
APART = (
    "unshare",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--net",
    "sh",
    "-c",
    'ip link set lo up; exec "$@"',
    "sh",
)
NAMES = {  # as the table calls them, and whether they are the others'
    "labkit": ("labkit", False),
    "ipyparallel": ("plain ipyparallel", False),
    "nbdistributed": ("nbdistributed", True),
    "jupyter-distributed": ("jupyter-distributed", True),
    "accelerate": ("accelerate's `debug_launcher`", True),
}
OTHERS = ("nbdistributed", "jupyter-distributed", "accelerate")
Told = dict[str, Any]


def measure(system: str, others: str, limit: float) -> Told:
    """Run one system once; what it did, or under "failure" why that is not known."""
    python = others if NAMES[system][1] else sys.executable
    env = {**os.environ, "PATH": f"{Path(python).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:  # who would clean up ends with the namespace
        command = [*APART, python, str(PROGRAM), system, str(limit)]
        done = subprocess.run(command, env={**env, "TMPDIR": folder}, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"failure": (done.stderr.strip().splitlines() or ["no answer"])[-1]}


def ended(told: Told, what: str, limit: float) -> str:
    """Tell how the cell ended in which a rank did not do what the others did."""
    found = [each[what] for each in told["rounds"] if what in each]
    if not found:
        return "–"
    if any(f["stopped"] is None for f in found):
        return f"not in {limit:g} s, and not by Stop"
    if any(f["stopped"] for f in found):
        return f"not in {limit:g} s; then by Stop"
    seconds = statistics.median(f["seconds"] for f in found)
    return f"by itself after {seconds:.1f} s" + (", names the rank" if all(f["names"] for f in found) else "")


def after(told: Told, what: str) -> str:
    """Tell whether the next cell was right, and on how many ranks a variable of before was still there."""
    found = [each[what] for each in told["rounds"] if what in each]
    if not found:
        return "–"
    right = "right" if all(f["right"] for f in found) else "wrong, or none"
    return f"{right}; {min(f['kept'] for f in found)} of 4"


def section(facts: dict[str, str], told: dict[str, Told], failures: Any) -> str:
    """The benchmark's part of RESULTS.md."""
    limit = float(facts.pop("limit"))
    head = [
        "", "first all-reduce", "memory, idle", "rank 2 skips the call: its cell ends", "the next cell; variables kept",
        "rank 2 is killed: its cell ends", "the next cell; variables kept",
    ]  # fmt: skip
    rows = []
    for system, (name, _) in NAMES.items():
        each = [r for r in told[system]["rounds"] if "first" in r]
        if each:
            first = [f"{f(r['first'] for r in each):.1f}" for f in (min, statistics.median, max)]
            held = statistics.median(r["memory"] for r in each)
            one = f"{' / '.join(first)} s" + (f", at try {each[0]['tries']}" if each[0]["tries"] > 1 else "")
            rows.append(
                [name, one, f"{held:.0f} MiB"]
                + [f(told[system], what, *a) for what in ("skip", "die") for f, a in ((ended, (limit,)), (after, ()))]
            )
    return table.markdown(TITLE, facts, head, rows, failures)


def main() -> int:
    """Measure and print; the exit code says whether anything failed."""
    parser = options.parser(__doc__, 3, "every system once")
    parser.add_argument("--others", default="", help="Python of an environment with the other systems")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a cell is given before Stop")
    given: argparse.Namespace = parser.parse_args()
    if not given.others or os.geteuid():
        print("Left out: it needs --others=/path/to/python and root (see --help).")
        return 0
    ask = f"from importlib.metadata import version\nprint(*[f'{{p}} {{version(p)}}' for p in {OTHERS}], sep=', ')"
    versions = subprocess.run(
        [given.others, "-c", ask],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip

    def all_rounds() -> tuple[dict[str, Told], list[str]]:
        told: dict[str, Told] = {system: {"rounds": []} for system in NAMES}
        names = list(NAMES)
        for i in range(given.rounds):
            for system in names[i % len(names) :] + names[: i % len(names)]:
                told[system]["rounds"].append(measure(system, given.others, given.limit))
        failed = [f"{s}: {r['failure']}" for s, t in told.items() for r in t["rounds"] if "failure" in r]
        return told, failed

    method = {
        "others": versions,
        "limit": str(given.limit),
        "method": f"{given.rounds} rounds; a Jupyter kernel each, 4 CPU ranks with Gloo, 1 thread a rank; from the "
        "kernel's start to the sum on all ranks, min / median / max; memory (PSS) of the kernel and what it started; "
        f"Stop is the kernel's interrupt, after {given.limit:g} s, given 20 s to work; accelerate's processes live for "
        "one cell",
    }  # fmt: skip
    return report("beside", ["torch", "ipyparallel", "ipykernel"], method, all_rounds, section, given.write)


if __name__ == "__main__":
    sys.exit(main())
