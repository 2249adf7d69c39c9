"""Memory that a rank opens to the others: they put numbers into it, get them and add to them; its owner calls nothing.

    window = open_window(4)                # four numbers on every rank
    window.put(7.0, to=2, at=1)            # handed over
    window.flush()                         # now it is in rank 2's memory
    window.get(2)                          # tensor([0., 7., 0., 0.])

The ranks are on one host and map the same file (`workbook.tools.rank.shared`), which is what an MPI library does there
for `MPI_Win_allocate_shared`. The rules are MPI's: what was put is there after a `flush`, an `unlock` or a `fence`. A
library may write earlier; this window never does, so that a program which forgets to wait is wrong every time. A lock
is the operating system's, on a byte of a file: a rank that dies holds none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, BinaryIO

import torch
import torch.distributed as dist
from IPython.core.getipython import get_ipython
from torch import Tensor

from labkit.floor.errors import LabError
from labkit.floor.words import count, seconds
from workbook.tools.rank.shared import open_room

WINDOW_LOCK = 5.0  # seconds that a rank waits for a lock
LIMIT = 4000  # moves of one cell that are kept: the last ones
FEW = 8  # numbers of a move that are kept, and of a window that are told


class Window:
    """What `open_window` returns: `window.mine` is the memory that this rank shows, a tensor of one dimension.

    >>> window.put(x, to=1)                # window.mine of rank 1 holds x, once this rank has called flush or fence
    >>> window.accumulate(x, to=1)         # adds x to it; additions of several ranks do not disturb one another
    >>> window.get(1)                      # a copy of what rank 1 shows, at once
    >>> window.fence()                     # all ranks come here, and whatever was put before is there

    Raises `LabError` where there is no such rank or place.
    """

    def __init__(self, memory: list[Tensor], holders: memoryview, locks: BinaryIO) -> None:
        self.mine = memory[dist.get_rank()]
        self.patience = WINDOW_LOCK
        self._memory, self._holders, self._locks = memory, holders, locks
        self._me = dist.get_rank()
        self._held: list[int] = []
        self._handed: list[tuple[str, int, int, Tensor]] = []
        self._fences = 0
        self._moves: deque[list[Any]] = deque(maxlen=LIMIT)
        self._made = 0
        _open.add(self)

    # -- what a learner calls -----------------------------------------------------------------------------------

    def put(self, values: Any, to: int, at: int = 0) -> None:
        """Hand over numbers to write into rank `to`'s window, from place `at` on; they are copied at once."""
        self._hand("put", values, to, at)

    def accumulate(self, values: Any, to: int, at: int = 0) -> None:
        """Hand over numbers to add to those in rank `to`'s window; no other rank's addition can come in between."""
        self._hand("accumulate", values, to, at)

    def get(self, of: int, at: int = 0, size: int | None = None) -> Tensor:
        """Return a copy of what is in rank `of`'s window, from place `at` on: `size` numbers, or all of them."""
        self._there(of, at, 0)
        size = len(self.mine) - at if size is None else size
        self._there(of, at, size)
        began = time.perf_counter()
        got = self._memory[of][at : at + size].clone()
        self._note("get", of, at, got, got, began)
        return got

    def flush(self) -> None:
        """Return when all that this rank has handed over is in the windows that it was meant for."""
        handed, self._handed = self._handed, []
        for what, to, at, values in handed:
            place = self._memory[to][at : at + len(values)]
            began = time.perf_counter()
            with self._alone(to) if what == "accumulate" else contextlib.nullcontext():
                before = place[:FEW].clone()
                if what == "put":
                    place.copy_(values)
                else:
                    place += values
            self._note(what, to, at, values, before, began)

    def fence(self) -> None:
        """Flush, and return when all ranks have come here: what any rank has put before is there."""
        self.flush()
        dist.barrier()
        self._fences += 1

    def lock(self, of: int) -> contextlib.AbstractContextManager[None]:
        """Return when no other rank holds the lock of rank `of`'s window; until `unlock(of)` this rank holds it.

        >>> with window.lock(0):           # or window.lock(0) … window.unlock(0)
        ...     window.put(window.get(0) + 1, to=0)

        Only ranks that ask for the lock are kept out. Raises `LabError`, naming the holder, after `window.patience`
        seconds, or where this rank holds the lock already.
        """
        self._there(of, 0, 0)
        if of in self._held:
            raise LabError(f"Rank {self._me} holds the lock of rank {of}'s window already. Call unlock({of}) first.")
        self._take(2 * of, lambda: self._missed(of))
        self._held.append(of)
        self._holders[of] = self._me + 1
        return self._holding(of)

    def unlock(self, of: int) -> None:
        """Flush, and let others have the lock of rank `of`'s window."""
        if of not in self._held:
            raise LabError(f"Rank {self._me} does not hold the lock of rank {of}'s window. Call lock({of}) first.")
        self.flush()
        self._held.remove(of)
        self._holders[of] = 0
        fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, 2 * of)

    def __repr__(self) -> str:
        return f"a window of {count(len(self.mine), 'number')} on each of {count(len(self._memory), 'rank')}"

    # -- what the pictures read ---------------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """Return what this rank moved in the last cell, as plain data, and what its window holds now, if it is small.

        "made" counts all moves, those too that are no longer kept. A move is
        [what, rank, place, size, numbers, numbers before, began, ended, fences before it].
        """
        now = self.mine.tolist() if len(self.mine) <= FEW else None
        return {
            "moves": list(self._moves), "made": self._made, "size": len(self.mine), "now": now,
            "handed": len(self._handed),
        }  # fmt: skip

    def forget(self) -> None:
        """Forget what the last cell moved, as a new one starts."""
        self._moves.clear()
        self._made = self._fences = 0

    def _note(self, what: str, of: int, at: int, values: Tensor, before: Tensor, began: float) -> None:
        ended = time.perf_counter()
        self._made += 1
        few = len(values) <= FEW
        numbers = [values.tolist(), before.tolist()] if few else [None, None]
        self._moves.append([what, of, at, len(values), *numbers, began, ended, self._fences])

    # -- how it is done -----------------------------------------------------------------------------------------

    def _hand(self, what: str, values: Any, to: int, at: int) -> None:
        numbers = torch.as_tensor(values, dtype=self.mine.dtype).detach().to("cpu", copy=True).flatten()
        self._there(to, at, len(numbers))
        self._handed.append((what, to, at, numbers))

    def _there(self, rank: int, at: int, size: int) -> None:
        n, have = len(self._memory), len(self.mine)
        if not isinstance(rank, int) or not 0 <= rank < n:
            raise LabError(f"There is no rank {rank!r}: the window is open on ranks 0 to {n - 1}. Choose among them.")
        if at < 0 or size < 0 or at + size > have:
            raise LabError(
                f"{count(size, 'number')} from place {at} on: a window of {count(have, 'number')} has the places 0 to "
                f"{have - 1}. "
                "Choose other places, or open a larger window."
            )

    @contextlib.contextmanager
    def _holding(self, of: int) -> Iterator[None]:
        try:
            yield
        finally:
            if of in self._held:
                self.unlock(of)

    @contextlib.contextmanager
    def _alone(self, of: int) -> Iterator[None]:
        """Keep other ranks from adding to this window meanwhile."""
        self._take(2 * of + 1, lambda: f"another rank has been adding to rank {of}'s window all that time")
        try:
            yield
        finally:
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, 2 * of + 1)

    def _missed(self, of: int) -> str:
        holder = self._holders[of] - 1
        who = f"rank {holder} holds it and has not called unlock({of})" if holder >= 0 else "others were always faster"
        return f"the lock of rank {of}'s window: {who}"

    def _take(self, byte: int, why: Callable[[], str]) -> None:
        until = monotonic() + self.patience
        while True:
            try:
                return fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except (BlockingIOError, PermissionError):  # both are "taken"
                if monotonic() > until:
                    raise LabError(
                        f"Rank {self._me} has waited {seconds(self.patience)} for {why()}. Release every lock that you "
                        "take, even if an error comes in between: with window.lock(…): does that."
                    ) from None
                os.sched_yield()


_open: weakref.WeakSet[Window] = weakref.WeakSet()


def _begin(_: Any = None) -> None:
    for window in list(_open):
        window.forget()


def open_window(size: int, dtype: torch.dtype = torch.float32) -> Window:
    """Open a window of `size` numbers on every rank, all 0, on the CPU; every rank calls this.

    >>> window = open_window(4)
    >>> window.mine
    tensor([0., 0., 0., 0.])

    The memory goes with the last rank that lets go of its window. Raises `LabError` where there is no memory that
    all ranks share.
    """
    if not isinstance(size, int) or size < 1:
        raise LabError(f"A window has at least one number, not {size!r}. Write open_window(4).")
    shell = get_ipython()
    if shell is not None and _begin not in shell.events.callbacks["pre_run_cell"]:
        shell.events.register("pre_run_cell", _begin)
    room = open_room(size * dtype.itemsize)
    memory = [slot[: size * dtype.itemsize].view(dtype) for slot in room.slots]
    return Window(memory, room.flags, room.file)
