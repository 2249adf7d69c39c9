"""Tell how the last cell ended on this rank, or a function that labkit ran here: what was raised, when, and by whom.

From this the notebook tells a cause from what it did to the other ranks, and need not read torch's English.
"""

from __future__ import annotations

import dis
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from traceback import clear_frames
from types import FrameType, TracebackType
from typing import Any

import torch.distributed as dist
from torch import futures
from torch.nn.parallel import distributed as ddp

from labkit.floor import time_limits, timestamps
from labkit.floor.source_lines import is_cell
from labkit.rank import deferred_interrupt, destroyed_groups, frames, group, output, store

SHOWN = 20  # frames at either end of a traceback: IPython takes seconds for the 1000 of a deep recursion
BESIDE = (ddp.__file__, futures.__file__)  # where C++ waits for other ranks outside of torch.distributed
LEARNER, OPERATION, LAB = "learner", "operation", "lab"
NOTHING: dict[str, Any] = {
    "request": "", "error": "", "at": 0.0, "raised": "", "op": None, "line": None, "forgotten": "", "differs": "",
}  # fmt: skip

_last = NOTHING
_group = 0.0  # when the group was joined in which that happened
_interrupted = False  # by the lab, in the cell that runs


def install(shell: Any) -> None:
    """Note the end of every cell, and every exception before its traceback is rendered."""
    if getattr(shell.showtraceback, "noting", False):
        return
    show = shell.showtraceback

    def showtraceback(*args: Any, **kwargs: Any) -> Any:
        error = sys.exc_info()[1]
        note(shell, error)
        # Only the learner's own frames: IPython reads the whole of every file, and takes seconds for torch's.
        _cut(error)
        output.put_back()
        shown = show(*args, **kwargs)
        _let_go(shell, error)
        return shown

    showtraceback.noting = True  # type: ignore[attr-defined]
    shell.showtraceback = showtraceback
    threading.excepthook = _unless_freed(threading.excepthook)
    shell.events.register("pre_run_cell", _begin)
    shell.events.register("post_run_cell", lambda result: _end(shell, result))


def _unless_freed(show: Callable[[threading.ExceptHookArgs], Any]) -> Callable[[threading.ExceptHookArgs], None]:
    """Show what a learner's thread raises, unless the lab frees it: the cell's own error tells of that."""

    def shown(args: threading.ExceptHookArgs) -> None:
        raised = LEARNER if args.exc_value is None else _raised(args.exc_value)
        # The lab breaks off all ranks, one a little before the other, and this one may feel it before its own turn.
        if raised == LEARNER or not group.aborted(within=time_limits.BROKEN_OFF):
            show(args)

    return shown


def last() -> dict[str, Any]:
    """Tell how the last cell ended here, or the last function that labkit ran by name and that raised.

    `request` is the message that asked for it: so an older end is not taken for a newer one's. The others are those of
    `of`; `error` is "" where nothing was raised. `aborted` is when the lab broke that group off, or None. The lab does
    so on all ranks, one a little before the other: an "operation" that failed after any rank's `aborted` failed through
    the lab too.
    """
    aborted = group.times()[1]
    broken_off = aborted if aborted is not None and aborted > _group else None
    return {**_last, "clock": timestamps.clock(), "aborted": broken_off}


def of(error: BaseException) -> dict[str, Any]:
    """Describe an exception that was just caught: its type (`error`), `at`, `clock`, `raised`, `op`, `line`, …

    `at` is when it was caught, a timestamp of the `clock`: one for all ranks of a host. `op` is the operation of
    torch.distributed or comms that it came out of, `line` the line of the cell that led there. `raised` is
    - "operation" where an operation between ranks failed under way: a connection went down, no rank came in time;
    - "lab" where the lab had broken the group off before, or interrupted the cell;
    - "learner" for everything else, torch's complaint about a wrong argument as well.
    `forgotten` is what was used whose process group is gone, see `labkit.rank.destroyed_groups`; `differs` in what the
    ranks' calls do not fit, where a `MismatchError` tells.
    """
    at = timestamps.now()
    below = _frames(error.__traceback__)
    cells = [i for i, (frame, _, _) in enumerate(below) if is_cell(frame.f_code.co_filename)]
    called = [frame for frame, _, _ in below[(cells[-1] + 1 if cells else 0) :]]
    op = frames.operation(reversed(called))
    if op is None:  # a handle's wait, or interrupted just after the call came back
        op = next((frames.passed_on(frame) for frame in called if frames.stands_between(frame)), None)
    return {
        "error": type(error).__name__,
        "at": at,
        "clock": timestamps.clock(),
        "raised": _raised(error),
        "op": op,
        "line": below[cells[0]][1] if cells else None,
        "forgotten": destroyed_groups.used(error, called),
        "differs": getattr(error, "differs", ""),
    }


def interrupted() -> None:
    """Note that the lab is about to interrupt the cell that runs."""
    global _interrupted
    _interrupted = True


def _raised(error: BaseException) -> str:
    """Tell by whom it was raised; of an exception that was raised from another one, by whom that was."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, (KeyboardInterrupt, CancelledError)):  # a cell that awaits something is cancelled
        return LAB if _interrupted else LEARNER
    if not _failed_under_way(error):
        return LEARNER
    return LAB if group.aborted() else OPERATION


def _failed_under_way(error: BaseException) -> bool:
    """Tell whether an operation failed for something that came, or did not come, from another rank.

    What torch raises in Python is about arguments, but for its own DistErrors. What it raises in C++ may be either:
    a connection that went down tells them apart, where there is one that can be asked. A call that has come to
    torch.ops is in C++, though a backend there may be written in Python, and a compiler have called it.
    """
    below = _frames(error.__traceback__)
    if not below or not isinstance(error, RuntimeError) or isinstance(error, NotImplementedError):
        return False
    frame, line, in_python = below[-1]
    if any(frames.passes_on(f) for f, *_ in below):
        return group.broken() is not False
    if in_python:
        ours = frames.in_torch(frame) or frame.f_code.co_filename == store.__file__
        return ours and isinstance(error, dist.DistError)
    if is_cell(frame.f_code.co_filename):
        return frames.waits(frame, line) and group.broken() is True
    file = frame.f_code.co_filename
    waited = frames.in_torch(frame) or frames.in_backward(frame) or frames.stands_between(frame) or file in BESIDE
    return waited and group.broken() is not False


def _frames(traceback: TracebackType | None) -> list[tuple[FrameType, int, bool]]:
    """List the frames that an exception came through, outermost first: frame, line, whether Python raised it there."""
    found = []
    for entry in _entries(traceback):
        instruction = dis.opname[entry.tb_frame.f_code.co_code[entry.tb_lasti]]
        found.append((entry.tb_frame, entry.tb_lineno, instruction in ("RAISE_VARARGS", "RERAISE")))
    return found


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it was raised from, each once."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _cut(error: BaseException | None) -> None:
    """Cut a traceback, and those that it was raised from, to the learner's own frames, where there are any."""
    for one in _chain(error):
        entries = list(_entries(one.__traceback__))
        mine = [e for e in entries if frames.is_learners(e.tb_frame)]
        mine = mine if len(mine) <= 2 * SHOWN else mine[:SHOWN] + mine[-SHOWN:]
        if mine:
            if one is error and mine[0] is not entries[0]:
                mine.insert(0, entries[0])  # IPython's own, which it leaves out when it renders
            cut = None
            for e in reversed(mine):
                cut = TracebackType(cut, e.tb_frame, e.tb_lasti, e.tb_lineno)
            one.__traceback__ = cut


def _let_go(shell: Any, error: BaseException | None) -> None:
    """Let go of an error and its frames, which Python and IPython keep with all that they hold."""
    # That may be a process group, or a tensor for which memory ran out.
    shell.InteractiveTB.tb = None
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        setattr(sys, name, None)
    for one in _chain(error):
        clear_frames(one.__traceback__)
        for entry in _entries(one.__traceback__):
            _ = entry.tb_frame.f_locals  # before Python 3.13 a copy, which IPython 8 asked for and keeps: emptied too
        one.__traceback__ = None


def note(shell: Any, error: BaseException | None) -> None:
    """Keep what is known of an exception that has left a cell, or a function that labkit ran by name."""
    global _last, _group
    if error is not None:
        _group = group.times()[0]
        _last = {"request": _request(shell), **of(error)}


def _begin(_: Any = None) -> None:
    global _interrupted
    _interrupted = False
    deferred_interrupt.spare_hooks()


def _end(shell: Any, result: Any) -> None:
    global _last, _group
    error = result.error_before_exec or result.error_in_exec
    known = _last["request"] == _request(shell) and _last["error"] == type(error).__name__
    if error is None:
        _group = group.times()[0]
        _last = {**NOTHING, "request": _request(shell), "at": timestamps.now()}
    elif not known:  # a SyntaxError is shown in another way
        note(shell, error)


def _request(shell: Any) -> str:
    return str(shell.kernel.get_parent("shell").get("header", {}).get("msg_id", ""))
