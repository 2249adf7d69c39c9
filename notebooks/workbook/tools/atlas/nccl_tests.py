"""Read a run of nccl-tests from what it printed: operation, GPUs, rows, and what else the text says.

Knows no published table: `workbook.tools.atlas.likeness` holds a log against them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from labkit.floor.errors import LabError
from labkit.floor.words import count, listed, nbytes
from workbook.tools import timing
from workbook.tools.atlas.nccl_rows import COLUMNS, HEADER, PASTE, PROGRAM, ROW, Row, plain, runs

PROGRAMS = {{"all_to_all": "alltoall", "send_recv": "sendrecv"}.get(op, op): op for op in timing.OPS}
GENERATIONS = (  # of GPUs, by what is in their names
    ("volta", r"V100"), ("ampere", r"A100|A800"), ("hopper", r"H100|H800|H200|H20\b|GH200"),
    ("blackwell", r"B200|B300|GB\d00"), ("cdna3", r"MI3\d\d"),
)  # fmt: skip
RACK = re.compile(r"GB\d00")  # NVLink joins 72 of them
RANK = re.compile(
    r"\bRank\s+(\d{1,7})\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)"
)
FAILED = re.compile(
    r"NCCL WARN|Test (?:NCCL|CUDA) failure|: Test (?:failure|timeout)|out of memory|Invalid number of GPUs"
    r"|error while loading|command not found", re.IGNORECASE,
)  # fmt: skip
BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d{1,18})\b")
ROUNDED = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}  # that older versions allow per further GPU
LIBRARY = re.compile(r"nccl-library=(\d)(\d\d)(\d\d)\b|R?[NC]CL version ?:? (\d+\.\d+\.\d+)")
NETWORK = re.compile(r"Using network (.+?)\s*$|NET/(Socket|IB) : Using")
MPIRUN = re.compile(r"\b(?:mpirun|mpiexec|orterun|prun)\b")
LAUNCHER = re.compile(rf"{MPIRUN.pattern}|\b(?:srun|salloc|flux|torchrun|torch\.distributed\.run)\b|#SBATCH")
ALONE = "This log is of one GPU, which has no other to talk to. Run nccl-tests on two or more."
OTHERS = (
    ("perftest", r"ib_(?:write|read|send)_|RDMA_\w+ BW Test|#bytes +#iterations"),
    ("nvbandwidth", r"nvbandwidth|memcpy (?:CE|SM) "),
    ("the OSU micro-benchmarks", r"# OSU "),
    ("nvidia-smi topo, which topology.read reads", r"\bGPU0 +GPU1\b|CPU Affinity"),
    ("NCCL_DEBUG=INFO alone, which nccl_log.read reads", r"NCCL INFO"),
)


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
    # (bytes, elements) where results were wrong; 0: a version that does not count
    wrong: tuple[tuple[int, float], ...] = ()
    checked: bool = True  # whether there was a column of #wrong or error with figures in it
    hosts: int = 0
    gpu: str = ""
    per_process: int = 0  # GPUs that one process launches for
    nccl: str = ""
    network: str = ""  # as NCCL_DEBUG=INFO names it
    notes: tuple[str, ...] = ()

    @property
    def generation(self) -> str:
        """ "volta", "ampere", "hopper", "blackwell", "cdna3", or "" where the log names no such GPU."""
        return next((found for found, names in GENERATIONS if re.search(names, self.gpu)), "")

    @property
    def crosses(self) -> bool | None:
        """Tell whether the run crossed a network, as more than one host does, or one rack of GB200; None if unsaid."""
        if RACK.search(self.gpu):
            return self.n > 72
        return self.hosts > 1 if self.hosts else None

    @property
    def busbw(self) -> tuple[float, ...]:
        """The bus bandwidths in GB/s, row by row."""
        return tuple(timing.busbw(self.op, self.n, size, us * 1e-6) for size, us in self.rows)

    def __repr__(self) -> str:
        where = f" on {count(self.hosts, 'host')}" if self.hosts else ""
        per = f", {count(self.per_process, 'GPU')} per process" if self.per_process else ""
        extra = [f"{'RCCL' if 'AMD' in self.gpu else 'NCCL'} {self.nccl}"] * bool(self.nccl)
        extra += [f"network {self.network}"] * bool(self.network)
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
    """Read the one run that a text holds; of several the first, and a note says so.

    >>> log = read('''# nThread 1 nGpus 8 minBytes 1048576 maxBytes 2097152 step: 2(factor)
    ...     1048576    262144   float    sum   -1   101.9   10.29   18.01   0   101.5   10.33   18.08   0
    ...     2097152    524288   float    sum   -1   101.4   20.68   36.19   0   101.0   20.76   36.34   0''')
    >>> log.op, log.n, log.rows
    ('all_reduce', 8, ((1048576, 101.9), (2097152, 101.4)))

    `op` and `n` are taken where the text does not say which operation and how many GPUs. Raises `LabError` for a text
    without rows, and `Unsaid`, a `LabError` too, where operation or number of GPUs is missing.
    """
    parts = list(runs(plain(text)))
    rows = [part for part in parts if any(row for _, row in part)]
    if not rows:
        raise LabError(_nothing([line for part in parts for line, _ in part if line.strip()]))
    note = f"This text holds {len(rows)} runs; the first is read." if len(rows) > 1 else ""
    return _log(rows[0], op, n, note)


def _nothing(lines: Sequence[str]) -> str:
    """Say why there is nothing to read, and what to paste."""
    if not lines:
        return f"Nothing was pasted. {PASTE}"
    failed = next(filter(FAILED.search, lines), "")
    if failed:
        return f"The run has no rows, and it says: {failed.strip()[:200]} Mend that, run it again, and paste it anew."
    if any(HEADER.search(line) or RANK.search(line) for line in lines):
        return f"The header is there, and no row below it: the run ended before its first size, or was cut off. {PASTE}"
    for name, sign in OTHERS:
        if any(re.search(sign, line) for line in lines):
            return f"This looks like the output of {name}, and has no row of nccl-tests. {PASTE}"
    return (
        f"None of these {count(len(lines), 'line')} is a row of nccl-tests, which has size, count, type, redop, "
        f"root, time, algbw and busbw. {PASTE}"
    )


def _log(run: Sequence[tuple[str, Row | None]], op: str, n: int, note: str = "") -> Log:
    lines, parsed = zip(*run, strict=True)
    every, notes = [row for row in parsed if row], [note] * bool(note)
    kinds = list(dict.fromkeys(map(_kind, every)))
    rows = [row for row in every if _kind(row) == kinds[0]]
    if len(kinds) > 1:
        notes.append(f"Rows of {listed(kinds[:4])}{' and more' * (len(kinds) > 4)}: the first kind alone is read.")
    header = next(filter(None, map(HEADER.search, lines)), None)
    ranks = list({found[0]: found for found in map(RANK.search, lines) if found}.values())
    group = [r for r in ranks if r[2] == ranks[0][2]]
    split, numbers = len(group) < len(ranks), [int(r[1]) for r in group]
    if split:
        notes.append("Several groups ran side by side (NCCL_TESTS_SPLIT): the figures are of the first.")
    low, high, agree = _ratio(rows)
    if not agree:
        notes.append("busbw / algbw is not the same in all rows: they may be of several runs.")
    _together(numbers, high)
    procs, hosts, per_process = _command(lines)
    per_process = int(header[1]) * int(header[2]) if header else per_process
    told = {
        "the lines '# Rank'": len(group) if split else max(numbers, default=-1) + 1,
        "the words of the command line": procs * per_process * (not split),
        "you": n,
    }
    op, said = _operation(rows, low, high, [found[1] for line in lines for found in PROGRAM.finditer(line)], told, op)
    notes += [said] * bool(said)
    n, said = _number(op, low, high, told)
    notes += [said] * bool(said)
    if n == 1:
        raise LabError(ALONE)
    if group and not split and len(group) < n == max(numbers) + 1:
        notes.append(f"{n} GPUs, as rank {n - 1} is there; missing: {count(n - len(group), 'line')} '# Rank'.")
    cut = sum(found is not None and int(found[1]) > 0 for found in map(ROW.search, lines)) - len(every)
    if cut:
        notes.append(f"{count(cut, 'row')} cut off or not understood, and left out.")
    by_size: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.size):
        by_size.setdefault(row.size, []).append(row)
    times = tuple((s, median(r.halves[0][0] for r in some)) for s, some in by_size.items())
    bounds = next((int(found[1]) for found in map(BOUNDS.search, lines) if found), None)
    column_is = next((found[2] for found in map(COLUMNS.search, lines) if found and found[2]), "")
    rounding = column_is != "wrong" and (bool(column_is) or any(r.rounding for r in rows))
    wrong = {s: max(_wrong(r, rounding, n) for r in some) for s, some in by_size.items()}
    wrong = {s: k for s, k in wrong.items() if k and not (rounding and bounds == 0)}
    if bounds and not wrong:
        notes.append(f"✗ Out of bounds values: {bounds:,} FAILED, and no row says at which size.")
    if rounding and wrong:
        notes.append("The column is the largest error: how many elements are wrong, this version does not say.")
    after = lines[max(k for k, row in enumerate(parsed) if row) + 1 :]
    if ended := next((line for line in after if (found := FAILED.search(line)) and "Test " in found[0]), ""):
        notes.append(f"The run did not end well: {ended.strip()[:200]}")
    networks = [found for found in map(NETWORK.search, lines) if found]
    network = next((f[1] for f in networks if f[1]), next((f[2] for f in networks), ""))
    library = next(filter(None, map(LIBRARY.search, lines)), None)
    version = (library[4] or ".".join(str(int(library[i])) for i in (1, 2, 3))) if library else ""
    if len(group) == n:
        hosts = len({r[3] for r in group})
    elif procs * per_process != n or not hosts:
        hosts = int(per_process == n)  # one process is on one host
    return Log(
        op, n, times, tuple((s, 0 if rounding else k) for s, k in wrong.items()),
        any(h[3] is not None for r in rows for h in r.halves), hosts,
        _gpu([r[4].strip() for r in group]), per_process, version, network, tuple(notes),
    )  # fmt: skip


def _kind(row: Row) -> str:
    return " ".join(filter(None, (row.type, row.redop, f"root {row.root}" * (row.root not in ("", "-1")))))


def _wrong(row: Row, rounding: bool, n: int) -> float:
    """Return a row's wrong elements, or an old version's largest error; 0 where that can be rounding alone."""
    most = ROUNDED.get(row.type, 0.0) * max(n - 1, 1) if rounding else 0.0
    return max(h[3] if h[3] is not None and h[3] > most else 0.0 for h in row.halves)


def _command(lines: Sequence[str]) -> tuple[int, int, int]:
    """Read processes, hosts, and GPUs of a process off the command line above the table; 0 where it does not say."""
    batch = " ".join(line for line in lines if "#SBATCH" in line)
    for line in reversed(lines):
        found = PROGRAM.search(line)
        if found is None or not (LAUNCHER.search(line[: found.start()]) or re.match(r"\S*\s+-", line[found.end() :])):
            continue
        before, after = f"{batch} {line[: found.start()]}", line[found.end() :]
        per_node = r"--?npernode|--?ppn|--n?tasks-per-node|--nproc[-_]per[-_]node"
        nodes, each = (
            _option(x + "|-N" * (bool(MPIRUN.search(before)) == k), before)
            for k, x in enumerate((r"--?nnodes|--nodes", per_node))
        )
        each = each or int((re.search(r"ppr:(\d{1,6}):node", before) or "00")[1])
        processes = _option(r"--?np|--?n|--ntasks", before) or each * nodes or int(not LAUNCHER.search(before))
        hosts = nodes or (processes // each if each and processes % each == 0 else 0)
        return processes, hosts, (_option(r"-g|--ngpus", after) or 1) * (_option(r"-t|--nthreads", after) or 1)
    return 0, 0, 0


def _option(names: str, text: str) -> int:
    found = re.findall(rf"(?<!\S)(?:{names})[ =]*(\d{{1,6}})(?!\S)", text)
    return int(found[-1]) if found else 0


def _gpu(names: list[str]) -> str:
    each = [name for name in sorted(set(names)) if not any(x.startswith(name) for x in names if x != name)]
    return listed([re.sub(r"^NVIDIA ", "", name) for name in each[:3] if name])  # without those that were cut off


def _ratio(rows: list[Row]) -> tuple[float, float, bool]:
    """Return between what busbw / algbw lies, as rounded figures tell, and whether all rows allow it."""
    spans = set()
    for _, algbw, busbw, _ in (half for row in rows for half in row.halves):
        a, b = (0.501 if x >= 1e4 else 0.0501 if x >= 1e3 else 0.00501 for x in (algbw, busbw))
        spans.add((max(busbw - b, 0) / (algbw + a), (busbw + b) / (algbw - a) if algbw > a else inf))
    best = sorted(spans, key=lambda span: span[1] - span[0])[:200]
    fits = {low: [span for span in best if span[0] <= low <= span[1]] for low, _ in best}
    low = max(fits, key=lambda x: (len(fits[x]), x))
    return low, min(high for _, high in fits[low]), len(fits[low]) == len(best)


def _fits(op: str, n: int, low: float, high: float) -> bool:
    return low <= timing.busbw_factor(op, n) <= high


def _operation(
    rows: list[Row], low: float, high: float, named: list[str], told: dict[str, int], given: str
) -> tuple[str, str]:
    """Find the operation, by the program's name, else by columns and figures if they allow one only; and a note."""
    if named and not any(name in PROGRAMS for name in named):
        raise LabError(f"{named[0]}_perf is a program that is not known here. Paste the output of a different program.")
    names = list(dict.fromkeys(PROGRAMS[name] for name in named if name in PROGRAMS))
    if given and given not in timing.OPS:
        raise LabError(f"{given!r} is not an operation of nccl-tests. Choose one of: {', '.join(timing.OPS)}.")
    if len(names) == 1 or (given and given in (names or [given])):
        return (names[0] if len(names) == 1 else given), ""
    row, unchecked = rows[0], ("all_to_all", "send_recv")  # in place
    rooted, reduces = row.root not in ("", "-1"), row.redop not in ("", "none")
    if rooted:
        ops = ["reduce"] if reduces else ["broadcast", "gather", "scatter"]
    else:
        ops = ["all_reduce", "reduce_scatter"] if reduces else ["all_gather", "all_to_all"]
        ops += ["send_recv"] * (reduces == bool(row.root))  # it shows a redop since there is a root column
    checks = {half[3] is not None for r in rows for half in r.halves[1:] if r.halves[0][3] is not None}
    if not rooted and (checks == {False} or (True in checks and row.root)):
        ops = [op for op in ops if (op in unchecked) == (checks == {False})]
    ops = [op for op in ops if op in names] or names or ops
    for some in ([k for k in told.values() if k > 1], range(2, 1025)):
        able = [op for op in ops if any(_fits(op, k, low, high) for k in some)]
        if len(able) == 1:
            what = "one operation" if names else "the operation"
            return able[0], f"The text does not name {what}: by columns and figures, it is {able[0]}." * (low <= 1)
        if able:
            break
    raise Unsaid(
        "op",
        f"The text does not say which operation it is of; it can be {listed(able or ops, 'or')}. Paste it with the "
        "command line, such as 'mpirun … all_gather_perf -b 8 -e 8G -f 2', above the table, or name the operation: "
        'op="all_gather".',
    )


def _together(ranks: list[int], high: float) -> None:
    """Raise for programs that ran side by side, and for one GPU."""
    twice = max(ranks, key=ranks.count, default=0)
    if len(ranks) > len(set(ranks)):
        raise LabError(
            f"Rank {twice} stands there {ranks.count(twice)} times: these were programs side by side, and not one run. "
            "Where one was meant, build nccl-tests with MPI=1 and run it again; else paste one of them."
        )
    if high < 0.25:
        raise LabError(ALONE)


def _number(op: str, low: float, high: float, told: dict[str, int]) -> tuple[int, str]:
    """Find the number of GPUs, the first that is told and that busbw / algbw allows, and a note on it."""
    told = {where: k for where, k in told.items() if k > (where != "the lines '# Rank'")}  # they alone may say 1
    others = "; ".join(f"{where} say {k}" for where, k in told.items())
    ratio = f"busbw / algbw = {(low + high) / 2:.4g}"
    for where, k in sorted(told.items(), key=lambda told: told[1] == 1):
        if _fits(op, k, low, high):
            return k, "" if set(told.values()) == {k} else f"{k} GPUs, by {where}: {others}."
    able = [k for k in range(2, 20_000) if _fits(op, k, low, high)]
    if able and able[-1] < 1.5 * able[0] + 4:
        n = max(able, key=lambda k: (k & -k, -k))  # the roundest
        guess = f" is a guess: {ratio} allows {able[0]} to {able[-1]}" if len(able) > 1 else f", by {ratio}"
        return n, f"{n} GPUs{guess}" + (f", though {others}." if others else ".")
    if told and not able:
        return max(told.values()), f"{ratio} is not what {op} has: name or table may be of a different run; {others}."
    raise Unsaid(
        "n",
        "The text does not say how many GPUs there were: the lines '# Rank' are missing, and busbw / algbw does not "
        "tell. Paste them too, or give the number: n=16.",
    )
