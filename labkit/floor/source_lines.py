"""Find the line that code is in, and interrupt code in a line. Imports nothing of labkit.

Python 3.11 knows no line for the jump at the end of a loop whose last statement is an `if`, and such a loop is always
found there: nothing else in it lets another thread, or a signal, have its turn.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any


def _library() -> re.Pattern[str]:
    """Match the files that are not the learner's, wherever what labkit needs has been installed."""
    specs = (spec.origin for name in ("IPython", "ipykernel", "torch") if (spec := find_spec(name)) and spec.origin)
    folders = {re.escape(str(Path(origin).parents[1])) + "/" for origin in specs}
    return re.compile(
        rf"^<|/(site-packages|dist-packages|labkit|workbook/tools|lib/python3[.\d]*)/|^({'|'.join(sorted(folders))})"
    )


LIBRARY = _library()


@cache
def is_cell(file: str) -> bool:
    """Tell whether a file's name is one that IPython gives to a cell."""
    return "ipykernel_" in file or file.startswith("<ipython-input")


def line(frame: FrameType) -> int:
    """Return the line that a frame is in; where Python knows none, that of the last instruction before that has one."""
    if frame.f_lineno:
        return frame.f_lineno
    found = frame.f_code.co_firstlineno
    for start, _, known in frame.f_code.co_lines():
        if start > frame.f_lasti:
            break
        found = known or found
    return found


def interrupt(frame: FrameType | None, returns: bool = False) -> None:
    """Raise KeyboardInterrupt in a frame: from the handler of a signal, which has found it there.

    Where Python knows no line it is raised at the next instruction that has one: IPython cannot show the other. With
    `returns` it is raised once what the frame has called returns.
    """
    tracing = sys.gettrace()
    if tracing is _waiting:
        return  # for the line in which an earlier one will be raised
    if frame is None or tracing or (frame.f_lineno and not returns):
        raise KeyboardInterrupt
    frame.f_trace = _raise
    sys.settrace(_waiting)


def _waiting(frame: FrameType, event: str, arg: Any) -> None:
    """Trace no new frame; without a tracer Python does not ask the frames' own ones."""


def _raise(frame: FrameType, event: str, arg: Any) -> Any:
    if not frame.f_lineno:
        return _raise
    sys.settrace(None)
    frame.f_trace = None
    raise KeyboardInterrupt


RAISING = (interrupt.__code__, _raise.__code__)  # what an interrupt's traceback ends in
