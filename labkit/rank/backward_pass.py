"""Note when a backward pass has computed its graph, and when what waits for other ranks at its end is done.

Autograd runs callbacks behind a graph, in the order in which they were queued. DDP queues one when its last bucket has
left: it waits there, in C++, until all buckets are back. A callback queued earlier in the pass therefore runs at the
moment at which all is computed, and one queued by that callback runs when DDP has what it waited for.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from labkit.rank.frames import callers
from labkit.rank.torch_internals import RUN_BACKWARD, at_backwards_end, backward_number

Where = tuple[int | None, tuple[str, int] | None]  # a line of the cell, and the function, with its line, of the call
End = Callable[[float, float], None]  # is told when the graph was computed, and when what waited behind it was done

_ends: dict[int, list[End]] = {}  # of each pass that runs


@dataclass
class Pass:
    """A backward pass: where it was called, and from when to when; `left` is None while it runs."""

    where: Where
    entered: float
    left: float | None = None


def noting(function: Callable[..., Any], begin: Callable[[], Pass | None]) -> Callable[..., Any]:
    """Wrap a function of torch's that runs a backward pass, to note when the pass that `begin` returns has ended."""

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        began = begin()
        try:
            return function(*args, **kwargs)
        finally:
            if began is not None:
                began.left = time.perf_counter()

    return noted


def at_end(call: End) -> None:
    """Call this when the backward pass that runs has ended; outside of one, do nothing."""
    number = backward_number()
    if number < 0:
        return
    first: list[End] = []
    calls = _ends.setdefault(number, first)  # two threads of one pass may come here at once
    if calls is first:
        try:
            at_backwards_end(lambda: _computed(number))
        except RuntimeError:  # not in a pass after all
            _ends.pop(number, None)
            return
    calls.append(call)


def forget() -> None:
    """Forget passes that an error ended: they run no callbacks."""
    _ends.clear()


def carries_a_bucket() -> bool:
    """Tell whether the call two frames up was made by a hook for one of DDP's buckets, for which DDP will wait."""
    for frame in callers(sys._getframe(1).f_back):
        code = frame.f_code
        if code.co_name == RUN_BACKWARD:
            break
        if any(isinstance(frame.f_locals.get(name), dist.GradBucket) for name in code.co_varnames[: code.co_argcount]):
            return True
    return False


def _computed(number: int) -> None:
    moment = time.perf_counter()
    at_backwards_end(lambda: _done(number, moment))


def _done(number: int, computed: float) -> None:
    moment = time.perf_counter()
    for call in _ends.pop(number, ()):
        call(computed, moment)
