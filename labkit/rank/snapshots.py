"""A journal of what small buffers held: copied before a send or receive starts and after a receive has ended.

Only tensors on the CPU whose memory has at most MOST elements. Their bytes are read where they lie, so that neither
torch's profiler nor its dispatcher sees it and no tensor lives longer for it.
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from labkit.rank.torch_internals import storage_behind, storage_id
from labkit.theory.log import Buffer, View

MOST = 64  # elements of a buffer
BUFFERS = 32  # that are watched in one cell
ENTRIES = 8000  # of the journal
NAME = re.compile(r"[^\W\d]\w*")


class Snapshots:
    """A journal of what changed in the buffers of one cell; at a position, a buffer held its last entry before it."""

    def __init__(self, code: str = "", space: Mapping[str, Any] | None = None) -> None:
        """Watch the variables that the cell's code names in a space as well, once something is sent."""
        self._lock = threading.Lock()
        self._names = list(dict.fromkeys(NAME.findall(code)))
        self._space = space or {}
        self._watching = False
        self.buffers: list[Buffer] = []
        self._held: list[tuple[StorageWeakRef, torch.dtype]] = []  # the buffers' memory
        self._known: dict[int, int] = {}  # storage → buffer
        self._last: dict[int, bytes] = {}  # what a buffer held when the journal was last written
        self._journal: list[tuple[int, bytes]] = []

    def before(self, tensor: Tensor, line: int | None, kind: str) -> View | None:
        """Note what all watched buffers hold, and where in them this tensor lies."""
        with self._lock:
            if not self._watching:
                self._watching = True
                for _, value in self._named():
                    self._buffer(value, None, "")
            buffer = self._buffer(tensor, line, kind)
            if buffer is None:
                return None
            self._sweep()
            return View(buffer, int(tensor.storage_offset()), tensor.numel(), len(self._journal))

    def after(self, view: View | None) -> None:
        """Note what a receive has left."""
        if view is not None:
            with self._lock:
                self._sweep()
                view.until = len(self._journal)

    def last(self) -> None:
        """Note what the cell has left, and how the learner calls it."""
        with self._lock:
            if self.buffers:
                self._sweep()
                for name, value in self._named():
                    buffer = self._known.get(_storage(value))
                    if buffer is not None and not self.buffers[buffer].name:
                        self.buffers[buffer].name = name

    def journal(self) -> list[tuple[int, list[Any]]]:
        """Return every change as (buffer, its values)."""
        with self._lock:
            return [(b, values(data, self._held[b][1])) for b, data in self._journal]

    def _named(self) -> list[tuple[str, Tensor]]:
        """Find the tensors that the cell's code names, then those in lists that it names."""
        held: list[tuple[str, Any]] = [(name, self._space.get(name)) for name in self._names]
        plain = [(name, value) for name, value in held if isinstance(value, Tensor)]
        lists = [(name, value) for name, value in held if type(value) in (list, tuple) and len(value) <= BUFFERS]
        return plain + [(f"{n}[{i}]", v) for n, vs in lists for i, v in enumerate(vs) if isinstance(v, Tensor)]

    def _buffer(self, tensor: Tensor, line: int | None, kind: str) -> int | None:
        """Return the number of the buffer that a tensor lies in; None where it is not watched."""
        try:
            if not _watched(tensor) or len(self._journal) > ENTRIES:
                return None
            storage = tensor.untyped_storage()
            known = self._known.get(place := storage_id(storage))
            if known is None:
                if len(self.buffers) == BUFFERS:
                    return None
                known = self._known[place] = len(self.buffers)
                self.buffers.append(Buffer("", storage.nbytes() // tensor.element_size(), line, kind))
                self._held.append((StorageWeakRef(storage), tensor.dtype))
            if not self.buffers[known].first:
                self.buffers[known].line, self.buffers[known].first = line, kind
            return known
        except (RuntimeError, NotImplementedError):
            return None

    def _sweep(self) -> None:
        """Write into the journal what has changed."""
        for i, buffer in enumerate(self.buffers):
            if buffer.gone is not None:
                continue
            storage = storage_behind(self._held[i][0])
            if storage is None:
                buffer.gone = len(self._journal)
                continue
            data = ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""
            if self._last.get(i) != data:
                self._last[i] = data
                self._journal.append((i, data))


def _watched(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not plain or tensor.is_quantized or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return False
    storage = tensor.untyped_storage()
    return 0 < storage.nbytes() <= MOST * tensor.element_size() and storage.data_ptr() != 0


def _storage(tensor: Tensor) -> int:
    return storage_id(tensor.untyped_storage()) if tensor.layout == torch.strided else 0


def values(data: bytes, dtype: torch.dtype) -> list[Any]:
    """Read bytes as numbers that JSON carries."""
    values = torch.frombuffer(bytearray(data), dtype=dtype).tolist() if data else []
    return [v if isinstance(v, int) or (isinstance(v, float) and math.isfinite(v)) else str(v) for v in values]
