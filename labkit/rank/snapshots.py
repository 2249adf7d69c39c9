"""What small buffers held, step by step: copied before a send or receive starts and after a receive has ended.

Only tensors on the CPU whose memory has at most MOST elements. Their bytes are read where they lie, so that neither
torch's profiler nor its dispatcher sees it and no tensor lives longer for it.
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

MOST = 64  # elements of a buffer
BUFFERS = 32  # that are watched in one cell
ENTRIES = 8000  # of the journal
NAME = re.compile(r"[^\W\d]\w*")


class Snapshots:
    """A journal of what changed in the buffers of one cell.

    A position is a number of journal entries: what a buffer held then is its last entry before it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin("", {})

    def begin(self, code: str, space: dict[str, Any]) -> None:
        """Forget everything; from now on the code's own variables are watched as well, once something is sent."""
        self._names = list(dict.fromkeys(NAME.findall(code)))
        self._space = space
        self._watching = False
        self._buffers: list[dict[str, Any]] = []
        self._known: dict[int, int] = {}  # storage → buffer
        self._journal: list[tuple[int, bytes]] = []

    def before(self, tensor: Tensor, line: int | None, kind: str) -> dict[str, Any] | None:
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
            place = {"buffer": buffer, "offset": tensor.storage_offset(), "count": tensor.numel()}
            return {**place, "from": len(self._journal), "until": None}

    def after(self, view: dict[str, Any] | None) -> None:
        """Note what a receive has left."""
        if view is not None:
            with self._lock:
                self._sweep()
                view["until"] = len(self._journal)

    def last(self) -> None:
        """Note what the cell has left, and how the learner calls it."""
        with self._lock:
            if self._buffers:
                self._sweep()
                for name, value in self._named():
                    buffer = self._known.get(_storage(value))
                    if buffer is not None and not self._buffers[buffer]["name"]:
                        self._buffers[buffer]["name"] = name

    def told(self) -> dict[str, Any]:
        """The buffers and the journal as plain data."""
        with self._lock:
            buffers = [{k: v for k, v in b.items() if k not in ("ref", "dtype", "held")} for b in self._buffers]
            journal = [(b, _values(data, self._buffers[b]["dtype"])) for b, data in self._journal]
        return {"buffers": buffers, "journal": journal}

    def _named(self) -> list[tuple[str, Tensor]]:
        """The tensors that the cell's code names, then those in lists that it names."""
        held: list[tuple[str, Any]] = [(name, self._space.get(name)) for name in self._names]
        plain = [(name, value) for name, value in held if isinstance(value, Tensor)]
        lists = [(name, value) for name, value in held if type(value) in (list, tuple) and len(value) <= BUFFERS]
        return plain + [(f"{n}[{i}]", v) for n, vs in lists for i, v in enumerate(vs) if isinstance(v, Tensor)]

    def _buffer(self, tensor: Tensor, line: int | None, kind: str) -> int | None:
        """The number of the buffer that a tensor lies in; None where it is not watched."""
        try:
            if not _watched(tensor) or len(self._journal) > ENTRIES:
                return None
            storage = tensor.untyped_storage()
            known = self._known.get(storage._cdata)
            if known is None:
                if len(self._buffers) == BUFFERS:
                    return None
                known = self._known[storage._cdata] = len(self._buffers)
                size = storage.nbytes() // tensor.element_size()
                facts = {"name": "", "size": size, "line": line, "first": kind, "gone": None}
                self._buffers.append({**facts, "ref": StorageWeakRef(storage), "dtype": tensor.dtype})
            facts = self._buffers[known]
            if not facts["first"]:
                facts.update(line=line, first=kind)
            return known
        except (RuntimeError, NotImplementedError):
            return None

    def _sweep(self) -> None:
        """Write into the journal what has changed."""
        for i, facts in enumerate(self._buffers):
            if facts["gone"] is not None:
                continue
            storage: Any = torch.UntypedStorage._new_with_weak_ptr(facts["ref"].cdata)
            if storage is None:
                facts["gone"] = len(self._journal)
                continue
            data = ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""
            if facts.get("held") != data:
                facts["held"] = data
                self._journal.append((i, data))


def _watched(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not plain or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return False
    storage = tensor.untyped_storage()
    return 0 < storage.nbytes() <= MOST * tensor.element_size() and storage.data_ptr() != 0


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else 0


def _values(data: bytes, dtype: torch.dtype) -> list[Any]:
    """Bytes as numbers that JSON carries."""
    values = torch.frombuffer(bytearray(data), dtype=dtype).tolist() if data else []
    return [v if isinstance(v, int) or (isinstance(v, float) and math.isfinite(v)) else str(v) for v in values]
