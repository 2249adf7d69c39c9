"""What the small tensors of each call held: when it was made, and when its data was there.

Only tensors on the CPU of at most MOST elements. As in `labkit.rank.snapshots`, their bytes are read where they lie, so
that neither torch's profiler nor its dispatcher sees it and no tensor lives longer for it. A call takes N µs.
"""

from __future__ import annotations

import ast
import ctypes
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from labkit.rank.snapshots import MOST, values
from labkit.theory.record import Held, Op, is_cell

CALLS = 300  # of one cell whose tensors are kept: the last ones
LONGEST = 16  # tensors of a list

# What torch and comms call the arguments that bring tensors and take them.
TENSORS = {
    "tensor", "tensors", "tensor_list", "input", "output", "input_list", "input_tensor", "output_tensor",
    "input_tensor_list", "output_tensor_list", "gather_list", "scatter_list", "x", "xs",
}  # fmt: skip
RESULT = "returned"  # what comms' functions return

PLAIN = (Tensor, torch.nn.Parameter)


@dataclass(slots=True)
class Copy:
    """One tensor of a call: the argument, the entry of it where it is a list, and its bytes before and after."""

    argument: str
    entry: int | None
    dtype: torch.dtype
    shape: torch.Size
    before: bytes | None
    after: bytes | None = None
    tensor: Any = None  # while an asynchronous call is under way: a weak reference to its memory, and where it lies


@dataclass(slots=True)
class Call:
    """A call, the place in the code where it was made, and where its arguments stand."""

    op: Op
    code: CodeType
    at: int
    places: Mapping[str, int]
    copies: list[Copy]


class Copies:
    """The small tensors of the last calls of one cell."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self._calls: dict[int, Call] = {}

    def before(
        self, op: Op, frame: FrameType, names: Sequence[str], given: Callable[[str], Any], places: Mapping[str, int]
    ) -> list[Tensor]:
        """Note what a call is given, and return those tensors. `frame` makes the call; `names` are its arguments."""
        tensors: list[Tensor] = []
        copies: list[Copy] = []
        for name in names:
            _note(tensors, copies, name, given(name))
        for tensor, copy in zip(tensors, copies, strict=True):
            copy.before = _read(tensor)
        self._calls[id(op)] = Call(op, frame.f_code, frame.f_lasti, places, copies)
        if len(self._calls) > CALLS:
            self._calls.pop(next(iter(self._calls)), None)
        return tensors

    def after(self, op: Op, tensors: list[Tensor], result: Any = None) -> None:
        """Note what the call's tensors hold now, and those that it has returned."""
        call = self._calls.get(id(op))
        if call is not None:
            if result is not None:
                _note(tensors, call.copies, RESULT, result)
            for tensor, copy in zip(tensors, call.copies, strict=True):
                copy.after = _read(tensor)

    def let_go(self, op: Op, tensors: list[Tensor]) -> None:
        """An asynchronous call has returned: remember its tensors without keeping them."""
        call = self._calls.get(id(op))
        if call is not None:
            for tensor, copy in zip(tensors, call.copies, strict=True):
                start = tensor.storage_offset() * tensor.element_size()
                copy.tensor = (StorageWeakRef(tensor.untyped_storage()), start, tensor.nbytes)

    def waited(self, op: Op) -> None:
        """Note what its tensors hold now, as far as they are there."""
        call = self._calls.get(id(op))
        for copy in call.copies if call else ():
            if copy.tensor is not None:
                copy.after = _read_if_there(*copy.tensor)
                copy.tensor = None

    def tell(self) -> None:
        """Write into the operations what their tensors held, under the names that the learner's code has for them."""
        for call in list(self._calls.values()):
            names = _names(call) if call.copies else {}
            call.op.held = [_told(copy, names) for copy in call.copies]


def _note(tensors: list[Tensor], copies: list[Copy], name: str, value: Any) -> None:
    """Add a tensor that is small enough, or those of a list."""
    if type(value) in PLAIN:
        if _small(value):
            tensors.append(value)
            copies.append(Copy(name, None, value.dtype, value.shape, None))
    elif isinstance(value, (list, tuple)):
        for i, entry in enumerate(value[:LONGEST]):
            if type(entry) in PLAIN and _small(entry):
                tensors.append(entry)
                copies.append(Copy(name, i, entry.dtype, entry.shape, None))


def _small(tensor: Tensor) -> bool:
    return tensor.numel() <= MOST and tensor.is_cpu and tensor.layout == torch.strided and tensor.is_contiguous()


def _read(tensor: Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def _read_if_there(weak: StorageWeakRef, start: int, size: int) -> bytes | None:
    """The bytes of a tensor whose memory may be gone."""
    storage: Any = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
    if storage is None or storage.nbytes() < start + size:
        return None
    return ctypes.string_at(storage.data_ptr() + start, size)


def _told(copy: Copy, names: Mapping[str, str]) -> Held:
    name = names.get(copy.argument, copy.argument) + ("" if copy.entry is None else f"[{copy.entry}]")
    before, after = (None if data is None else values(data, copy.dtype) for data in (copy.before, copy.after))
    return Held(name, tuple(copy.shape), before, after)


def _names(call: Call) -> dict[str, str]:
    """What the learner's code writes for each argument of a call; nothing where another's code has made the call."""
    if not is_cell(call.code.co_filename):
        return {}
    line, last, start, end = next(islice(call.code.co_positions(), call.at // 2, None))
    if line is None or last is None or start is None or end is None:
        return {}
    lines = [text.encode() for text in linecache.getlines(call.code.co_filename)[line - 1 : last]]
    if not lines:
        return {}
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    source = b"".join(lines).decode()
    try:
        node = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError):
        return {}
    called = getattr(node, "func", None)
    if not isinstance(node, ast.Call) or getattr(called, "attr", getattr(called, "id", "")) != call.op.name:
        return {}
    written = {name: node.args[i] for name, i in call.places.items() if i < len(node.args)}
    written |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    starred = any(isinstance(arg, ast.Starred) for arg in node.args)
    return (
        {}
        if starred
        else {name: " ".join((ast.get_source_segment(source, arg) or name).split()) for name, arg in written.items()}
    )
