"""Keep what the programs ten_lines_*.py print: `python -m tests.ten_lines tensorflow deepspeed` writes the records."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys

from workbook.tools.elsewhere import programs as elsewhere
from workbook.tools.elsewhere import ten_lines
from workbook.tools.elsewhere.ten_lines import RECORDED, System

VERSIONS = """
import importlib.metadata as m, sys, platform
print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}:", ", ".join(
    f"{d} {m.version(d)}" for d in sys.argv[1:]))
"""
PACKAGES = {
    "torch": ["torch"],
    "mpi": ["mpi4py", "mpich", "numpy"],
    "tensorflow": ["tensorflow-cpu", "numpy"],
    "deepspeed": ["deepspeed", "torch"],
}


def write(system: System) -> None:
    """Run the program and keep what it printed."""
    told = subprocess.run(
        [elsewhere.python(system), "-c", VERSIONS, *PACKAGES[system.name]], capture_output=True, text=True, check=True
    ).stdout.strip()
    printed = elsewhere.run(system)
    read = ten_lines.read(printed)
    assert read.wrong == [], read.wrong
    kept = [line for line in printed.splitlines() if line == read.about or line[:15].strip() in read.rows]
    day = datetime.datetime.now(tz=datetime.UTC).date()
    lines = [f"{RECORDED}{day} with {told}", *kept]
    (elsewhere.SCRIPTS / system.record).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    assert platform.system() == "Linux", "the records say Linux"
    for name in sys.argv[1:]:
        write(ten_lines.find(name))
