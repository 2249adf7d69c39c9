"""Read what nccl-tests prints, line by line: runs, rows, and the JSON that it can write. Knows no operation.

Old and new versions, with and without redop and root, behind the prefixes of mpirun and srun, coloured, as CSV. Format:
NVIDIA/nccl-tests, src/util.cu.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from math import inf

from labkit.floor.errors import LabError
from labkit.floor.words import ANSI

PASTE = "Paste all that all_reduce_perf printed, from the line '# nThread' to '# Avg bus bandwidth'."
PROGRAM = re.compile(
    r"(?<![a-z])(all_reduce|all_gather|reduce_scatter|alltoallv?|broadcast|reduce|gather|scatter|sendrecv|hypercube)"
    r"_perf"
)
ASIDE = re.compile(r"concluded|fail|error|exit|abort|signal|NCCL (?:INFO|WARN)", re.IGNORECASE)
LONGEST = 4000  # characters of a line, which the search of one may take squared
HEADER = re.compile(r"nThreads?:? (\d{1,6}) nGpus:? (\d{1,6})")
COLUMNS = re.compile(r"\b(time|cputime)\s+algbw\s+busbw(?:\s+#?(wrong|error|res)\b)?")
START = re.compile(rf"{HEADER.pattern}|{COLUMNS.pattern}|nccl-tests version")
TYPE = r"u?int(?:8|32|64)?|u?char|half|float|double|bfloat16|f(?:p|loat)?8_?e\dm\d"
ROW = re.compile(rf"(?<![\w.])(\d{{1,18}})\s+(\d{{1,18}})\s+({TYPE})\b\s*(.*)")
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?\*?|N/A|-?nan|inf")
ROUNDING = re.compile(r"\d[eE](?:-\d+|\+00)")  # as #wrong never is
DEBUG = re.compile(r"(?:\[[\d :.-]+\] )?[A-Za-z][\w.-]*:\d+:\d+ (?:\[\w+\] )?NCCL (?:INFO|WARN|TRACE)")
CELLS = re.compile(rf"(?:.*[>\]:]\s*)??((?:\s*(?:{NUMBER.pattern})(?!\S))+)\s*")


@dataclass(frozen=True)
class Row:
    """A line of the table: bytes, and a time with its bandwidths out of place, then in place where there is one."""

    size: int
    type: str
    redop: str
    root: str
    halves: tuple[tuple[float, float, float, float | None], ...]  # µs, algbw, busbw, wrong: out of place, in place
    rounding: bool = False  # whether `wrong` can only be the rounding difference of older versions


def as_row(line: str) -> Row | None:
    """Read a line as a row, None if it is none; its figures tell whether it has a root: algbw is size / time."""
    found = ROW.search(line)
    if found is None or int(found[1]) <= 0:
        return None
    size, cells = int(found[1]), found[4].split()
    redop = cells.pop(0) if cells and not NUMBER.fullmatch(cells[0]) and cells[0].isalpha() else ""
    values = list(takewhile(NUMBER.fullmatch, cells))  # to a time stamp
    for rooted in (0, 1):
        many = len(values) - rooted
        # Three without #wrong; eight with figures of every iteration beside them.
        for wide in (3, 4) if many == 6 else (8,) if many >= 16 else (4,):
            halves = [_half(size, values[k : k + min(wide, 4)], not rooted) for k in range(rooted, len(values), wide)]
            kept = tuple(filter(None, halves[:2]))
            if kept and halves[0] == kept[0] and (wide > 3 or len(kept) == 2):
                root, wrong = values[0] if rooted else "", values[rooted + 3 :: wide][:2] if wide > 3 else []
                return Row(size, found[3], redop, root, kept, any(map(ROUNDING.fullmatch, wrong)))
    return None


def _half(size: int, cells: list[str], old: bool) -> tuple[float, float, float, float | None] | None:
    """Read µs, algbw, busbw and wrong, where they fit together; version 1 had ms.

    Before June 2020, all_gather and reduce_scatter, which had no root column, gave busbw as algbw too.
    """
    if len(cells) < 3 or "N/A" in cells[:3]:
        return None
    time, algbw, busbw = (float(c.rstrip("*")) for c in cells[:3])
    wrong = cells[3].rstrip("*") if len(cells) > 3 else "N/A"
    if not (0 <= busbw < inf and time > 0) or ("." in wrong and "e" not in wrong):
        return None
    for us in (time, time * 1e3):
        fair, said = size / us / 1e3, None if wrong == "N/A" else abs(float(wrong.replace("nan", "inf")))
        if abs(fair - algbw) <= 0.0051 + 0.06 * algbw:  # times above 10⁷ µs have two digits
            return us, algbw, busbw, said
        if old and algbw == busbw and 0.49 * fair < algbw < fair:
            return us, fair, busbw, said
    return None


def plain(text: str) -> list[str]:
    """Return lines without colours, each row on one line, with spaces between its cells in place of commas and bars."""
    if text.lstrip().startswith("{") and not ROW.search(text):
        text = _from_json(text)
    text = re.sub(r"\\\r?\n\s*>?", " ", ANSI.sub("", text)).replace("\\n", "\n")
    lines: list[str] = []
    row = -1  # where a row stands that may go on, behind a line's end or what NCCL_DEBUG=INFO printed into it
    for line in text.splitlines():
        line = re.sub(r'[,;|\t\xa0"]|\\t', " ", line[:LONGEST])
        debug = DEBUG.search(line)
        start, aside = (line[: debug.start()], [line[debug.start() :]]) if debug else (line, [])
        begun = ROW.search(start)
        if begun:
            row = len(lines)
            lines.append(start)
        elif row >= 0 and (more := CELLS.fullmatch(start)) and len(ROW.search(lines[row])[4].split()) < 8:  # type: ignore[index]
            lines[row] += f" {more[1]}"
        elif debug:
            aside = [line]
        else:
            row = -1
            lines.append(line)
        lines += aside
    if any(found and found[1] == "cputime" for found in map(COLUMNS.search, lines)):
        raise LabError("These times are of the CPU, which only starts the work. Run it again without -C 1.")
    return lines


def _from_json(text: str) -> str:
    """Turn what `-J` writes into the lines that nccl-tests prints beside it."""
    try:
        told = json.loads(text)
        config = told.get("config", {})
        lines = [" ".join(told.get("args", ())), f"nThread {config.get('nthreads', 0)} nGpus {config.get('ngpus', 0)}"]
        per_process = max(1, config.get("nthreads", 1) * config.get("ngpus", 1))
        if version := told.get("nccl_version"):
            lines.append(f"nccl-library={version}")
        devices = config.get("devices", ())
        listed = 1 if any(d["rank"] % per_process for d in devices) else per_process
        for d in devices:
            lines += [  # the first GPU of each process is all it writes
                f"# Rank {d['rank'] + k} Group {d['group']} Pid 0 on {d['hostname']} device {k} [0] {d['device_info']}"
                for k in range(listed)
            ]
        for r in told["results"]:
            cells = [r["size"], r["count"], r["type"], r["redop"], r["root"]]
            for half in filter(None, (r.get("out_of_place"), r.get("in_place"))):
                wrong = half.get("nwrong")
                if "cpu_time" in half:
                    lines.append("cputime algbw busbw")
                cells += [half.get("time", 0), half["alg_bw"], half["bus_bw"], "N/A" if wrong is None else f"{wrong:g}"]
            lines.append(" ".join(map(str, cells)))
        if bounds := told.get("out_of_bounds"):
            lines.append(f"# Out of bounds values : {bounds['count']} {'FAILED' if bounds['count'] else 'OK'}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LabError(
            f"This begins like nccl-tests' JSON and is none ({error}). Paste the whole file. {PASTE}"
        ) from None
    return "\n".join(lines)


def runs(lines: list[str]) -> Iterator[list[tuple[str, Row | None]]]:
    """Split lines into those of each run, each beside its row: a header after rows begins the next run.

    What stands before a header belongs to it.
    """
    run: list[tuple[str, Row | None]] = []
    seen = False
    for line in lines:
        if seen and (START.search(line) or (PROGRAM.search(line) and not ASIDE.search(line))):
            yield run
            run, seen = [], False
        run.append((line, as_row(line)))
        seen = seen or run[-1][1] is not None
    yield run
