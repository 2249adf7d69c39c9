"""Compare what the process groups themselves have counted and noted with what the recorder has.

Every backend numbers the calls that reach it, and torch's flight recorder keeps the last ones of Gloo's and NCCL's
collectives: who called (a functional collective, DTensor, DDP's C++ buckets, `group.allreduce`) makes no difference.
So where the numbers agree with what was recorded, nothing was missed, and the flight recorder need not be read. It
notes when a call begins, not when it ends; of Gloo's sends and receives it notes nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from labkit.floor import timestamps
from labkit.rank.torch_internals import FUNCTIONAL, backend_config, backend_of, calls_counted, flight_recorder, made

JUMP = 0.05  # seconds by which the wall has jumped: by less it may only seem to, where every look had to wait


@dataclass(frozen=True)
class Noted:
    """A collective that the flight recorder has: when it began (`perf_counter`), in which group, of what size."""

    op: str
    group: str
    number: int
    backend: int  # its place in the group's counts
    entered: float
    dtype: str | None
    shape: tuple[int, ...] | None
    bytes: int | None
    frames: list[dict[str, Any]]  # of the Python stack, the innermost first


Counts = tuple[int, ...]  # of each backend of a group: of its one, or of Gloo's and NCCL's


def _counts(group: Any, mixed: bool) -> Counts:
    try:
        if not mixed:
            return (calls_counted(group),)
        return tuple(calls_counted(backend_of(group, device)) for device in ("cpu", "cuda"))
    except RuntimeError:  # a backend that does not count
        return ()


def counted(group: Any) -> Counts:
    """Count the calls of each backend of a group: one that it refused itself is among them, on every rank."""
    return _counts(group, _is_mixed(group))


def _is_mixed(group: Any) -> bool:
    config = backend_config(group)
    return "nccl" in config and "gloo" in config


@dataclass(slots=True)
class Span:
    """Calls of a group that are recorded: those behind its first counts, up to its last; None while one runs."""

    first: Counts
    last: Counts | None = None

    def has(self, backend: int, number: int) -> bool:
        """Tell whether a call under this number is among them."""
        began = backend < len(self.first) and self.first[backend] < number
        return began and (self.last is None or number <= self.last[backend])

    def numbers(self, backend: int, until: int) -> tuple[int, int]:
        """Return a backend's count before the first and at the last of them, where it has counted to `until` by now."""
        if backend >= len(self.first):
            return 0, 0
        return min(self.first[backend], until), until if self.last is None else min(self.last[backend], until)


class Tally:
    """Which of the calls that the groups count in a cell are recorded, and which are not."""

    def __init__(self) -> None:
        self.ranks: dict[str, tuple[int, ...]] = {}  # of every group that is known by its name
        self._mixed: set[str] = set()  # groups with Gloo and NCCL
        self._spans: dict[str, list[Span]] = {}
        self._began = self._now()
        self._ended: dict[str, Counts] | None = None
        self._left = False
        self._wall = timestamps.wall()

    def know(self, group: Any, name: str) -> tuple[int, ...]:
        """Return the ranks of a group, which is from now on known by its name."""
        if _is_mixed(group):
            self._mixed.add(name)
        ranks = self.ranks[name] = tuple(dist.get_process_group_ranks(group))
        return ranks

    def _now(self) -> dict[str, Counts]:
        """Read what every group has counted."""
        found: dict[str, Counts] = {}
        for group in made():
            name = group.group_name
            self.know(group, name)
            found[name] = _counts(group, name in self._mixed)
        return found

    def begun(self, group: Any, name: str) -> Span:
        """Count what a group counts from here on as recorded, until `done` is given what this returns."""
        first = _counts(group, name in self._mixed)
        spans = self._spans.get(name)
        if spans is None:
            spans = self._spans[name] = []
        elif spans[-1].last == first:
            spans[-1].last = None
            return spans[-1]
        spans.append(Span(first))
        return spans[-1]

    def done(self, group: Any, name: str, span: Span) -> None:
        """Count what the group counts from here on as not recorded any more."""
        span.last = _counts(group, name in self._mixed) or None

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Count what is called inside as recorded, though it is not: no picture is to show it."""
        before = self._now()
        try:
            yield
        finally:
            for name, last in self._now().items():
                self._spans.setdefault(name, []).append(Span(before.get(name, (0,) * len(last)), last))

    def leave(self) -> None:
        """Note what a group has counted that is about to go."""
        self._now()
        self._left = True

    def end(self) -> None:
        """Note that the cell is over: what is counted from now on is not its own."""
        if self._ended is None:
            self._ended = self._now()

    def missing(self, since: float, until: float) -> tuple[list[Noted], int]:
        """Return the calls that the flight recorder alone has, and how many calls neither it nor the recorder has."""
        ended = self._now() if self._ended is None else self._ended
        lacking = sum(self._lacking(name, i, last[i]) for name, last in ended.items() for i in range(len(last)))
        if not lacking and not self._left:
            return [], 0
        every = noted(since, until, self._mixed, self._wall)
        found = [one for one in every if one.group in self.ranks and not self._has(one)]
        return found, max(0, lacking - len({(one.group, one.backend, one.number) for one in found}))

    def _lacking(self, name: str, backend: int, until: int) -> int:
        """Count the calls that a group's backend has counted and that are not recorded."""
        reached = self._began[name][backend] if name in self._began else 0
        lacking = 0
        for first, last in sorted(span.numbers(backend, until) for span in self._spans.get(name, ())):
            lacking += max(0, first - reached)
            reached = max(reached, last)  # two threads may be in calls at once
        return lacking + max(0, until - reached)

    def _has(self, one: Noted) -> bool:
        return any(span.has(one.backend, one.number) for span in self._spans.get(one.group, ()))


def noted(since: float, until: float, mixed: Collection[str] = (), wall: float | None = None) -> Iterator[Noted]:
    """Yield the collectives that began between two moments (`perf_counter`); `mixed` groups have Gloo and NCCL."""
    now = timestamps.wall()
    # The flight recorder goes by the clock on the wall: `wall` is what made a moment one of its times before, should
    # that clock have jumped since.
    walls = [now] if wall is None or abs(wall - now) < JUMP else [now, wall]
    for entry in flight_recorder("gloo", "nccl"):
        created = entry["time_created_ns"] / 1e9
        entered = next((created - w for w in walls if since <= created - w <= until), None)
        if entered is not None and not entry["is_p2p"]:
            yield _noted(entry, entered, mixed)


def newest() -> str:
    """Name the collective that began last on Gloo, as its flight recorder has it: "all_reduce"; "" for none."""
    entries = flight_recorder("gloo", frames=False)
    last = max(entries, key=lambda entry: entry["time_created_ns"], default=None)
    return last["profiling_name"].rpartition(":")[2] if last else ""


def enqueued(since: float) -> Noted | None:
    """Find the first call since a moment that NCCL was given and has not completed, as its flight recorder has it."""
    wall = timestamps.wall()
    calls = ((entry["time_created_ns"] / 1e9 - wall, entry) for entry in flight_recorder("nccl", active=True))
    # A call returns once it is enqueued: what then waits for the GPU waits for this one. What is older was given to a
    # group that has been left, and is never completed.
    waiting = [(at, entry) for at, entry in calls if at >= since and entry["state"] != "completed"]
    at, first = min(waiting, key=lambda call: call[0], default=(0.0, None))
    return None if first is None else _noted(first, at, ())


def _noted(entry: dict[str, Any], entered: float, mixed: Collection[str]) -> Noted:
    backend, _, op = entry["profiling_name"].partition(":")
    frames = entry.get("frames", [])
    behind = (f["name"] for f in frames if f["filename"] == FUNCTIONAL)
    functional = next((name for name in behind if not name.startswith("_")), "")  # "" where its result is awaited
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
