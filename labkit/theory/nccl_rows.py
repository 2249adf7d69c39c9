"""What nccl-tests prints, line by line: runs, rows, and the JSON that it can write. Knows no operation.

Old and new versions, with and without redop and root, behind the prefixes of mpirun and srun, coloured, as CSV. Format:
NVIDIA/nccl-tests, src/util.cu.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.errors import LabError

PASTE = "Paste all that all_reduce_perf printed, from the line '# nThread' to '# Avg bus bandwidth'."
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
PROGRAM = re.compile(r"\b([a-z_]+)_perf")
HEADER = re.compile(r"nThreads?:? (\d+) nGpus:? (\d+)")
TYPE = r"u?int(?:8|32|64)?|u?char|half|float|double|bfloat16|f(?:p|loat)?8_?e\dm\d"
ROW = re.compile(rf"(?<![\w.])(\d+)\s+(\d+)\s+({TYPE})\s+(.*)")
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?\*?|N/A|-?nan|inf")


@dataclass(frozen=True)
class Row:
    """A line of the table: bytes, and a time with its bandwidths out of place, then in place where there is one."""

    size: int
    redop: str
    root: str
    halves: tuple[tuple[float, float, float, float | None], ...]  # µs, algbw, busbw, wrong: out of place, in place


def as_row(line: str) -> Row | None:
    """A line as a row, None if it is none. Whether it has a root is seen from its figures: algbw is size / time."""
    found = ROW.search(line)
    if found is None or int(found[1]) <= 0:
        return None
    cells = found[4].split()
    redop = cells.pop(0) if cells and not NUMBER.fullmatch(cells[0]) and cells[0].isalpha() else ""
    values = []
    for cell in cells:
        if not NUMBER.fullmatch(cell):
            break  # a time stamp
        values.append(cell)
    for rooted in (0, 1):
        wide = 8 if len(values) - rooted >= 16 else 4  # with figures of every iteration beside them
        halves = [_half(values[at : at + 4]) for at in range(rooted, len(values), wide)][:2]
        kept = tuple(h for h in halves if h and _agree(int(found[1]), h))
        if halves and kept and halves[0] == kept[0]:
            return Row(int(found[1]), redop, values[0] if rooted else "", kept)
    return None


def _half(cells: list[str]) -> tuple[float, float, float, float | None] | None:
    if len(cells) < 3 or "N/A" in cells[:3]:
        return None
    us, algbw, busbw = (float(c.rstrip("*")) for c in cells[:3])
    wrong = cells[3].rstrip("*") if len(cells) > 3 else "N/A"
    return us, algbw, busbw, None if wrong == "N/A" else float(wrong)


def _agree(size: int, half: tuple[float, float, float, float | None]) -> bool:
    us, algbw, _, _ = half
    return us > 0 and abs(size / us / 1e3 - algbw) <= 0.0051 + 0.06 * algbw  # times above 10⁷ µs have two digits


def plain(text: str) -> list[str]:
    """Lines without colours, and a table's cells with spaces between them, whatever stood there."""
    if text.lstrip().startswith("{"):
        text = _from_json(text)
    return [re.sub(r"[,;|\t\xa0]", " ", line) for line in ANSI.sub("", text).splitlines()]


def _from_json(text: str) -> str:
    """What `-J` writes, as the lines that nccl-tests prints beside it."""
    try:
        told = json.loads(text)
        config = told.get("config", {})
        lines = [" ".join(told.get("args", ())), f"nThread {config.get('nthreads', 0)} nGpus {config.get('ngpus', 0)}"]
        if version := told.get("nccl_version"):
            lines.append(f"nccl-library={version}")
        for d in config.get("devices", ()):
            lines.append(
                f"# Rank {d['rank']} Group {d['group']} Pid 0 on {d['hostname']} device 0 [0] {d['device_info']}"
            )
        for r in told["results"]:
            cells = [r["size"], r["count"], r["type"], r["redop"], r["root"]]
            for half in filter(None, (r.get("out_of_place"), r.get("in_place"))):
                wrong = half.get("nwrong")
                cells += [half["time"], half["alg_bw"], half["bus_bw"], "N/A" if wrong is None else wrong]
            lines.append(" ".join(map(str, cells)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(
            f"This begins like nccl-tests' JSON and is none ({error}). Paste the whole file. {PASTE}"
        ) from None
    return "\n".join(lines)


def runs(lines: list[str]) -> Iterator[list[str]]:
    """The lines of each run: a header after rows begins the next one. What stands before a header belongs to it."""
    run: list[str] = []
    seen = False
    for line in lines:
        if seen and (HEADER.search(line) or (PROGRAM.search(line) and "concluded" not in line)):
            yield run
            run, seen = [], False
        run.append(line)
        seen = seen or as_row(line) is not None
    yield run
