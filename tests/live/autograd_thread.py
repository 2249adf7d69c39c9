"""Backward passes on a thread that C begins, as autograd runs them on a GPU: the stand-in of these tests.

The main thread waits in C meanwhile, without the GIL. On the new thread the outermost frame of Python's is a hook's, or
as many lie below it as are asked for. As torch's engine does, it hands over the dispatch modes, of which `peak` is one,
and raises on the main thread what was raised on the other.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.autograd import Variable, graph
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _push_mode

libc = ctypes.CDLL(None)  # lets go of the GIL while it is called


def run(*steps: Callable[[], Any], frames: int = 0) -> list[Any]:
    """Call these on one thread that C begins, with so many frames of Python's below; return what they returned."""
    outcomes: list[Any] = []
    raised: list[BaseException] = []
    call: Callable[[], Any] = partial(outcomes.extend, map(operator.call, steps))
    for _ in range(frames):
        call = partial(lambda inner: inner(), call)
    begin, thread = ctypes.CFUNCTYPE(None)(call), ctypes.c_ulong()
    before, sys.unraisablehook = sys.unraisablehook, lambda told: raised.append(told.exc_value)
    try:
        assert libc.pthread_create(ctypes.byref(thread), None, begin, None) == 0
        assert libc.pthread_join(thread, None) == 0
    finally:
        sys.unraisablehook = before
    if raised:
        raise raised[0]
    return outcomes


class Engine:
    """torch's engine, whose backward passes run on such a thread."""

    def __init__(self, engine: Any, frames: int) -> None:
        self.engine, self.frames = engine, frames

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        modes = [partial(_push_mode, mode) for mode in _get_current_dispatch_mode_stack()]
        return run(*modes, partial(self.engine.run_backward, *args, **kwargs), frames=self.frames)[-1]


# In torch's engine this is C++. Here its frames pass for one of the file that calls it.
for function in (Engine.run_backward, run):
    function.__code__ = function.__code__.replace(co_filename=graph.__file__)


def move(frames: int | None) -> None:
    """Run this process's backward passes so from now on; with None as torch does."""
    engine = Variable._execution_engine
    engine = engine.engine if isinstance(engine, Engine) else engine
    Variable._execution_engine = engine if frames is None else Engine(engine, frames)
