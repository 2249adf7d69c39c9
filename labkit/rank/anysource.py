"""Let a receive from any rank be interrupted.

Nothing but a message or its time-out wakes Gloo from it: no closed connection, no `abort`. So the wait stands on a
thread of its own, and the main thread waits for that one. Interrupted, it leaves the thread behind, which ends with
the time-out of the group that has been left.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from labkit.rank.torch_internals import receives_from_any


def install() -> None:
    """Wrap `Work.wait`, once a process."""
    if not hasattr(dist.Work.wait, "interruptible"):
        wait = _interruptible(dist.Work.wait)
        wait.interruptible = True  # type: ignore[attr-defined]
        dist.Work.wait = wait  # type: ignore[method-assign]


def _interruptible(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not receives_from_any(self) or threading.current_thread() is not threading.main_thread():
            return function(self, *args, **kwargs)
        done = threading.Lock()
        came: dict[str, Any] = {}

        def receive() -> None:
            try:
                came["value"] = function(self, *args, **kwargs)
            except BaseException as error:
                came["error"] = error
            finally:
                done.release()

        done.acquire()
        threading.Thread(target=receive, daemon=True).start()
        done.acquire()
        if "error" in came:
            raise came["error"]
        return came["value"]

    return wait
