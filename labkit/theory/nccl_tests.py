"""A run of nccl-tests, read from what it printed: operation, GPUs, rows, and what else the text says.

Knows no published table: `labkit.theory.likeness` holds a log against them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from statistics import median

from labkit.errors import LabError
from labkit.theory import timing
from labkit.theory.nccl_rows import HEADER, PASTE, PROGRAM, ROW, Row, as_row, plain, runs
from labkit.words import count, listed, nbytes

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
RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
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
    parts = list(runs(plain(text)))
    rows = [part for part in parts if any(map(as_row, part))]
    if not rows:
        raise LabError(_nothing(text, parts))
    note = f"This text holds {len(rows)} runs; the first is read." if len(rows) > 1 else ""
    return _log(rows[0], op, n, note)


def read_all(text: str, op: str = "", n: int = 0) -> list[Log]:
    """Every run that a text holds, such as the output of a script that runs several of nccl-tests' programs."""
    parts = [part for part in runs(plain(text)) if any(map(as_row, part))]
    return [_log(part, op, n) for part in parts] or [read(text)]


def noted(log: Log, note: str) -> Log:
    """The log with a note more."""
    return replace(log, notes=(*log.notes, note))


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
        f"None of these {count(len(lines), 'line')} is a row of nccl-tests, which has size, count, type, redop, "
        f"root, time, algbw and busbw. {PASTE}"
    )


def _log(lines: list[str], op: str, n: int, note: str = "") -> Log:
    rows = [row for row in map(as_row, lines) if row]
    ranks = [found for found in map(RANK.search, lines) if found]
    header = next(filter(None, map(HEADER.search, lines)), None)
    group = [r for r in ranks if r[2] == ranks[0][2]]
    _together(rows, [int(r[1]) for r in group])
    named = [found[1] for line in lines for found in PROGRAM.finditer(line)]
    if named and not any(name in PROGRAMS for name in named):
        raise LabError(f"{named[0]}_perf is a program that is not known here. Paste the output of another one.")
    op = next((PROGRAMS[name] for name in reversed(named) if name in PROGRAMS), op) or _guessed(rows)
    if op not in timing.OPS:
        raise LabError(f"{op!r} is no operation of nccl-tests. Choose one of: {', '.join(timing.OPS)}.")
    notes = [note] * bool(note)
    n, said = _number(op, rows, len(group), n)
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
    per_process = int(header[1]) * int(header[2]) if header else 0
    hosts = len({r[3] for r in group}) or int(per_process == n)  # one process is on one host
    return Log(
        op, n, column(0), column(1), tuple((s, k) for s, k in wrong.items() if k),
        any(h[3] is not None for r in rows for h in r.halves), hosts,
        _gpu([r[4].strip() for r in group]), per_process, version, network, tuple(notes),
    )  # fmt: skip


def _gpu(names: list[str]) -> str:
    each = sorted(set(filter(None, names)))
    return listed([re.sub(r"^NVIDIA ", "", name) for name in each[:3]])


def _ratio(rows: list[Row]) -> tuple[float, float]:
    """busbw / algbw and how far rounding may have moved it, from the row with most digits."""
    _, algbw, busbw, _ = max((row.halves[0] for row in rows), key=lambda h: h[2])
    if busbw < 0.5 or not algbw:
        return 0.0, float("inf") if busbw else 0.0
    half = 0.5 if algbw >= 1e4 else 0.05 if algbw >= 1e3 else 0.005
    return busbw / algbw, busbw / algbw * (half / algbw + half / busbw)


def _guessed(rows: list[Row]) -> str:
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


def _together(rows: list[Row], ranks: list[int]) -> None:
    """Raise for programs that ran side by side, each alone, and for one GPU."""
    twice = max(ranks, key=ranks.count, default=0)
    if len(ranks) > len(set(ranks)):
        raise LabError(
            f"Rank {twice} stands there {ranks.count(twice)} times: these were programs side by side, each "
            "alone, and not one run. Build nccl-tests with MPI=1, and run it again."
        )
    ratio, off = _ratio(rows)
    if len(ranks) == 1 or (not ratio and not off and max(row.size for row in rows) > 2**24):
        raise LabError("This log is of one GPU, which has nobody to talk to. Run nccl-tests on two or more.")


def _number(op: str, rows: list[Row], ranks: int, given: int) -> tuple[int, str]:
    """The number of GPUs and what is to be said of it: from `# Rank` lines, else from busbw / algbw."""
    ratio, off = _ratio(rows)
    least, most = _from_ratio(op, ratio - off), _from_ratio(op, ratio + off)
    tells = ratio > 0 and least < float("inf") and timing.busbw_factor(op, 2) != timing.busbw_factor(op, 3)
    if ranks and (not tells or least - 0.5 <= ranks <= most + 0.5):
        return ranks, ""
    if given:
        return given, ""
    if tells and most - least < max(4.0, 0.2 * least):
        n = round(_from_ratio(op, ratio))
        if most - least >= 1:  # the rounded figures allow several: the roundest
            n = next((k * m for k in (8, 4, 2) for m in [round(n / k)] if least <= k * m <= most), n)
        lines = f", though there are {ranks} lines '# Rank'" if ranks else ""
        return n, f"{n} GPUs, by busbw / algbw = {ratio:.4g}{lines}."
    raise Unsaid(
        "n",
        "The text does not say how many GPUs there were: the lines '# Rank' are missing, and busbw / algbw does not "
        "tell. Paste them too, or give the number: n=16.",
    )


def _from_ratio(op: str, ratio: float) -> float:
    """n, by what busbw is of algbw; infinite for more than the operation can have."""
    whole = 2.0 if op == "all_reduce" else 1.0
    return whole / (whole - ratio) if ratio < whole else float("inf")
