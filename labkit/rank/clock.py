"""Time a collective: `timed` asks all ranks at once and believes the slowest."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.floor import time_limits
from labkit.floor.errors import LabError
from labkit.rank import recorder, stream
from labkit.theory import gpu_sharing
from labkit.theory.samples import Timing

__all__ = ["Timing", "timed"]


def timed(
    fn: Callable[[], Any],
    warmup: int = 3,
    repeat: int = 31,
    calls: int | None = None,
    group: Any = None,
    before: Callable[[], Any] | None = None,
) -> Timing:
    """Time fn() on the ranks of the group, all of which call this; returns the same `Timing` on each.

    >>> timed(lambda: dist.all_reduce(x))
    median 412 µs (min 377 µs, p90 530 µs), slowest rank of each of 31 repeats of 25 calls, 4 ranks, …

    After `warmup` calls come `repeat` repetitions of `calls` calls each, by default as many as fill 12 ms,
    with a barrier before each repetition and none inside. `before()` runs after that barrier, off the clock: the
    rank on which it takes longest comes late. `.late` is that delay, and `.transfer` is without it; `calls` is then 1.
    fn is called many times and must allow that: an in-place sum, for instance, grows until it overflows.
    """
    _check(fn, warmup, repeat, calls)
    with recorder.paused():
        first = [stopwatch(fn, 1, _on_gpu(group))[1] for _ in range(warmup)]
        calls = calls or (1 if before else _enough(first, group))
        mine = []
        for _ in range(repeat):
            dist.barrier(group)
            if before:
                before()
            mine.append(stopwatch(fn, calls, _on_gpu(group)))
        dist.barrier(group)  # a rank that is done keeps quiet while others still measure
        return _together(mine, calls, group)


def stopwatch(fn: Callable[[], Any], calls: int, gpu: bool) -> tuple[float, float]:
    """Return when this rank began and how long these calls took it; on a GPU by its events, until it has done them."""
    if gpu:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        start.record()
        for _ in range(calls):
            fn()
        end.record()
        end.synchronize()
        return begin, start.elapsed_time(end) / 1e3
    begin = time.perf_counter()
    for _ in range(calls):
        fn()
    return begin, time.perf_counter() - begin


def _enough(first: Sequence[float], group: Any) -> int:
    """Count how many calls fill a repetition on the slowest rank; one where none was tried."""
    fastest: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(fastest, min(first, default=time_limits.REPETITION), group=group)
    return max(1, int(time_limits.REPETITION / max(fastest)))


def _together(mine: Sequence[tuple[float, float]], calls: int, group: Any) -> Timing:
    """Gather all ranks' measurements, a row per repetition; `perf_counter` is one clock for all processes of a host."""
    told: list[Any] = [None] * dist.get_world_size(group)
    gpu = torch.cuda.current_device() if _on_gpu(group) else dist.get_rank()
    dist.all_gather_object(told, (socket.gethostname(), gpu, mine), group=group)
    rows = list(zip(*(measured for *_, measured in told), strict=True))
    arrivals = [tuple(begin - min(b for b, _ in row) for begin, _ in row) for row in rows]
    backend, device = ("NCCL", "cuda") if _on_gpu(group) else ("Gloo", "cpu")
    shared = gpu_sharing.said([(host, gpu) for host, gpu, _ in told], stream.together())
    return Timing(
        samples=tuple(tuple(seconds / calls for _, seconds in row) for row in rows),
        calls=calls,
        backend=backend,
        device=f"{device} ({shared})" if shared else device,
        arrivals=tuple(arrivals) if len({host for host, *_ in told}) == 1 else (),
    )


def _check(fn: Any, warmup: int, repeat: int, calls: int | None) -> None:
    if not callable(fn):
        raise LabError("timed() needs a function to call. Pass timed(lambda: dist.all_reduce(x)).")
    if warmup < 0 or repeat < 1 or (calls is not None and calls < 1):
        raise LabError("timed() needs repeat and calls of 1 or more, and a warmup of 0 or more. Leave them out.")


def _on_gpu(group: Any) -> bool:
    return "cuda:nccl" in dist.get_backend_config(group)
