"""Let a cell with `await` have the main thread until it ends, like any other cell.

ipykernel would leave the main thread to the engine's loop while such a cell waits. The engine would then run the next
message beside it, and not know where an interrupt should go. So the rank's cells have a loop of their own, which runs
as long as a cell awaits. A task that outlives its cell goes on in the next cell that awaits.
"""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Coroutine
from types import FrameType
from typing import Any

from labkit.floor import time_limits
from labkit.rank.frames import callers, rests_in_loop

_loop: asyncio.AbstractEventLoop | None = None
_cell: asyncio.Task[Any] | None = None  # that runs in it
_engines: asyncio.AbstractEventLoop | None = None  # the loop in which the engine runs a cell


def install(shell: Any) -> None:
    """Let the engine's shell run its cells in their loop; a cell without `await` may make tasks for later ones."""
    shell.loop_runner = run_awaiting
    for event, callback in (("pre_run_cell", _enter), ("post_run_cell", _leave)):
        if callback not in shell.events.callbacks[event]:
            shell.events.register(event, callback)


def run_awaiting(cell: Coroutine[Any, Any, Any]) -> Any:
    """Run a cell, or other code that awaits, to its end. Where it fails, the tasks that it has begun end as well."""
    global _cell
    outer = _get_running_loop()
    _set_running_loop(None)  # asyncio runs no loop inside another one
    loop, well = _cells_loop(), False
    others = asyncio.all_tasks(loop)
    try:
        _cell = loop.create_task(cell)
        result = _until_done(loop, _cell)
        well = getattr(result, "success", True)  # IPython tells a cell's error rather than raise it
        return result
    finally:
        begun = asyncio.all_tasks(loop) - others
        if begun and not well:
            for task in begun:
                task.cancel()
            loop.run_until_complete(asyncio.wait(begun, timeout=time_limits.TASKS_CANCELLED))
        _cell = None
        _set_running_loop(outer)


def unfinished() -> bool:
    """Tell whether a task of a cell's is not done."""
    return _loop is not None and bool(asyncio.all_tasks(_loop) - {_cell})


def interrupt(frame: FrameType | None) -> bool:
    """Cancel the cell, if it rests in its loop in this frame of the main thread; tell whether it does."""
    if _loop is None or _cell is None or not rests_in_loop(callers(frame)):
        return False
    _loop.call_soon_threadsafe(_cell.cancel)  # the way that wakes the loop
    return True


def _until_done(loop: asyncio.AbstractEventLoop, cell: asyncio.Task[Any]) -> Any:
    while True:
        try:
            return loop.run_until_complete(cell)
        except KeyboardInterrupt:
            if cell.done():
                raise
            cell.cancel()  # the interrupt has hit a task beside it, and asyncio lets it through


def _cells_loop() -> asyncio.AbstractEventLoop:
    global _loop
    if _loop is None or _loop.is_closed():
        _loop = asyncio.new_event_loop()
        _loop.set_exception_handler(_complain)
    return _loop


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Show, as asyncio does, an error that was not waited for; not an interrupt, with which the cell has ended."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


def _enter(_: Any = None) -> None:
    global _engines
    loop = _cells_loop()
    if (running := _get_running_loop()) is not loop:  # as it is already where a cell awaits
        _engines = running
        _set_running_loop(loop)


def _leave(_: Any = None) -> None:
    if _get_running_loop() is _loop and not _cells_loop().is_running():
        _set_running_loop(_engines)
