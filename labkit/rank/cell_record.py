"""The record of one cell on this rank: its calls, spans, buffers and counts, and what the notebook is sent of them."""

from __future__ import annotations

import itertools
import math
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.floor import timestamps
from labkit.floor.source_lines import is_cell
from labkit.rank import backward_pass, stream
from labkit.rank.group_counters import Noted, Tally
from labkit.rank.snapshots import Snapshots
from labkit.theory.log import Log, Op, Span

LIMIT = 2000  # operations, and spans, that are kept: the last ones; the flight recorder keeps as many


@dataclass
class Cell:
    """What is recorded of the cell that runs, or that ran last."""

    on: bool = False
    paused: bool = False  # for every thread: autograd's calls are the cell's as well
    rank: int = 0
    began: float = 0.0
    ended: float | None = None
    ops: deque[Op] = field(default_factory=lambda: deque(maxlen=LIMIT))
    made: int = 0  # operations, also those that are not kept
    order: Iterator[int] = field(default_factory=itertools.count)
    passes: deque[backward_pass.Pass] = field(default_factory=lambda: deque(maxlen=LIMIT))
    nth: dict[str, int] = field(default_factory=dict)  # the last collective of a group, by its name, counted from 0
    grouped: list[tuple[int, ...]] = field(default_factory=list)  # the ranks of groups that were made
    works: dict[int, tuple[weakref.ref[Any], list[Op]]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    snapshots: Snapshots = field(default_factory=Snapshots)
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=LIMIT))
    spans_made: int = 0
    stood: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=LIMIT))  # at a backward pass's end
    sent: int | None = None  # bytes on the wire: before the cell while it runs, then within it
    moved: int | None = None  # bytes that kernels have read and written, where that is counted
    gpu: str = ""  # this rank's

    @property
    def recording(self) -> bool:
        """Tell whether what any thread calls now is recorded."""
        return self.on and not self.paused


current = Cell()


def records() -> dict[str, Any]:
    """Return the last cell's record as plain data, with what is needed to compare its times with other ranks'."""
    cell = current
    stream.read_times()
    ops, spans = list(cell.ops), list(cell.spans)
    until = time.perf_counter() if cell.ended is None else cell.ended
    missing, unnamed = cell.tally.missing(cell.began, until)
    return Log(
        ops=_merged(cell, ops, missing),
        buffers=cell.snapshots.buffers,
        journal=cell.snapshots.journal(),
        began=cell.began,
        ended=cell.ended,
        clock=timestamps.clock(),
        host=socket.gethostname(),
        gpu=cell.gpu,
        together=stream.together(),
        dropped=cell.made - len(ops),
        unnamed=unnamed,
        sent=None if cell.on else cell.sent,
        moved=cell.moved,
        spans=spans,
        cut=cell.spans_made - len(spans),
        stood=list(cell.stood),
        made=list(cell.grouped),
    ).plain()


def _merged(cell: Cell, ops: list[Op], missing: list[Noted]) -> list[Op]:
    """Sort into the recorded operations those that only a process group has noted, by when they began."""
    if not missing:
        return ops
    moments = [(op.entered, float(op.issued)) for op in ops]
    moments += [(op.waited[1] if op.waited else op.left or op.entered, float(op.done)) for op in ops if op.done]
    merged = [replace(op) for op in ops] + [_witnessed(cell, one, moments) for one in missing]
    merged.sort(key=lambda op: op.entered)
    # Each collective counts among its group's.
    before: dict[str, list[Op]] = {}
    for op in (op for op in merged if op.kind == "collective"):
        earlier = before.setdefault(op.group, [])
        op.nth += sum(o.witnessed for o in earlier) if not op.witnessed else earlier[-1].nth + 1 if earlier else 0
        earlier.append(op)
    return merged


def _witnessed(cell: Cell, one: Noted, moments: list[tuple[float, float]]) -> Op:
    """Make an operation of what a process group has noted."""
    mine = [f for f in one.frames if is_cell(f["filename"])]
    behind = _pass_behind(cell, one)
    at, function = behind.where if behind else (mine[-1]["line"] if mine else None, None)
    if len(mine) > 1 or (mine and behind):
        function = mine[0]["name"], mine[0]["line"]
    return Op(
        rank=cell.rank,
        issued=max((place for moment, place in moments if moment <= one.entered), default=-1.0) + 0.5,
        op=one.op,
        kind="collective",
        ranks=cell.tally.ranks[one.group],
        group=one.group,
        dtype=one.dtype,
        shape=one.shape,
        bytes=one.bytes,
        line=at,
        function=function,
        witnessed=True,
        entered=one.entered,
        left=one.entered,
    )


def _pass_behind(cell: Cell, one: Noted) -> backward_pass.Pass | None:
    """Find the cell's backward pass that has called this on a thread of autograd's own, with none of its frames."""
    if any(f["name"] == "run_code" or f["filename"] == threading.__file__ for f in one.frames):
        return None
    kept = list(cell.passes)  # the main thread may go on
    return next((p for p in reversed(kept) if p.entered <= one.entered <= (p.left or math.inf)), None)
