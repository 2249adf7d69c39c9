"""`python -m labkit doctor`: say what this machine is, start two ranks, and say what to do about what is wrong."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from labkit.cluster.reaper import MPS
from labkit.commands import machine
from labkit.commands.findings import FAIL, FEWEST, INSTALL, OK, WARN, Finding, judge, split, worst
from labkit.faces import current_lab
from labkit.floor.errors import JoinError, LabError
from labkit.floor.words import count, seconds

ABOUT = """\
Say what this machine is, of whatever the workbook needs: Python, packages,
torch, GPUs, memory, limits, folders. Then start two ranks as start() does,
add a number up over them, and end them. Each finding begins with ok, warn or
fail; below a warning and a failure stands what to do. It takes some ten
seconds, most of them for two imports of torch.
"""
STATUS = """\
exit status:
  0  nothing fails, warnings or not
  1  something fails
  2  the command line is wrong
"""
ABOUT_JSON = """\
print one JSON object: status (ok, warn or fail), seconds, quick, findings (each with level, about, says and do), and
machine, which is what was found
"""
SUM = "x = torch.tensor([rank + 1.0], device=device)\ndist.all_reduce(x)\nprint(x.item())"
GET_MPS = (
    "It comes with NVIDIA's driver: install the driver's programs. In a container, ask for them "
    "(NVIDIA_DRIVER_CAPABILITIES=compute,utility)."
)
REPORT = "Report these lines as an issue."
INDENT, WIDEST = 24, 100  # of the text that stands beside a level and what it is about


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; 1 where something fails."""
    parser = argparse.ArgumentParser(
        "python -m labkit doctor",
        description=ABOUT,
        epilog=STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="start no ranks, import no torch, and print warnings and failures alone"
    )
    parser.add_argument("--json", action="store_true", help=ABOUT_JSON)
    given = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know no arrow
    began = time.monotonic()
    found = machine.ask(given.quick)
    findings = []
    for finding in _each(found, given.quick):
        findings.append(finding)
        if not given.json and not (given.quick and finding.level == OK):
            print("\n".join(lines(finding)), flush=True)
    took = time.monotonic() - began
    if given.json:
        told = asdict(found) | {"files": [None if n == math.inf else n for n in found.files]}  # JSON knows no infinity
        report = {"status": worst(findings), "seconds": round(took, 1), "quick": given.quick}
        print(json.dumps({**report, "findings": [asdict(f) for f in findings], "machine": told}, indent=2))
    elif not given.quick:
        print(f"\n{summary(findings)} Seen in {took:.1f} s.")
    return int(worst(findings) == FAIL)


def _each(found: machine.Machine, quick: bool) -> Iterator[Finding]:
    """Yield what is found, at last of the ranks, unless the look is `quick` or there is no torch for them."""
    yield from judge(found)
    if found.torch_build and not quick:
        yield try_ranks(found.usable > 0, found.mps)


def summary(findings: Sequence[Finding]) -> str:
    """Say in a sentence how a machine does.

    >>> summary([Finding("ok", "torch", "…"), Finding("warn", "gpu", "…")])
    'Nothing here keeps the workbook from running; 1 warning.'
    """
    levels = [f.level for f in findings]
    failures, warnings = count(levels.count(FAIL), "failure"), count(levels.count(WARN), "warning")
    if FAIL in levels:
        also = f" and {warnings}" if WARN in levels else ""
        return f"{failures}{also}: what to do stands below each."
    return f"Nothing here keeps the workbook from running{f'; {warnings}' if WARN in levels else ''}."


def lines(finding: Finding, width: int = 0) -> Iterator[str]:
    """Write a finding in lines of so many columns, by default as many as the terminal has.

    >>> print(*lines(Finding("warn", "memory", "300 MiB left.", "Close notebooks."), 80), sep="\\n")
    warn   memory           300 MiB left.
                            → Close notebooks.
    """
    width = max(width or min(shutil.get_terminal_size().columns, WIDEST), INDENT + 20) - INDENT
    wrap = partial(textwrap.wrap, width=width, break_long_words=False, break_on_hyphens=False)
    texts = [wrap(line) for line in finding.says.splitlines()]
    texts += [wrap(line, initial_indent="→ ", subsequent_indent="  ") for line in finding.do.splitlines()]
    head = f"{finding.level:<7}{finding.about:<17}"
    for line in itertools.chain(*texts):
        yield f"{head:<{INDENT}}{line}"
        head = ""


def try_ranks(on_gpu: bool = False, mps: bool = False) -> Finding:
    """Start two ranks on this machine as start() does, let them add a number up, end them, and say how that went.

    `on_gpu` says that they are to use a GPU, `mps` that MPS is there, so that they need not take turns on it.
    """
    about = f"{FEWEST} ranks"
    for name in machine.ELSEWHERE:
        os.environ.pop(name, None)
    began = time.monotonic()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from labkit.starting import start  # it needs all packages

            with start(FEWEST) as lab:
                started = current_lab.started()
                said = " ".join(str(started).split())
                sums = [text.strip() for text in lab.run(SUM)]
    except JoinError as error:
        do = "Run this once more, with other programs closed. If it stays, report these lines as an issue."
        return Finding(FAIL, about, f"ranks cannot be joined{error.why}", do)
    except LabError as error:
        return Finding(FAIL, about, *split(str(error)))
    except ImportError as error:
        return Finding(FAIL, about, f"start() cannot be imported: {error}", f"Install what it needs: {INSTALL}.")
    except Exception as error:
        return Finding(FAIL, about, f"start() ended in {type(error).__name__}: {error}", REPORT)
    if sums != ["3.0"] * FEWEST:
        return Finding(FAIL, about, f"{said} Their sum of 1 and 2 is {', '.join(sums)}", REPORT)
    said += f" An all-reduce of 1 and 2 is 3 on both. Started and ended in {seconds(time.monotonic() - began)}"
    if on_gpu and started.engines.backend == "gloo":
        return Finding(WARN, about, said, "CPU ranks do for the lessons. What NCCL said above tells what to mend.")
    if started.engines.gpu.way == "turns":
        why = "what is said above keeps MPS from starting." if mps else f"{MPS} is not there. {GET_MPS}"
        return Finding(WARN, about, said, f"They work, but slowly: {why}")
    return Finding(OK, about, said)
