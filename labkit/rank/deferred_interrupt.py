"""Let an interrupt wait for the end of what must not be broken off.

A library whose import is broken off stays half imported for good; torch imports some of its parts when they are first
needed, sympy for one in the first `y.backward(gradient)`. And torch opens one group call of NCCL for the transfers of a
batch: a rank that leaves the batch before that is closed can join no group any more.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Iterable
from types import FrameType
from typing import Any

from torch.distributed import distributed_c10d

from labkit.floor.source_lines import is_cell
from labkit.rank.frames import MAIN, callers, hooks_for, is_learners, look, looking, stack

IMPORT = "<frozen importlib._bootstrap>"
RUN = ("call_by_name", "run_awaiting")  # functions that run what the notebook has asked for
BATCH = (distributed_c10d.__file__, "batch_isend_irecv")

_waiting = threading.Lock()  # held as long as an interrupt waits
_struck: set[int] = set()  # threads in whose hooks KeyboardInterrupt is to be raised


def postponed(frame: FrameType | None) -> bool:
    """Tell whether what runs in this frame must not be broken off; then the interrupt comes again once it is over."""
    # A module of the learner's own is broken off like a cell: it may never end.
    if not _whole(callers(frame)):
        return False
    if _waiting.acquire(blocking=False):
        threading.Thread(target=_again, args=(threading.get_ident(),), name="labkit-interrupt", daemon=True).start()
    return True


def interrupt_hooks() -> None:
    """Raise KeyboardInterrupt in hooks that autograd calls on threads of its own while the main thread waits."""
    # No signal gets there: the main thread would handle it once the hooks have returned.
    with looking:
        for thread, found in hooks_for(stack(MAIN)).items():
            if not imports(found):
                _struck.add(thread)
                _raise_in(thread, ctypes.py_object(KeyboardInterrupt))


def spare_hooks() -> None:
    """Take back an interrupt that was not raised: the hook returned just then."""
    while _struck:
        _raise_in(_struck.pop(), None)


def _raise_in(thread: int, error: ctypes.py_object[Any] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)


def _again(thread: int) -> None:
    try:
        while look(thread, _whole):
            time.sleep(0.01)
    finally:
        _waiting.release()
    if look(thread, runs):
        signal.pthread_kill(thread, signal.SIGINT)


def _whole(frames: Iterable[FrameType]) -> bool:
    found = list(frames)
    return imports(found) or any((f.f_code.co_filename, f.f_code.co_name) == BATCH for f in found)


def imports(frames: Iterable[FrameType]) -> bool:
    """Tell whether a library is being imported there, and no module of the learner's own."""
    for frame in frames:
        if is_learners(frame):
            return False
        if frame.f_code.co_filename == IMPORT:
            return True
    return False


def runs(frames: Iterable[FrameType]) -> bool:
    """Tell whether a cell, or a function of labkit that the notebook has called, is among these frames."""
    return any(is_cell(frame.f_code.co_filename) or frame.f_code.co_name in RUN for frame in frames)
