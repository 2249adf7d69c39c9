"""Record that a rank asks again and again for a flag that another rank sets in memory which they share.

To Python that is computing. To the lab it is a wait for that rank: told, drawn and freed like one in a call.
"""

from __future__ import annotations

import time

import torch.distributed as dist

from labkit.rank import cell_record
from labkit.rank.call_facts import where
from labkit.theory.log import Op

_wait: Op | None = None
_waits = 0  # that this process has begun


def wait_begins(of: int | None) -> None:
    """Record that this rank waits in a kernel for a flag of rank `of`; None for one of its own."""
    global _wait, _waits
    cell = cell_record.current
    if not cell.on:
        return
    wait_ends()
    line, function = where()
    _waits += 1
    _wait = Op(
        rank=cell.rank,
        issued=next(cell.order),
        op=f"a kernel for {'its own flag' if of is None else f'the flag of rank {of}'}",
        kind="flag",
        ranks=tuple(range(dist.get_world_size())),
        peer=of,
        line=line,
        function=function,
        entered=time.perf_counter(),
    )
    cell.ops.append(_wait)


def wait_ends(error: BaseException | None = None) -> None:
    """Record that a wait is over: nothing is left of it where the flag has come, and not this error."""
    global _wait
    if _wait is None:
        return
    waited, _wait = _wait, None
    waited.left, waited.error = time.perf_counter(), type(error).__name__ if error else ""
    if not error and waited in cell_record.current.ops:
        cell_record.current.ops.remove(waited)


def waits_in() -> str | None:
    """Name what this rank waits in: "a kernel for the flag of rank 2"; None where it waits for no flag."""
    found = _wait
    return found.op if found is not None and any(op is found for op in [*cell_record.current.ops]) else None


def waits() -> int:
    """Count the waits that have begun: one that is still the same has not moved on."""
    return _waits
