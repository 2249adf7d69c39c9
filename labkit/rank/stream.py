"""When the GPU was at what a rank has called: events on its stream, read on the clock of `perf_counter`.

A call on a GPU returns when its work is enqueued. So an event is put on the stream before the call and one behind it:
the GPU comes to the first when it has done all that was enqueued earlier, and to the second when the call's data has
moved. Nothing here waits for the GPU, where work may never end: a moment that it has not come to is not known yet.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

LIMIT = 4000  # pairs of events that are kept: the last ones
PATIENCE = 0.1  # seconds that the GPU has to come to an event on a stream on which nothing else is

_marks: dict[int, list[Any]] = {}  # of what a rank has called: itself, the event before it and the one behind it
_beside: Any = None  # a stream of our own, made before anything can be stuck


def gpu() -> str:
    """Name the GPU that this rank uses, "cuda:0" for instance; "" where it uses none."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else ""


def came(what: Any) -> None:
    """Mark the beginning of a call or of a span; `told` sets its `ran`. Nothing happens in a process without a GPU."""
    global _beside
    if not torch.cuda.is_initialized():
        return
    if (event := _event()) is not None:
        _beside = _beside or torch.cuda.Stream()
        while len(_marks) >= LIMIT:
            del _marks[next(iter(_marks))]
        _marks[id(what)] = [what, event, None]


def left(what: Any) -> None:
    """Mark its end; of several marks the last one counts."""
    if (mark := _marks.get(id(what))) is not None:
        mark[2] = _event()


def ended(span: Any) -> None:
    """End a span here, and mark its end."""
    span.left = time.perf_counter()
    left(span)


def forget() -> None:
    """Forget what was marked in an earlier cell."""
    _marks.clear()


def told() -> None:
    """Set the `ran` of everything that the GPU is through with: from when to when it was at it."""
    now = _now() if _marks else None
    if now is None:
        return
    moment, here = now
    for key, (what, before, behind) in list(_marks.items()):
        with contextlib.suppress(RuntimeError):  # of another device, or captured into a graph
            if behind is not None and behind.query():
                since, until = (moment - event.elapsed_time(here) / 1e3 for event in (before, behind))
                what.ran = (since, until)
                del _marks[key]


def _event(stream: Any = None) -> Any:
    """An event at the end of a stream, of the one that is used here where none is given; None where CUDA refuses."""
    with contextlib.suppress(RuntimeError):
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream) if stream else event.record()
        return event
    return None


def _now() -> tuple[float, Any] | None:
    """This moment, and an event that the GPU has come to at this moment; None where it does not come to it."""
    event = _event(_beside)
    until = time.perf_counter() + PATIENCE
    with contextlib.suppress(RuntimeError):
        while event is not None and time.perf_counter() < until:
            if event.query():
                return time.perf_counter(), event
    return None
