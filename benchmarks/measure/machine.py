"""What a result was measured on: without it no figure means anything."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def describe(packages: list[str]) -> dict[str, str]:
    """Cores, memory, kernel, the versions of Python and of these packages, and which commit was measured."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": f"{len(os.sched_getaffinity(0))} × {_processor()}",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "commit": _commit(),
    }


def load() -> str:
    """The load averages of the last 1 and 5 minutes: above the number of cores, others took time away."""
    one, five, _ = os.getloadavg()
    return f"{one:.2f} (1 min), {five:.2f} (5 min)"


def _processor() -> str:
    """The CPU's own name, where the machine tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    """The commit of the working tree, and whether labkit differs from it."""

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--short", "labkit") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
