"""What the process groups themselves counted and noted: the recorder's word is checked against it.

Every backend numbers the calls that reach it, and torch's flight recorder keeps the last ones of Gloo's and NCCL's
collectives: who called (a functional collective, DTensor, DDP's C++ buckets, `group.allreduce`) makes no difference.
So where the numbers agree with what was recorded, nothing was missed, and the flight recorder need not be read. It
notes when a call begins, not when it ends; of Gloo's sends and receives it notes nothing.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

FUNCTIONAL = "_functional_collectives.py"


@dataclass(frozen=True)
class Noted:
    """A collective that the flight recorder has: when it began (`perf_counter`), in which group, of what size."""

    op: str
    group: str
    number: int
    backend: int  # its place in `counts`
    entered: float
    dtype: str | None
    shape: tuple[int, ...] | None
    bytes: int | None
    frames: list[dict[str, Any]]  # of the Python stack, the innermost first


def counts(group: Any) -> tuple[int, ...]:
    """How many calls each backend of a group has counted: of the one, or of Gloo and NCCL beside each other."""
    try:
        if _is_mixed(group):
            devices = (torch.device("cpu"), torch.device("cuda"))
            return tuple(group._get_backend(d)._get_sequence_number_for_group() for d in devices)
        return (group._get_sequence_number_for_group(),)
    except RuntimeError:  # a backend that does not count
        return ()


def _is_mixed(group: Any) -> bool:
    config = distributed_c10d._world.pg_backend_config.get(group, "")
    return "nccl" in config and "gloo" in config


class Tally:
    """Which of the calls that the groups count in a cell are recorded, and which are not."""

    def __init__(self) -> None:
        self.ranks: dict[str, tuple[int, ...]] = {}  # of every group that is known by its name
        self._mixed: set[str] = set()
        self._began = self._now()
        self._ended: dict[tuple[str, int], int] | None = None
        self._recorded: dict[tuple[str, int], list[list[float]]] = {}  # spans of numbers: (after, up to]
        self._left = False

    def _now(self) -> dict[tuple[str, int], int]:
        """What every backend of every group has counted."""
        found: dict[tuple[str, int], int] = {}
        for group in list(distributed_c10d._world.pg_map):
            name = group.group_name
            self.ranks[name] = tuple(dist.get_process_group_ranks(group))
            if _is_mixed(group):
                self._mixed.add(name)
            found.update({(name, i): number for i, number in enumerate(counts(group))})
        return found

    def begun(self, group: Any, name: str) -> list[list[float]]:
        """From here on what a group counts is recorded, until `done` is given what this returns."""
        spans = []
        for i, first in enumerate(counts(group)):
            known = self._recorded.setdefault((name, i), [])
            if not known or known[-1][1] != first:
                known.append([first, math.inf])
            known[-1][1] = math.inf
            spans.append(known[-1])
        return spans

    def done(self, group: Any, spans: list[list[float]]) -> None:
        """What the group counts from here on is not recorded any more."""
        for span, last in zip(spans, counts(group), strict=False):
            span[1] = last

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """What is called inside is nobody's business: it counts as recorded."""
        before = self._now()
        try:
            yield
        finally:
            for key, number in self._now().items():
                self._recorded.setdefault(key, []).append([before.get(key, 0), number])

    def leave(self) -> None:
        """A group is about to go, and its counts with it."""
        self._now()
        self._left = True

    def end(self) -> None:
        """The cell is over: what is counted from now on is not its own."""
        if self._ended is None:
            self._ended = self._now()

    def missing(self, since: float, until: float) -> tuple[list[Noted], int]:
        """What the flight recorder has of calls that were not recorded, and how many nobody has noted."""
        lacking = self._lacking()
        if not lacking and not self._left:
            return [], 0
        found = [
            one
            for one in noted(since, until, self._mixed)
            if one.group in self.ranks and not self._has((one.group, one.backend), one.number)
        ]
        return found, max(0, lacking - len({(one.group, one.backend, one.number) for one in found}))

    def _lacking(self) -> int:
        """How many calls were counted and not recorded."""
        ended = self._now() if self._ended is None else self._ended
        total = 0
        for key, number in ended.items():
            recorded = sum(min(last, number) - first for first, last in self._recorded.get(key, []))
            total += max(0, number - self._began.get(key, 0) - int(recorded))
        return total

    def _has(self, key: tuple[str, int], number: int) -> bool:
        return any(first < number <= last for first, last in self._recorded.get(key, []))


def noted(since: float, until: float, mixed: Collection[str] = ()) -> Iterator[Noted]:
    """The collectives that began between two moments (`perf_counter`), as the flight recorder has them.

    `mixed` are the names of the groups that have Gloo and NCCL.
    """
    offset = time.time() - time.perf_counter()
    for entry in _entries():
        entered = entry["time_created_ns"] / 1e9 - offset
        if since <= entered <= until and not entry["is_p2p"]:
            yield _noted(entry, entered, mixed)


def _entries() -> list[dict[str, Any]]:
    """The flight recorder's entries with their stacks.

    To find names for compiled code, torch looks for `torch._inductor`, and so imports it: 2 s and 70 MiB.
    """
    stub = "_inductor" not in vars(torch)
    if stub:
        vars(torch)["_inductor"] = None
    try:
        trace = cast(Any, _distributed_c10d)._dump_fr_trace(True, True, False)  # all of them, with stacks
        return list(pickle.loads(trace).get("entries", ()))
    finally:
        if stub and vars(torch).get("_inductor") is None:
            vars(torch).pop("_inductor", None)


def _noted(entry: dict[str, Any], entered: float, mixed: Collection[str]) -> Noted:
    backend, _, op = entry["profiling_name"].partition(":")
    frames = entry.get("frames", [])
    functional = next((f["name"] for f in frames if f["filename"].endswith(FUNCTIONAL)), "")
    side = "output" if op == "scatter" else "input"  # the tensor that dist.scatter tells its size by
    sizes, dtypes = entry[f"{side}_sizes"], entry[f"{side}_dtypes"]
    types = [getattr(torch, f"{name}Tensor").dtype for name in dtypes if hasattr(torch, f"{name}Tensor")]
    known = 0 < len(types) == len(dtypes)
    group = entry["process_group"][0]
    return Noted(
        op=f"funcol.{functional}" if functional else f"ProcessGroup.{op}",
        group=group,
        number=entry["collective_seq_id" if backend == "nccl" else "op_id"],
        backend=int(backend == "nccl" and group in mixed),
        entered=entered,
        dtype=str(types[0]).removeprefix("torch.") if known else None,
        shape=tuple(sizes[0]) if len(sizes) == 1 else None,
        bytes=sum(math.prod(s) * t.itemsize for s, t in zip(sizes, types, strict=True)) if known else None,
        frames=frames,
    )
