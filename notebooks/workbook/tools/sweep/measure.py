"""`lab.sweep`: the time of one operation by size, one request a size, so that Stop keeps what was measured so far."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from labkit.cluster.console import Console
from labkit.cluster.engines import Engines
from labkit.cluster.live_line import Line
from labkit.cluster.stop_button import STOP
from labkit.floor.errors import CellError, LabError, StoppedError
from labkit.floor.words import nbytes, seconds
from labkit.theory import gpu_sharing
from labkit.theory.primitives import PRIMITIVES
from workbook.tools import timing
from workbook.tools.sweep.show import Row, Sweep

DTYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}
OPS = (*timing.OPS, "barrier")
SIZES = tuple(4**k for k in range(3, 13))  # 64 B to 16 MiB: of 4 bytes a ring has chunks for one rank only
PASSES = 3  # over all sizes: a busy second then hits some repetitions of each size and not one size alone
COPIES = 5  # buffers of the size that a rank may hold at a time
NAMES = {"gloo": "Gloo", "nccl": "NCCL", "gloo + nccl": "NCCL"}


@STOP
def sweep(
    lab: Any,
    op: str = "all_reduce",
    sizes: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    dtype: str = "float32",
    repeat: int = 15,
) -> Sweep:
    """Time one operation over sizes: time, algbw and busbw as nccl-tests defines them, with the fitted α and β.

    >>> lab.sweep("all_gather", sizes=[2**10, 2**20])
    >>> lab.sweep("barrier").rows[0].median

    `sizes` are nccl-tests' S in bytes, by default 64 B to 16 MiB; where ranks get parts, S is rounded to them.
    `ranks` measures some of the ranks, in a group of their own. Stop keeps what was measured so far.
    """
    console: Console = lab._console
    engines = console.engines
    elements = _checked(engines, op, sizes, ranks, dtype, repeat)
    members = list(range(engines.n)) if ranks is None else sorted(ranks)
    part = None if len(members) == engines.n else members
    rows: list[Row] = []
    note = ""
    shares = [len(range(i, repeat, PASSES)) for i in range(min(PASSES, repeat))]
    bar = Bar(op, len(elements) * len(shares))
    try:
        console.call("workbook.tools.rank.sweep.begin", part, engines.limit)
        for i, share in enumerate(shares):
            for j, count in enumerate(elements):
                size = 0 if op == "barrier" else count * DTYPES[dtype]
                last = rows[j - 1] if rows else None
                seen = f" · {nbytes(last.nbytes)} took {seconds(last.median)}" if last else ""
                bar.show(i * len(elements) + j, f"{nbytes(size)}{seen}")
                calls = rows[j].timing.calls if i else None
                told = console.call(
                    *("workbook.tools.rank.sweep.row", op, count, dtype, share, calls), ranks=members, limit=math.inf
                )
                clock, copied, _ = told[0]
                row = Row(op, len(members), size, clock, copied, all(right for *_, right in told))
                rows[j : j + 1] = [rows[j].and_(row) if i else row]
        console.call("workbook.tools.rank.sweep.end")
    except CellError as error:  # the ranks are free and healed again
        if not rows:
            raise
        cause = "You stopped the sweep" if isinstance(error, StoppedError) else f"The sweep ended early, {error}"
        made = sum(len(r.timing.samples) for r in rows)
        note = f"{cause} after {len(rows)} of {len(elements)} sizes, {made} of {repeat * len(elements)} repetitions."
    finally:
        bar.clear()
    return Sweep(op, len(members), dtype, where(engines, members), rows, note)


def _checked(
    engines: Engines, op: str, sizes: Sequence[int] | None, ranks: Sequence[int] | None, dtype: str, repeat: int
) -> list[int]:
    """Return how many elements each measurement has in all: a multiple of the number of ranks where these get parts."""
    if op not in OPS:
        raise LabError(f"{op!r} is not an operation to sweep. Choose one of {', '.join(OPS)}.")
    if dtype not in DTYPES:
        raise LabError(f"dtype={dtype!r} is unknown here. Choose one of {', '.join(DTYPES)}.")
    if not isinstance(repeat, int) or repeat < 1:
        raise LabError(f"repeat={repeat!r} is not a number of repetitions. Give 1 or more, such as repeat=31.")
    chosen = list(range(engines.n)) if ranks is None else list(ranks)
    if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(engines.n)):
        raise LabError(f"ranks={ranks!r}: this lab has the ranks 0 to {engines.n - 1}. Choose among them, each once.")
    if len(chosen) < 2:
        raise LabError("One rank has no other to talk to. Sweep two ranks or more, with start(2) for instance.")
    if op == "barrier":
        if sizes is not None:
            raise LabError("A barrier carries no bytes, so it has no sizes. Call lab.sweep('barrier').")
        return [0]
    sizes = SIZES if sizes is None else sizes
    if not sizes or not all(isinstance(s, int) and not isinstance(s, bool) and s > 0 for s in sizes):
        raise LabError(f"sizes={sizes!r}: give whole numbers of bytes above zero, such as sizes=[1024, 2**20].")
    fits(engines, max(sizes), len(chosen))
    step = len(chosen) if PRIMITIVES[op].cut else 1
    return sorted({max(1, s // (step * DTYPES[dtype])) * step for s in sizes})


def fits(engines: Engines, size: int, n: int) -> None:
    """Refuse what would bring the machine to its knees; what a GPU holds, torch itself says."""
    import psutil

    have = psutil.virtual_memory().available
    if not engines.members[0].device.startswith("cuda") and COPIES * size * n > have:
        most = 1 << max(0, (have // (COPIES * n)).bit_length() - 1)
        raise LabError(
            f"{n} ranks need {COPIES * size * n / 2**30:.1f} GiB for a size of {size / 2**20:.0f} MiB, and "
            f"{have / 2**30:.1f} GiB are free. Give sizes of up to {most / 2**20:.0f} MiB."
        )


def where(engines: Engines, ranks: Sequence[int]) -> str:
    """Say on what it is measured: "Gloo, 4 CPU ranks on one host with 2 cores"."""
    members = [engines.members[r] for r in ranks]
    hosts = {m.host for m in members}
    backend = NAMES.get(members[0].backend, members[0].backend)
    kind = "GPU" if members[0].device.startswith("cuda") else "CPU"
    shared = gpu_sharing.said([m.processor for m in members], engines.gpu.under_mps)
    here = hosts == {os.uname().nodename} and hasattr(os, "sched_getaffinity")
    cores = f" with {len(os.sched_getaffinity(0))} cores" if here and kind == "CPU" else ""
    many = shared or f"{len(ranks)} {kind} ranks"
    return f"{backend}, {many} on {'one host' if len(hosts) == 1 else f'{len(hosts)} hosts'}{cores}"


class Bar(Line):
    """How far it has come in so many steps, and what is under way now."""

    def __init__(self, name: str, steps: int) -> None:
        super().__init__()
        self.name, self.steps = name, steps

    def show(self, done: int, now: str) -> None:
        full = round(20 * done / self.steps)
        self.write(f"{self.name} {'█' * full}{'░' * (20 - full)} now {now}")
