"""How many bytes of tensors a function has alive at once, beside its arguments: counted operation by operation."""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.rank import anysource, objects, recorder
from labkit.theory.record import is_cell

SETTLE = 0.002  # seconds: Gloo's threads want Python's lock to let go of a tensor that the function has let go
AROUND = ("torch/_dynamo/eval_frame.py", "torch/_compile.py")  # what torch puts around a dispatch mode
CALLS = {distributed_c10d.__file__, anysource.__file__, recorder.__file__}  # from where torch's own C++ is called
# Where comms makes what its ranks tell one another before a call: no tensor of the learner's, and no bytes of theirs.
HEADERS = {objects.exchange.__code__, objects.to_tensor.__code__}


class Peak(TorchDispatchMode):
    """Counts the memory of each tensor that an operation of torch makes, from then until it is let go.

    >>> peak = Peak()
    >>> _ = peak.around(lambda x: x.clone() + 1)(torch.ones(100))
    >>> peak.bytes  # the clone and the sum, of 400 bytes each, at one time
    800

    What torch or Gloo allocates inside an operation does not count, nor what torch.distributed does within a call.
    Every operation takes some microseconds more, so this is no run to take the time of.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._alive: dict[int, int] = {}  # a storage's address → its bytes
        self._given: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here. Else torch imports its compiler with the first operation, which takes seconds."""
        return False

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, counted whenever it is called."""

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._given = {storage._cdata for storage in _storages([args, kwargs])}
            self._alive.clear()
            with self:
                return function(*args, **kwargs)

        return counted

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, then look at what it has made or made longer."""
        out = function(*args, **(kwargs or {}))
        for storage in () if _inside_a_call() else _storages(out):
            place = storage._cdata
            if place not in self._given:
                if place not in self._alive:
                    weakref.finalize(storage, self._alive.pop, place, None)
                self._alive[place] = storage.nbytes()
        if sum(self._alive.values()) > self.bytes:
            time.sleep(SETTLE)
            self.bytes = max(self.bytes, sum(self._alive.values()))
        return out


def _inside_a_call() -> bool:
    """Whether the operation that runs is torch.distributed's own within a call, or comms' own for a header."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(AROUND):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_filename in CALLS:
        return True
    while frame is not None and not is_cell(frame.f_code.co_filename):
        if frame.f_code in HEADERS:
            return True
        frame = frame.f_back
    return False


def _storages(value: Any) -> Iterator[torch.UntypedStorage]:
    """The memory of all tensors in a value."""
    if isinstance(value, torch.Tensor):
        yield value.untyped_storage()
        if value.is_leaf and value.grad is not None:
            yield value.grad.untyped_storage()
    elif isinstance(value, torch.nn.Module):
        yield from (s for v in (*value.parameters(), *value.buffers()) for s in _storages(v))
    elif isinstance(value, dict):
        yield from (s for v in value.values() for s in _storages(v))
    elif isinstance(value, (list, tuple)):
        yield from (s for v in value for s in _storages(v))
