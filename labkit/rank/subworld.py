"""Be one of the first n ranks for a while, as if there were no others.

A sub-group takes the default group's place, so that `dist.send(x, 1)`, `dist.get_rank()`, `rank` and `world_size` mean
what they mean in a world of that size. To join a real one instead would take the learner's own groups along.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, MutableMapping
from datetime import timedelta
from time import sleep
from types import FrameType
from typing import Any

import torch.distributed as dist

from labkit.floor import time_limits
from labkit.rank import guard, torch_internals
from labkit.rank.board import FileBoard, StoreBoard
from labkit.rank.deferred_interrupt import postponed

_groups: dict[int, Any] = {}
_boards: dict[int, FileBoard | StoreBoard] = {}  # where the ranks of each meet after one of several calls
_made: list[Any] = []  # groups of code that has ended here, and on another rank perhaps not yet


def make(n: int, limit: float, count: int) -> None:
    """Make the sub-group of the first n ranks; every rank of the world calls this."""
    # Its number is given: a learner's cells may have made different numbers of groups on different ranks.
    torch_internals.number_groups_from(count)
    _groups[n] = dist.new_group(list(range(n)), timeout=timedelta(seconds=limit))
    if n in _boards:  # of a group that went with a heal
        _boards[n].close()
    if dist.get_rank() < n:
        _boards[n] = guard.board_for(_groups[n], "labkit-calls")


@contextlib.contextmanager
def one_call(n: int, nth: int) -> Iterator[None]:
    """Make one of several calls as one of n ranks: groups that it makes are its own, and temporary."""
    with temporary_groups(), _meeting_place(_groups[n], f"{nth}/"):
        yield


def any_rank(n: int, nth: int, said: bool) -> bool:
    """Meet the other ranks of the first n once all have made call `nth`, a new number; tell whether one says so."""
    # In a collective a rank could meet another one that is still in a call of the learner's.
    board = _boards[n]
    board.write(nth, bytes([said]))
    while len(told := board.read(nth)) < n:
        sleep(time_limits.SUBWORLD_LOOK)
    return bytes([True]) in told.values()


def destroy(count: int) -> None:
    """Destroy the sub-groups, and the groups that functions made. Groups are numbered from `count` now."""
    destroy_temporary()
    _destroy(_groups.values())
    for board in _boards.values():
        board.remove()
    _groups.clear()
    _boards.clear()
    torch_internals.number_groups_from(count)


@contextlib.contextmanager
def temporary_groups() -> Iterator[None]:
    """Note the groups that are made inside, for `destroy_temporary`."""
    before = set(torch_internals.groups())
    try:
        yield
    finally:
        _made.extend(group for group in torch_internals.groups() if group not in before and group not in _made)


def destroy_temporary() -> None:
    """Destroy the `temporary_groups`, in the order in which they were made; the code has ended on every rank."""
    # A rank that destroys a group when its own function ends takes it from the others: one that still connects to it,
    # or waits in it for good, would get "Connection closed by peer".
    _destroy(_made)
    _made.clear()


def _destroy(groups: Iterable[Any]) -> None:
    """Leave these groups, as far as they are there: after a heal none is."""
    with contextlib.ExitStack() as each:
        for group in groups:
            if group in torch_internals.groups():
                each.callback(dist.destroy_process_group, group)


class Gate:
    """Holds Stop's signal back while a learner's function runs: it breaks off the function, and not what is around it.

    >>> with Gate() as gate:  # an interrupt waits
    ...     try:
    ...         with gate.opened():  # here it is raised, also one that came before
    ...             signal.raise_signal(signal.SIGINT)
    ...     except KeyboardInterrupt:
    ...         signal.raise_signal(signal.SIGINT)  # not here: this has to be finished
    """

    def __init__(self) -> None:
        self._open = False
        self._came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        if self._open and postponed(frame):
            return
        self._came = True
        if self._open:
            self._open = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Let an interrupt through."""
        try:
            self._open = not self._came
            if self._came:
                raise KeyboardInterrupt
            yield
        finally:
            self._open = False

    def __enter__(self) -> Gate:
        self._before = signal.signal(signal.SIGINT, self)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)


@contextlib.contextmanager
def one_of(n: int, count: int, space: MutableMapping[str, Any]) -> Iterator[None]:
    """Be one of n ranks inside; groups that are made meanwhile are numbered from `count`, and temporary.

    Those of the time before go now: the caller has heard from all ranks that were in them. `space` is where the
    learner's `rank` and `world_size` are. However it is left, all is put back, step by step in reverse, also where one
    step fails. Nothing of it may be interrupted: see `Gate`. A world that was destroyed meanwhile stays destroyed, for
    the lab to heal.
    """
    destroy_temporary()
    world = dist.group.WORLD
    with contextlib.ExitStack() as undo:
        undo.callback(_assert_in, world)
        undo.enter_context(temporary_groups())
        undo.enter_context(_put(space, rank=dist.get_rank(), world_size=n))
        undo.enter_context(_put(os.environ, WORLD_SIZE=str(n)))
        undo.callback(_return_to, world)
        undo.enter_context(_meeting_place(_groups[n], f"{count}/"))
        torch_internals.set_default_group(_groups[n])
        torch_internals.number_groups_from(count)  # groups meet under their number, which all ranks must share
        undo.enter_context(guard.shows_what_is_spoiled())
        yield


@contextlib.contextmanager
def _meeting_place(group: Any, name: str) -> Iterator[None]:
    """Let groups that are made in this one meet in a place of their own: some are named by their ranks only."""
    # Else `new_group(ranks, use_local_synchronization=True)` would find the addresses that an earlier run left there.
    known = torch_internals.groups()
    backend, store = known[group]
    known[group] = backend, dist.PrefixStore(name, store)
    try:
        yield
    finally:
        if group in known:
            known[group] = backend, store


def _return_to(world: Any) -> None:
    """Make the world the default group again; where it is no more, leave what has taken its place."""
    if world in torch_internals.groups():
        torch_internals.set_default_group(world)
    elif dist.is_initialized():
        dist.destroy_process_group()


def _assert_in(world: Any) -> None:
    assert dist.group.WORLD in (world, None), "the default group was not put back"


@contextlib.contextmanager
def _put(mapping: MutableMapping[str, Any], **values: Any) -> Iterator[None]:
    before = {name: mapping[name] for name in values if name in mapping}
    mapping.update(values)
    try:
        yield
    finally:
        for name in values:
            mapping.pop(name, None)
        mapping.update(before)
