"""Published tables as nccl-tests would print them, for tests that read logs."""

from __future__ import annotations

from collections.abc import Iterable

from workbook.tools import timing
from workbook.tools.published import Table

PROGRAMS = {"all_to_all": "alltoall", "send_recv": "sendrecv"}
GPUS = {"ampere": "A100-SXM4-80GB", "hopper": "H100 80GB HBM3", "blackwell": "B200", "cdna3": "AMD Instinct MI300X"}


def figure(value: float, width: int) -> str:
    """A number as nccl-tests' getFloatStr writes it: as many decimals as the column has room for."""
    digits = len(str(int(value))) if value >= 1 else 0
    places = 2 if digits < width - 2 else 1 if digits < width - 1 else 0
    return f"{value:{width}.{places}f}"


def rows(op: str, n: int, pairs: Iterable[tuple[int, float]], wrong: str = "0") -> str:
    """The lines of the table."""
    factor = timing.busbw_factor(op, n)
    redop, root = "sum" if "reduce" in op else "none", 0 if op in ("broadcast", "reduce") else -1
    lines = []
    for size, us in pairs:
        algbw = size / us / 1e3
        half = f"{figure(us, 7)}  {figure(algbw, 6)}  {figure(algbw * factor, 6)}  {wrong:>5}"
        lines.append(f"{size:12}  {size // 4:12}     float  {redop:>6}  {root:6}  {half}  {half}")
    return "\n".join(lines)


def printed(table: Table, gpu: str = "", slower: float = 1.0, each: int = 8) -> str:
    """What nccl-tests would have printed for a published table, `slower` times as slow, `each` GPUs on a host."""
    name = gpu or "NVIDIA " + GPUS[table.generation]
    ranks = "\n".join(
        f"#  Rank {r:2} Group  0 Pid {100 + r:6} on  host{r // each} device {r % each:2} [0x07] {name}"
        for r in range(table.n)
    )
    return (
        "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809\n"
        f"# Collective test starting: {PROGRAMS.get(table.op, table.op)}_perf\n"
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0\n#\n# Using devices\n"
        f"{ranks}\n#\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw "
        " #wrong\n#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)\n"
        f"{rows(table.op, table.n, [(size, us * slower) for size, us in table.rows])}\n"
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 100\n"
    )
