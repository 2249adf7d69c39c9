"""Tell when the GPU was at what a rank has called: events on its stream, read on the clock of `perf_counter`.

A call on a GPU returns when its work is enqueued. So an event is put on the stream before the call and one behind it:
the GPU comes to the first when it has done all that was enqueued earlier, and to the second when the call's data has
moved. Nothing here waits long for the GPU, where work may never end: a moment that it has not come to is not known.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import Future
from typing import Any

import torch

from labkit.floor import time_limits

LIMIT = 4000  # pairs of events that are kept: the last ones

_marks: dict[int, list[Any]] = {}  # of what a rank has called: itself, the event before it and the one behind it
_waiting: Future[str] | None = None  # for the end of the kernels that ran when it was asked for
_beside: Any = None  # a stream of our own, made before anything can be stuck


def gpu() -> str:
    """Name the GPU that this rank uses, "cuda:0" for instance; "" where it uses none."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else ""


def together() -> bool:
    """Tell whether this rank computes at the same time as those that share its GPU, under an MPS daemon."""
    return "CUDA_MPS_PIPE_DIRECTORY" in os.environ


def mark_start(what: Any) -> None:
    """Mark the beginning of a call or of a span, whose `ran` is set by `read_times`; without a GPU do nothing."""
    global _beside
    if not torch.cuda.is_initialized():
        return
    if (event := _event()) is not None:
        _beside = _beside or torch.cuda.Stream()
        while len(_marks) >= LIMIT:
            del _marks[next(iter(_marks))]
        _marks[id(what)] = [what, event, None]


def mark_end(what: Any) -> None:
    """Mark the end of a call or of a span; of several marks the last one counts."""
    if (mark := _marks.get(id(what))) is not None:
        mark[2] = _event()


def end_span(span: Any) -> None:
    """End a span here, and mark its end."""
    span.left = time.perf_counter()
    mark_end(span)


def forget() -> None:
    """Forget what was marked in an earlier cell."""
    _marks.clear()


def read_times() -> None:
    """Set the `ran` of everything that the GPU is through with, now or soon: from when to when it was at it."""
    marked = list(_marks.items())
    behind = [mark[2] for _, mark in marked if mark[2] is not None]
    if not behind:
        return
    _reached(behind[-1])  # or not: what is before it may be done
    now = _now()
    if now is None:
        return
    moment, here = now
    for key, (what, first, last) in marked:
        with contextlib.suppress(RuntimeError):  # of another device, or captured into a graph
            if last is not None and last.query():
                since, until = (moment - event.elapsed_time(here) / 1e3 for event in (first, last))
                what.ran = (since, until)
                _marks.pop(key, None)


def _event(stream: Any = None) -> Any:
    """Record an event at the end of a stream, by default the current one; None where CUDA refuses."""
    with contextlib.suppress(RuntimeError):
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream) if stream else event.record()
        return event
    return None


def _now() -> tuple[float, Any] | None:
    """Return this moment, and an event that the GPU comes to at this moment; None where it does not come to it."""
    event = _event(_beside)
    return (time.perf_counter(), event) if event is not None and _reached(event) else None


def _reached(event: Any) -> bool:
    """Tell whether the GPU has come to an event, or comes to it in time."""
    until = time.perf_counter() + time_limits.GPU_CATCHES_UP
    with contextlib.suppress(RuntimeError):
        while not event.query():
            if time.perf_counter() > until:
                return False
            time.sleep(0)  # others may run; a longer sleep would be as much of an error in the moment
        return True
    return False


def kernels() -> dict[str, Any]:
    """Tell whether no kernel of this rank runs (`over`), and why every CUDA call of it fails, or "" (`lost`)."""
    global _waiting
    if not torch.cuda.is_initialized():
        return {"over": True, "lost": ""}
    # A kernel that reads a wrong address, or in which an assert fails, spoils what CUDA keeps for its process for good.
    # The wait has a thread of its own, since the agent must not wait, and a second question hears of the same one.
    if _waiting is None:
        _waiting = Future()
        threading.Thread(target=_wait, args=(_waiting,), daemon=True, name="labkit-kernels").start()
    try:
        lost = _waiting.result(time_limits.GPU_ANSWERS)
    except TimeoutError:
        return {"over": False, "lost": ""}
    _waiting = None
    return {"over": True, "lost": lost}


def _wait(done: Future[str]) -> None:
    """Wait on the rank's own GPU: on any other this would make a context."""
    try:
        torch.cuda.synchronize(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    except Exception as error:
        done.set_result(f"{type(error).__name__}: {error}")
    else:
        done.set_result("")
