"""Tell what a frame belongs to: the learner's cell, an operation between ranks, or what lies between them."""

from __future__ import annotations

import ast
import contextlib
import gc
import itertools
import linecache
import os
import re
import selectors
import sys
import threading
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.autograd import graph
from torch.distributed import distributed_c10d
from torch.nn.parallel import distributed as ddp

from labkit.floor import source_lines
from labkit.floor.source_lines import is_cell
from labkit.rank.torch_internals import BETWEEN_RANKS, DISPATCHER, DTENSOR, FUNCTIONAL


def _of(module: str) -> str:
    """Return the file of a module of labkit.rank, unimported: those that look at frames import this one."""
    return str(Path(__file__).with_name(f"{module}.py"))


MAIN = threading.main_thread().ident or 0
ALL_OF_TORCH = str(Path(torch.__file__).parent) + os.sep
TORCH = str(Path(dist.__file__).parent) + os.sep
OWN = re.compile(r"/(labkit|workbook/tools)/rank/")  # files of what runs on a rank without being a learner's
LESSONS = re.compile(r"/workbook/\w+\.py$")  # of what an exercise puts around a learner's function
WAITING = re.compile(r"\.(wait|synchronize|result)\(")  # C++ calls that leave no Python frame of their own
CALLS = (distributed_c10d.__file__, FUNCTIONAL)  # what communicates, not what only uses it
RESULTS = ("trigger_wait", "unwrap", "wait_tensor")  # a functional collective's result, as `wait` does a handle's
COMMS = _of("comms")
BETWEEN = (_of("recorder"), _of("anysource"))
GENERATED = re.compile(r"^<eval_with_key>|/torchinductor_")  # what torch.compile makes of the learner's functions
DDP = (ddp.__file__, f"{TORCH}utils.py")
GROUP, STORE = _of("group"), _of("store")
AWAITING = (_of("async_cells"), "run_awaiting")  # what runs a cell that awaits something
STACK = 6  # frames of the learner's that are told
Place = tuple[CodeType, int]  # some code, and the line of it that a frame is in
T = TypeVar("T")

looking = threading.Lock()  # held as long as the frames of another thread are


def look(thread: int, at: Callable[[list[FrameType]], T]) -> T:
    """Return what `at` finds in the frames of another thread, innermost first; they are held no longer than that."""
    # Where that thread waits in a backward pass while autograd calls a hook on a thread of its own, the hook's frames
    # come first. As long as frames are held, so is every variable in them, also when the thread has left them: what
    # counts memory, or lets go of some, waits for `looking`.
    with looking:
        return at(_with_awaiting(_with_hooks(stack(thread))))


def leading_here() -> list[Place]:
    """Return the places in cells that led to the present call, innermost first."""
    found = _in_cells(callers(sys._getframe(1)))
    # On a GPU autograd calls hooks on a thread of its own, whose frames begin with the hook. Behind those come the ones
    # that the main thread was in when it called backward, where it waits.
    if works_for_backward():
        with looking:
            found += _in_cells(itertools.dropwhile(lambda frame: not in_backward(frame), stack(MAIN)))
    return found


def works_for_backward() -> bool:
    """Tell whether autograd has begun this thread, and the main thread waits in a backward pass."""
    if threading.get_ident() == MAIN or not _began_in_c(callers(sys._getframe())):
        return False
    # A backend's thread that calls what a learner wants to be called behind an operation looks the same.
    with looking:
        return any(map(in_backward, stack(MAIN)))


def _began_in_c(frames: Iterable[FrameType]) -> bool:
    """Tell whether these frames, innermost first, are of a thread that Python has not begun."""
    outermost = deque(frames, maxlen=1)
    return bool(outermost) and outermost[0].f_code.co_filename != threading.__file__


def _with_hooks(found: list[FrameType]) -> list[FrameType]:
    """Put the frames of a hook that a thread waits for in a backward pass before the thread's own."""
    hooks = list(hooks_for(found).values())
    return [*next((frames for frames in hooks if operation(frames)), next(iter(hooks), [])), *found]


def rests_in_loop(frames: Iterable[FrameType]) -> bool:
    """Tell whether these frames, innermost first, are of a cell that awaits, and none of its own code runs."""
    inside = itertools.takewhile(lambda frame: not is_cell(frame.f_code.co_filename), frames)
    return any(map(_awaits, inside))


def _awaits(frame: FrameType) -> bool:
    return (frame.f_code.co_filename, frame.f_code.co_name) == AWAITING


def _with_awaiting(found: list[FrameType]) -> list[FrameType]:
    """Put a cell's own frames in where it rests in its loop, as if they had called that loop."""
    if not rests_in_loop(found):
        return found
    at = next(i for i, frame in enumerate(found) if _awaits(frame))
    awaiting: list[FrameType] = []
    link: Any = found[at].f_locals["cell"]
    while (frame := getattr(link, "cr_frame", None)) is not None:
        awaiting.insert(0, frame)
        link = link.cr_await
    return [*found[:at], *awaiting, *found[at:]]


def hooks_for(found: list[FrameType]) -> dict[int, list[FrameType]]:
    """Return the frames of threads that call hooks, where `found` are those of one that waits in a backward pass."""
    if not found or not in_backward(found[0]):
        return {}
    stacks = {thread: stack(thread) for thread in others()}
    return {thread: frames for thread, frames in stacks.items() if _began_in_c(frames)}


def _in_cells(frames: Iterable[FrameType]) -> list[Place]:
    """Return the places of those frames that run a cell's code, up to where IPython runs the cell."""
    within = itertools.takewhile(lambda frame: frame.f_code.co_name != "run_code", frames)
    return [(frame.f_code, source_lines.line(frame)) for frame in within if is_cell(frame.f_code.co_filename)]


def stack(thread: int) -> list[FrameType]:
    """List another thread's frames, innermost first, all taken before any is looked at; callers hold `looking`."""
    with _nothing_collected():
        return list(callers(sys._current_frames().get(thread)))


def others() -> set[int]:
    """Return all threads but the main one and this, whether Python has begun them or not; callers hold `looking`."""
    with _nothing_collected():
        return sys._current_frames().keys() - {MAIN, threading.get_ident()}


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Collect no garbage while objects are made for other threads' frames."""
    # Before Python 3.12 that may start a collection, and what it collects, such as a process group, may let the other
    # thread go on: the frame is left, and its memory another's.
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame of this thread, and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def in_lesson(frame: FrameType) -> bool:
    """Tell whether a frame runs what an exercise puts around a learner's function."""
    return bool(LESSONS.search(frame.f_code.co_filename))


def is_learners(frame: FrameType) -> bool:
    """Tell whether a frame runs the learner's code, in a cell or in a file of their own."""
    file = frame.f_code.co_filename
    return is_cell(file) or not source_lines.LIBRARY.search(file)


def learners(frames: Iterable[FrameType]) -> list[tuple[str, int, str]]:
    """Describe the learner's frames, the innermost last: the function ("" in a cell itself), its line, the source."""
    mine = itertools.islice(filter(is_learners, frames), STACK)
    names = {"<module>": ""}
    return [(names.get(f.f_code.co_name, f.f_code.co_name), source_lines.line(f), source(f)) for f in mine][::-1]


def stands_between(frame: FrameType) -> bool:
    """Tell whether a frame is one of labkit's own that passes a call on to torch."""
    return frame.f_code.co_filename in BETWEEN


def passed_on(frame: FrameType) -> str:
    """Name what one of those passes on: "all_reduce", "comms.send", "wait" for a handle's."""
    held = frame.f_locals
    return str(held["op"]) if frame.f_code.co_name == "recorded" else getattr(held.get("function"), "__name__", "wait")


def connects(frames: Iterable[FrameType]) -> bool:
    """Tell whether a rank connects to the others of a new group, which may take long: no bytes are counted yet."""
    stand = {(f.f_code.co_filename, f.f_code.co_name) for f in frames}
    # Not while it waits at the store for a rank that has not come: nothing moves then.
    return (GROUP, "noted") in stand and (STORE, "wait") not in stand


def in_torch(frame: FrameType) -> bool:
    """Tell whether a frame runs code of torch.distributed."""
    return frame.f_code.co_filename.startswith(TORCH)


def calls_torch(frame: FrameType) -> bool:
    """Tell whether a frame that waits in C has called torch: torch's, one compiled from a learner's, or a cell's."""
    file = frame.f_code.co_filename
    if is_cell(file):
        # A cell may wait for a lock, or for a queue, as well.
        return calls(frame) not in ("", "acquire", "get", "join")
    return file.startswith(ALL_OF_TORCH) or bool(GENERATED.search(file))


def in_ddp(frame: FrameType) -> bool:
    """Tell whether a frame is one of DDP's own, whose C++ computes nothing: it compares models, or sends them."""
    return frame.f_code.co_filename in DDP


def at_handle(frame: FrameType) -> bool:
    """Tell whether a frame is labkit's own that waits for the handle of a call."""
    return stands_between(frame) and frame.f_code.co_name == "wait"


def blocks(frames: list[FrameType]) -> bool:
    """Tell whether a thread, whose frames these are, waits for another thread of Python's, or for asyncio's loop."""
    here, caller = [*(frame.f_code.co_filename for frame in frames[:2]), "", ""][:2]
    return here == threading.__file__ or (here == selectors.__file__ and caller == base_events.__file__)


def passes_on(frame: FrameType) -> bool:
    """Tell whether a frame hands a call between ranks to the C++ behind torch.ops."""
    return frame.f_code.co_filename == DISPATCHER and str(frame.f_locals.get("self")).startswith(BETWEEN_RANKS)


def source(frame: FrameType, line: int | None = None) -> str:
    """Return the source of the line that a frame is in."""
    return linecache.getline(frame.f_code.co_filename, line or source_lines.line(frame)).strip()


def waits(frame: FrameType, line: int | None = None) -> bool:
    """Tell whether a frame of a cell is in a line that waits for a handle."""
    return bool(WAITING.search(source(frame, line)))


def in_backward(frame: FrameType) -> bool:
    """Tell whether a frame is the last in Python of a backward pass; in the C++ behind it DDP waits for the others."""
    return frame.f_code.co_filename == graph.__file__


def operation(frames: Iterable[FrameType]) -> str | None:
    """Name what the cell called, from the frames that it called, innermost first: "all_reduce", "comms.send"."""
    # The outermost function of torch.distributed or of comms with a public name. None while it still imports what it
    # needs, as a first functional collective does for seconds: that is no wait for another rank.
    return named((frame.f_code.co_filename, frame.f_code.co_name) for frame in frames)


def machinery(frames: Iterable[FrameType]) -> str | None:
    """Name what the cell called of torch's own code that communicates: "DDP's constructor", "full_tensor"."""
    # The outermost function with a public name; of DDP, the pass that it is in.
    called = None
    for frame in frames:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file in DDP:
            called = "DDP's constructor" if name == "__init__" else "DDP's forward pass"
        elif file.startswith(TORCH) and file not in CALLS and not name.startswith(("_", "<")) and name != "wrapper":
            called = name
    return called


def named(places: Iterable[tuple[str, str]]) -> str | None:
    """Name the operation, as `operation` does, from the file and the function of each frame."""
    called = None
    for file, name in places:
        if file.startswith("<frozen importlib"):
            return None
        if not name.startswith(("_", "<")) and name != "wrapper":  # that one logs a call and passes it on
            if file in CALLS:
                called = "wait" if name in RESULTS else name
            elif file == DTENSOR and called:  # its functions call those in turn: what a learner called is `full_tensor`
                called = name
            elif file == COMMS:
                called = f"comms.{name}"
    return called


def calls(frame: FrameType) -> str:
    """Name what a frame calls at this moment, C functions included: "synchronize", "item"; "" for what has no name."""
    at = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    first, last, start, end = at
    if first is None or last is None or start is None or end is None:
        return ""
    lines = linecache.getlines(frame.f_code.co_filename)[first - 1 : last]
    if not lines:
        return ""
    raw = [line.encode() for line in lines]  # columns are counted in bytes
    raw[-1] = raw[-1][:end]
    raw[0] = raw[0][start:]
    try:
        called = ast.parse(b"".join(raw).decode(), mode="eval").body
    except (SyntaxError, UnicodeDecodeError):
        return ""
    function = called.func if isinstance(called, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
