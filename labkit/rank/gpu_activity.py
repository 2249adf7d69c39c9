"""Tell whether the GPU still runs something for this rank; asked on the agent's thread, which must not wait for it.

A kernel that reads a wrong address, or in which an assert fails, spoils what CUDA keeps for the process, for good.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import Any

import torch

from labkit.floor import time_limits

_waiting: Future[str] | None = None  # for the end of the kernels that ran when it was asked for


def kernels() -> dict[str, Any]:
    """Tell whether no kernel of this rank runs (`over`), and why every CUDA call of it fails, or "" (`lost`)."""
    global _waiting
    if not torch.cuda.is_initialized():
        return {"over": True, "lost": ""}
    # The wait has a thread of its own, and a second question hears of the same one.
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
