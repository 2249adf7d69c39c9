"""Let calls between ranks wait without torch's own limits, as long as a cell runs that is debugged."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from labkit.floor import time_limits
from labkit.rank import torch_internals

_before: list[tuple[Any, timedelta]] = []  # groups, each with its own limit
_long: timedelta | None = None  # while they wait without one


def begin() -> None:
    """Lift the limits of all groups; one that is made later asks `lift`."""
    global _long
    _long = timedelta(seconds=time_limits.AT_PROMPT)
    for group in list(torch_internals.groups()):
        lift(group)


def lift(group: Any) -> None:
    """Lift the limit of a group, as long as waits have none."""
    if _long is not None and (own := torch_internals.timeout_of(group)) is not None:
        _before.append((group, own))
        torch_internals.set_timeout(_long, group)


def end() -> None:
    """Put the groups' own limits back."""
    global _long
    _long = None
    while _before:
        group, own = _before.pop()
        if group in torch_internals.groups():
            torch_internals.set_timeout(own, group)


def limit(given: timedelta) -> timedelta:
    """Return the limit of a wait that was given this one."""
    return given if _long is None else _long


def of_a_work() -> tuple[timedelta, ...]:
    """Return with what to call a work's `wait`, since Gloo gives up a send or a receive after its group's first limit.

    NCCL's would have the rank wait for the GPU, and has no limit there.
    """
    if _long is not None:
        with contextlib.suppress(RuntimeError, ValueError):
            return () if "nccl" in dist.get_backend_config() else (_long,)
    return ()
