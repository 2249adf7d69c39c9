"""Make a process that a rank forks (a DataLoader's worker, one of multiprocessing's, `os.fork`) one that does no harm.

It ends by a signal as any other process does: the rank's own handler asks the engine's loop, which does not run here.
It ends with the cell at the latest, and is never a second engine: what it prints goes the way that a program prints,
since ZeroMQ's sockets are the rank's. And it has the rank's connections to the others, but none of the threads that
carry calls out: a call would wait for ever, or take bytes that the rank waits for. So calls are refused.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import distributed_c10d

from labkit.floor import kernel_internals
from labkit.floor.errors import LabError
from labkit.rank import guard, recorder, torch_internals

FORKED = (
    "Only a rank's own process can communicate with other ranks, and this is one that it has forked: "
    "a DataLoader's worker, say, or one of multiprocessing's. "
    "Communicate in the loop that takes its results, or without such a process (num_workers=0)."
)
OURS = ("send", "recv", "recv_anysource")  # of a process group: what the guard does not see

_installed = False
_forked = False
_streams: list[tuple[Any, int]] = []  # what prints by way of ZeroMQ, and the descriptor that a program would print to
_forking = threading.local()


def install(shell: Any) -> None:
    """Let every process that is forked from now on be such a one; once a rank."""
    global _installed
    if not _installed and hasattr(os, "register_at_fork"):  # Windows forks nothing
        _installed = True
        shell.events.register("post_run_cell", _end)
        _streams.extend(
            (stream, fd) for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)) if kernel_internals.is_outstream(stream)
        )
        os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_begin)


def _hold_back() -> None:
    """Let a signal that is to end the child wait until the child has its own handlers."""
    _forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)


def _begin() -> None:
    global _forked
    _forked = True
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, signal.SIG_DFL)
    _let_through()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # only now: what is raised in here is lost
    guard.forbid(FORKED)
    recorder.keep_in_place()
    for name in OURS:
        setattr(dist.ProcessGroup, name, _refuse)
    dist.Work.wait = _refuse  # type: ignore[method-assign]
    torch_internals.set_group_maker(_refuse)
    for module in (dist, distributed_c10d):
        vars(module)["destroy_process_group"] = _refuse  # it would end threads that are not there
    for stream, fd in _streams:
        plain = os.fdopen(os.dup(fd), "w", 1, "utf-8", "replace")
        stream.write, stream.flush = plain.write, plain.flush


def _end(result: Any) -> None:
    """End a process that has come to the end of the cell in which the rank forked it."""
    if _forked:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if result.success else 1)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise LabError(FORKED)
