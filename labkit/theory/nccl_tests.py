"""Reads what nccl-tests prints: old and new versions, behind the prefixes of mpirun and srun, cut off, or its JSON.

Knows no published table: `labkit.theory.likeness` holds a log against them. Formats: NVIDIA/nccl-tests, src/util.cu.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from labkit.errors import LabError
from labkit.theory import timing
from labkit.words import count, listed, nbytes

PASTE = "Paste all that all_reduce_perf printed, from the line '# nThread' to '# Avg bus bandwidth'."
PROGRAMS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
    "sendrecv": "send_recv",
}  # fmt: skip
GENERATIONS = (  # of GPUs, by what is in their names
    ("volta", r"V100"), ("ampere", r"A100|A800"), ("hopper", r"H100|H800|H200|H20\b|GH200"),
    ("blackwell", r"B200|B300|GB\d00"), ("cdna3", r"MI3\d\d"),
)  # fmt: skip
RACK = re.compile(r"GB\d00")  # NVLink joins 72 of them
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
PROGRAM = re.compile(rf"\b({'|'.join(PROGRAMS)})_perf")
HEADER = re.compile(r"nThreads?:? (\d+) nGpus:? (\d+)")
RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
TYPE = r"u?int(?:8|32|64)?|u?char|half|float|double|bfloat16|f(?:p|loat)?8_?e\dm\d"
ROW = re.compile(rf"(?<![\w.])(\d+)\s+(\d+)\s+({TYPE})\s+(.*)")
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?\*?|N/A|-?nan|inf")
FAILED = re.compile(r"NCCL WARN.*|Test (?:NCCL|CUDA) failure.*|.*: Test failure.*|.*out of memory.*", re.IGNORECASE)
LIBRARY = re.compile(r"nccl-library=(\d)(\d\d)(\d\d)\b|NCCL version (\d+\.\d+\.\d+)")
NETWORK = re.compile(r"Using network (.+?)\s*$|NET/(Socket|IB) : Using")


class Unsaid(LabError):
    """A log that does not say what is needed of it: `what` is "op" or "n", which one then gives."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what


@dataclass(frozen=True)
class Log:
    """One run of nccl-tests: `rows` of (bytes, µs) of an operation on `n` GPUs, and what else the log says.

    The rows are out of place; bytes are nccl-tests' size. What the log does not say is "" or 0.
    """

    op: str
    n: int
    rows: tuple[tuple[int, float], ...]
    in_place: tuple[tuple[int, float], ...] = ()
    wrong: tuple[tuple[int, float], ...] = ()  # (bytes, elements) where #wrong was above 0
    checked: bool = True  # whether there was a #wrong column with figures in it
    hosts: int = 0
    gpu: str = ""
    per_process: int = 0  # GPUs that one process launches for
    nccl: str = ""
    network: str = ""  # as NCCL_DEBUG=INFO names it
    notes: tuple[str, ...] = ()
    name: str = "your log"

    @property
    def generation(self) -> str:
        """ "volta", "ampere", "hopper", "blackwell", "cdna3", or "" where the log names no such GPU."""
        return next((found for found, names in GENERATIONS if re.search(names, self.gpu)), "")

    @property
    def crosses(self) -> bool | None:
        """Whether the run crossed a network, as more than one host does, or one rack of GB200; None if unsaid."""
        if RACK.search(self.gpu):
            return self.n > 72
        return self.hosts > 1 if self.hosts else None

    @property
    def busbw(self) -> tuple[float, ...]:
        """GB/s, row by row."""
        return tuple(timing.busbw(self.op, self.n, size, us * 1e-6) for size, us in self.rows)

    def __repr__(self) -> str:
        where = f" on {count(self.hosts, 'host')}" if self.hosts else ""
        per = f", {count(self.per_process, 'GPU')} a process" if self.per_process else ""
        extra = [f"NCCL {self.nccl}"] * bool(self.nccl) + [f"network {self.network}"] * bool(self.network)
        sizes = [size for size, _ in self.rows]
        lines = [
            f"{self.op} on {self.n} × {self.gpu or 'GPU'}{where}{per}" + "".join(f", {e}" for e in extra),
            f"{count(len(sizes), 'size')}, {nbytes(min(sizes))} to {nbytes(max(sizes))}; "
            f"{min(us for _, us in self.rows):,.4g} µs at least, busbw {max(self.busbw):.4g} GB/s at most",
        ]
        if self.wrong:
            lines.append(f"✗ wrong results at {listed([nbytes(size) for size, _ in self.wrong])}")
        return "\n".join([*lines, *self.notes])


def read(text: str, op: str = "", n: int = 0) -> Log:
    """The one run that a text holds; of several the first, and a note says so.

    >>> log = read('''# nThread 1 nGpus 8 minBytes 1048576 maxBytes 2097152 step: 2(factor)
    ...     1048576    262144   float    sum   -1   101.9   10.29   18.01   0   101.5   10.33   18.08   0
    ...     2097152    524288   float    sum   -1   101.4   20.68   36.19   0   101.0   20.76   36.34   0''')
    >>> log.op, log.n, log.rows
    ('all_reduce', 8, ((1048576, 101.9), (2097152, 101.4)))

    `op` and `n` are taken where the text does not say which operation and how many GPUs. Raises `LabError` for a text
    without rows, and `Unsaid`, a `LabError` too, where operation or number of GPUs is missing.
    """
    parts = list(_runs(_plain(text)))
    rows = [part for part in parts if any(map(_row, part))]
    if not rows:
        raise LabError(_nothing(text, parts))
    note = f"This text holds {len(rows)} runs; the first is read." if len(rows) > 1 else ""
    return _log(rows[0], op, n, note)


def read_all(text: str, op: str = "", n: int = 0) -> list[Log]:
    """Every run that a text holds, such as the output of a script that runs several of nccl-tests' programs."""
    parts = [part for part in _runs(_plain(text)) if any(map(_row, part))]
    return [_log(part, op, n) for part in parts] or [read(text)]


def noted(log: Log, note: str) -> Log:
    """The log with a note more."""
    return replace(log, notes=(*log.notes, note))


# -- from text to lines ---------------------------------------------------------------------------------------------


def _plain(text: str) -> list[str]:
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


def _runs(lines: list[str]) -> Iterator[list[str]]:
    """The lines of each run: a header after rows begins the next one. What stands before a header belongs to it."""
    run: list[str] = []
    seen = False
    for line in lines:
        if seen and (HEADER.search(line) or PROGRAM.search(line) and "concluded" not in line):
            yield run
            run, seen = [], False
        run.append(line)
        seen = seen or _row(line) is not None
    yield run


# -- from lines to rows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    size: int
    redop: str
    root: str
    halves: tuple[tuple[float, float, float, float | None], ...]  # µs, algbw, busbw, wrong: out of place, in place


def _row(line: str) -> _Row | None:
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
            return _Row(int(found[1]), redop, values[0] if rooted else "", kept)
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


def _nothing(text: str, parts: list[list[str]]) -> str:
    """Why there is nothing to read, and what to paste."""
    lines = [line for part in parts for line in part if line.strip()]
    if not lines:
        return f"Nothing was pasted. {PASTE}"
    failed = next(filter(None, map(FAILED.search, lines)), None)
    if failed:
        return (
            f"The run has no rows, and it says: {failed[0].strip()[:200]} Mend that, run it again, and paste it anew."
        )
    if any(HEADER.search(line) or RANK.search(line) for line in lines):
        return f"The header is there, and no row below it: the run ended before its first size, or was cut off. {PASTE}"
    return (
        f"None of these {count(len(lines), 'line')} is a row of nccl-tests, which has size, count, type, redop, root, time, "
        f"algbw and busbw. {PASTE}"
    )


# -- from rows to a log ---------------------------------------------------------------------------------------------


def _log(lines: list[str], op: str, n: int, note: str = "") -> Log:
    rows = [row for row in map(_row, lines) if row]
    ranks = [found for found in map(RANK.search, lines) if found]
    header = next(filter(None, map(HEADER.search, lines)), None)
    named = next((found[1] for found in map(PROGRAM.search, lines) if found), "")
    op = PROGRAMS[named] if named else op or _guessed(rows)
    if op not in timing.OPS:
        raise LabError(f"{op!r} is no operation of nccl-tests. Choose one of: {', '.join(timing.OPS)}.")
    group = [r for r in ranks if r[2] == ranks[0][2]]
    notes = [note] * bool(note)
    n, said = _number(op, rows, [int(r[1]) for r in group], n)
    notes += [said] * bool(said)
    cut = sum(found is not None and found[1] != "0" for found in map(ROW.search, lines)) - len(rows)
    if cut:
        notes.append(f"{count(cut, 'row')} cut off or not understood, and left out.")
    sizes = sorted({row.size for row in rows})

    def column(half: int) -> tuple[tuple[int, float], ...]:
        every = {s: [r.halves[half][0] for r in rows if r.size == s and len(r.halves) > half] for s in sizes}
        return tuple((s, median(us)) for s, us in every.items() if us)

    wrong = {s: max((h[3] or 0 for r in rows if r.size == s for h in r.halves), default=0) for s in sizes}
    networks = [found for found in map(NETWORK.search, lines) if found]
    network = next((f[1] for f in networks if f[1]), next((f[2] for f in networks), ""))
    library = next(filter(None, map(LIBRARY.search, lines)), None)
    version = (library[4] or ".".join(str(int(library[i])) for i in (1, 2, 3))) if library else ""
    return Log(
        op, n, column(0), column(1), tuple((s, k) for s, k in wrong.items() if k),
        any(h[3] is not None for r in rows for h in r.halves), len({r[3] for r in group}),
        _gpu([r[4].strip() for r in group]), int(header[1]) * int(header[2]) if header else 0, version,
        network, tuple(notes),
    )  # fmt: skip


def _gpu(names: list[str]) -> str:
    each = sorted(set(filter(None, names)))
    return listed([re.sub(r"^NVIDIA ", "", name) for name in each[:3]])


def _ratio(rows: list[_Row]) -> tuple[float, float]:
    """busbw / algbw and how far rounding may have moved it, from the row with most digits."""
    us, algbw, busbw, _ = max((row.halves[0] for row in rows), key=lambda h: h[2])
    if busbw < 0.5 or not algbw:
        return 0.0, float("inf") if busbw else 0.0
    half = 0.5 if algbw >= 1e4 else 0.05 if algbw >= 1e3 else 0.005
    return busbw / algbw, busbw / algbw * (half / algbw + half / busbw)


def _guessed(rows: list[_Row]) -> str:
    """The operation, from what a row has: only an all-reduce's busbw exceeds its algbw."""
    ratio, off = _ratio(rows)
    redop, root = rows[0].redop.replace("none", ""), rows[0].root.replace("-1", "")
    if ratio - off > 1 or (redop and not root and ratio + off >= 1):
        return "all_reduce"
    if redop and (root or ratio):
        return "reduce" if root else "reduce_scatter"
    if root and ratio + off >= 1:
        return "broadcast"
    raise Unsaid(
        "op",
        "The text does not say which operation it is of. Paste it with the command line, such as "
        "'mpirun … all_gather_perf -b 8 -e 8G -f 2', above the table, or name the operation: op=\"all_gather\".",
    )


def _number(op: str, rows: list[_Row], ranks: list[int], given: int) -> tuple[int, str]:
    """The number of GPUs and what is to be said of it: from `# Rank` lines, else from busbw / algbw."""
    if len(ranks) > len(set(ranks)):
        raise LabError(
            f"Rank {max(set(ranks), key=ranks.count)} stands there {ranks.count(max(set(ranks), key=ranks.count))} times: "
            "these were programs side by side, each alone, and not one run. Build nccl-tests with MPI=1, run it again."
        )
    ratio, off = _ratio(rows)
    if len(ranks) == 1 or (not ratio and off == 0 and max(row.size for row in rows) > 2**24):
        raise LabError("This log is of one GPU, which has nobody to talk to. Run nccl-tests on two or more.")
    found, spread = _from_ratio(op, ratio, off)
    if ranks and (not found or abs(found - len(ranks)) <= spread + 0.5):
        return len(ranks), ""
    if given:
        return given, ""
    if found and spread < max(2.0, 0.1 * found):
        n = round(found)
        if spread >= 0.5:  # the rounded figures allow several: the roundest
            n = next((k * m for k in (8, 4, 2) for m in [round(found / k)] if m and abs(k * m - found) <= spread), n)
        lines = f", though there are {len(ranks)} lines '# Rank'" if ranks else ""
        return n, f"{n} GPUs, by busbw / algbw = {ratio:.4g}{lines}."
    raise Unsaid(
        "n",
        "The text does not say how many GPUs there were: the lines '# Rank' are missing, and busbw / algbw does not "
        "tell. Paste them too, or give the number: n=16.",
    )


def _from_ratio(op: str, ratio: float, off: float) -> tuple[float, float]:
    """n and how far off it may be; (0, inf) where the ratio says nothing."""
    whole = {"all_reduce": 2.0}.get(op, 1.0 if timing.convention(op)[1] != "1" else 0.0)
    if not whole or not ratio or ratio >= whole:
        return 0.0, float("inf")
    n = whole / (whole - ratio)
    return n, n * n * off / whole
