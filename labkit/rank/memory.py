"""Count how many bytes of tensors a function or a block has alive at once, operation by operation."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import torch
from torch.distributed import distributed_c10d

from labkit.floor import time_limits
from labkit.floor.source_lines import is_cell
from labkit.floor.words import nbytes
from labkit.rank import anysource, frames, gloo, objects, recorder
from labkit.rank.nested import tensors
from labkit.rank.torch_internals import BETWEEN_RANKS, COO_PARTS, OperationMode, storage_id

LOOK = 0.0005  # seconds from one look at Gloo's threads to the next
SETTLE = 0.002  # seconds for them without a look
CALLS = {distributed_c10d.__file__, anysource.__file__, recorder.__file__}  # from where torch's own C++ is called
# Where comms makes what its ranks tell one another before a call: no tensor of the learner's, and no bytes of theirs.
HEADERS = {objects.exchange.__code__, objects.to_tensor.__code__}
ROWS, COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
SPARSE = {  # what a tensor of this layout is made of
    torch.sparse_coo: COO_PARTS,
    **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ROWS),
    **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), COLUMNS),
}


class Peak(OperationMode):
    """Counts the memory of each tensor that an operation of torch makes, from then until it is let go: see `peak`.

    >>> peak = Peak()
    >>> _ = peak.around(lambda x: x.clone() + 1)(torch.ones(100))
    >>> peak.bytes  # the clone and the sum, of 400 bytes each, at one time
    800
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._alive: dict[int, int] = {}  # a storage's address → its bytes, less what it had when it was given
        self._given: dict[int, int] = {}  # a storage's address → its bytes when it was given
        self._held: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # every storage of these two
        self._finds_given = False  # whether what an operation is handed, and is not known, was there before
        self._communicates = False
        self._patience = time_limits.GLOO_WORKS

    def __repr__(self) -> str:
        return f"at most {nbytes(self.bytes)} at once"

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function to be counted whenever it is called."""

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._begin([args, kwargs])
            with self:
                return function(*args, **kwargs)

        return counted

    def since_now(self) -> Peak:
        """Begin at zero: what exists by now counts only by what it grows."""
        self._begin([o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)])
        self._finds_given = True  # C++ may hold others: the buckets of DistributedDataParallel
        return self

    def _begin(self, given: Any) -> None:
        for table in (self._alive, self._given, self._held):
            table.clear()
        for storage in storages(given):
            self._hold(storage, self._given)

    def _hold(self, storage: torch.UntypedStorage, table: dict[int, int]) -> None:
        """Enter a storage into a table, until it is gone: its address is another's then."""
        place = storage_id(storage)
        if place not in self._held:
            table[place] = storage.nbytes()
            self._held[place] = weakref.ref(storage, functools.partial(self._forget, place))

    def _forget(self, place: int, _: Any) -> None:
        for table in (self._alive, self._given, self._held):
            table.pop(place, None)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, then look at what it has made, and what was made longer."""
        if any(hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented  # a DTensor first says which operations it is on its own part
        touched = list(storages([args, kwargs], gradients=False))
        if self._finds_given:
            for storage in touched:
                self._hold(storage, self._given)
        out = function(*args, **(kwargs or {}))
        self._communicates |= getattr(function, "namespace", "") in BETWEEN_RANKS
        if not _inside_a_call():
            made = list(storages(out, gradients=False))
            for storage in made:
                self._hold(storage, self._alive)
            self._measure(map(storage_id, [*touched, *made]))
            if sum(self._alive.values()) > self.bytes:
                self._settle()
        return out

    def _measure(self, places: Iterable[int]) -> None:
        """Note how long these storages are now: `resize_` on a storage is not an operation, and FSDP lives on it."""
        for place in places:
            storage = held() if (held := self._held.get(place)) else None
            if storage is not None:
                grown = max(0, storage.nbytes() - self._given.get(place, 0))
                if grown or place in self._alive:
                    self._alive[place] = grown

    def _settle(self) -> None:
        """Count again, before it is the most so far: what has been let go or shrunk by now is not."""
        if self._communicates:
            self._wait_for_gloo()
        with frames.looking:  # a thread that looks at what this one does holds its variables meanwhile
            pass
        self._measure(list(self._alive))
        self.bytes = max(self.bytes, sum(self._alive.values()))

    def _wait_for_gloo(self) -> None:
        """Wait until Gloo's threads have let go of the tensors of every collective that can be done by now."""
        end = monotonic() + self._patience
        while busy := gloo.at_work():
            if monotonic() > end:
                self._patience = 0.0
                break
            sleep(LOOK)
        if busy != 0:
            sleep(SETTLE)


@contextmanager
def peak() -> Iterator[Peak]:
    """Count the most bytes of tensors alive at once that a block has made; what was there before does not count.

    >>> x = torch.ones(100)
    >>> with peak() as p:
    ...     y = x.clone() + 1
    >>> p.bytes  # the clone and the sum, of 400 bytes each, at one time
    800

    In a training step these are the activations that the forward pass keeps, the gradients, the optimizer's state in
    its first step, what the computing itself needs for a moment, and the buffers that `DistributedDataParallel` and
    `fully_shard` make. A storage that was there before counts by what it has grown: `fully_shard` empties the whole
    weights after their use and fills them again.

    Does not count: what torch or Gloo allocates inside an operation, what `torch.distributed` needs within one of its
    calls, what other threads make (but for autograd's, which run the backward pass on a GPU), memory that came about
    without an operation (`torch.from_numpy`), and what the allocator of a GPU keeps in reserve. Every operation takes
    some microseconds more: do not time such a block.
    """
    counted = Peak().since_now()
    with counted:
        yield counted


def _inside_a_call() -> bool:
    """Tell whether the operation is torch.distributed's own within a call, or comms' own for a header."""
    frame = sys._getframe(1).f_back  # none where autograd runs the operation on a thread of its own
    if frame is not None and frame.f_code.co_filename in CALLS:
        return True
    while frame is not None and not is_cell(frame.f_code.co_filename):
        if frame.f_code in HEADERS:
            return True
        frame = frame.f_back
    return False


def storages(value: Any, gradients: bool = True) -> Iterator[torch.UntypedStorage]:
    """Yield the memory of all tensors in a value, and of their gradients; of a DTensor, that of this rank's part."""
    for tensor in tensors(value):
        yield from _storages(tensor)
        if gradients and tensor.is_leaf and tensor.grad is not None:
            yield from _storages(tensor.grad)


def _storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """Yield the memory of one tensor: none on the device "meta", several pieces of a sparse one."""
    if hasattr(tensor, "__tensor_flatten__"):  # a DTensor, or another that is made of tensors
        names, _ = tensor.__tensor_flatten__()
        yield from storages([getattr(tensor, name) for name in names], gradients=False)
    elif tensor.layout is not torch.strided:
        for name in SPARSE.get(tensor.layout, ()):
            yield from _storages(getattr(tensor, name)())
    elif not tensor.is_meta:
        yield tensor.untyped_storage()
