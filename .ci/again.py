"""Run the live tests again and again, every second time with every core kept busy: does each get the same verdict?

python .ci/again.py --runs=20                          # the live tests, one after another; `make again` runs them
python .ci/again.py --runs=4 tests/live/test_px.py     # side by side, as `make test` does. Or whatever pytest takes
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

LIVE = ["tests/live"]
BUSY = "while True: pass"


@contextmanager
def busy_cores(wanted: bool) -> Iterator[None]:
    """Keep each core busy with a process of its own, which ends with the `with` block."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1 if wanted else 0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def run(arguments: list[str]) -> dict[str, str]:
    """One run of pytest: what became of each test. Stop (Ctrl-C) reaches pytest too, which then clears up."""
    with tempfile.TemporaryDirectory(prefix="again-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *arguments]
        process = subprocess.Popen(command)
        try:
            process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    return {f"{case.get('classname')}::{case.get('name')}": verdict(case) for case in cases}


def verdict(case: ElementTree.Element) -> str:
    """What became of a test: "passed", or what pytest calls it."""
    bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
    return " and ".join(bad) or "passed"


def main() -> int:
    """Run, compare, and return 0 where every test passed every time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    options, arguments = parser.parse_known_args()
    seen: dict[str, list[str]] = defaultdict(list)
    for number in range(1, options.runs + 1):
        with busy_cores(number % 2 == 0):
            verdicts = run(arguments or LIVE)
        for test, became in verdicts.items():
            seen[test].append(became)
        counts = ", ".join(f"{n} {became}" for became, n in Counter(verdicts.values()).most_common())
        print(f"run {number} of {options.runs}: {counts or 'no test ran'}", flush=True)
    shaky = {test: became for test, became in seen.items() if became != ["passed"] * options.runs}
    for test, became in sorted(shaky.items()):
        missing = options.runs - len(became)
        print(f"{test}: {', '.join(became)}{f', and not run {missing} times' if missing else ''}")
    print(f"{len(seen) - len(shaky)} tests passed in each of {options.runs} runs, {len(shaky)} did not.")
    return 1 if shaky or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
