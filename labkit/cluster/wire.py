"""Run a cell, and count what each rank sent to each other one, by the kernel's counters: `lab.wire`."""

from __future__ import annotations

import time
from typing import Any

from labkit.cluster.console import Console
from labkit.cluster.stop_button import STOP
from labkit.floor import time_limits
from labkit.floor.errors import LabError
from labkit.theory.traffic import Counted, flows


@STOP
def count(console: Console, code: str) -> Counted:
    """Run a cell on all ranks, show its output, and count. Raises what the cell ends with."""
    if not code.strip():
        raise LabError('There is no code to run. Give it as text, such as lab.wire("dist.all_reduce(x)").')
    n = console.engines.n
    before, _, _ = _settled(console)
    console.run(code, range(n))
    after, late, busy = _settled(console)
    links = [(a["nvlink"], b["nvlink"]) for a, b in zip(before, after, strict=True)]
    sent = [b - a for a, b in links if a is not None and b is not None] or None
    if why := after[0]["why"]:
        return Counted(n, None, why, sent)
    old, new = flows(before), flows(after)
    matrix = [[0] * n for _ in range(n)]
    for key, (src, dst, _, received) in new.items():
        matrix[src][dst] += received - (old[key][3] if key in old else 0)
    notes = []
    if late:
        notes.append("not all that was sent has arrived: a rank sends what no rank receives")
    elif busy:
        notes.append("a rank was still at work, and what it has sent since is not counted")
    if old.keys() - new.keys():
        notes.append("connections were closed in this cell, and what they carried in it is not counted")
    return Counted(n, matrix, "", sent if sent and len(sent) == n else None, tuple(notes))


def _settled(console: Console) -> tuple[list[dict[str, Any]], bool, bool]:
    """Return the ranks' counters once nothing is under way; whether something still is, or may be, when time is up.

    Nothing is under way once all that was sent has arrived and was read, no thread of Gloo has anything to do (one that
    waits for a processor may send more), and a second look finds nothing more.
    """
    deadline, last = 0.0, None
    while True:
        told = console.call("labkit.rank.wire.read")
        now = flows(told)
        late = any(sent > received for _, _, sent, received in now.values())
        busy = any(t["busy"] for t in told)
        if now != last:
            last, deadline = now, time.monotonic() + time_limits.BYTES_ARRIVE
        elif not (late or busy) or time.monotonic() > deadline:
            return told, late, busy
