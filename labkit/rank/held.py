"""What the small tensors of each call held: when it was made, and when its data was there.

Only tensors on the CPU of at most MOST elements. As in `labkit.rank.snapshots`, their bytes are read where they lie, so
that neither torch's profiler nor its dispatcher sees it and no tensor lives longer for it. It costs
a call about 3 µs, and 4 µs for each such tensor.
"""

from __future__ import annotations

import ast
import ctypes
import linecache
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, zip_longest
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from labkit.rank.snapshots import MOST, values
from labkit.rank.torch_internals import storage_behind
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


Fact = tuple[str, int | None, torch.dtype, torch.Size]  # a tensor's argument, entry, dtype and shape
Tensors = list[tuple[str, int | None, Tensor]]  # each with its argument, and its entry where that is a list


class Call:
    """A call: the place in the code where it was made, where its arguments stand, and what their tensors held."""

    __slots__ = ("after", "at", "before", "code", "facts", "op", "places", "weak")

    def __init__(self, op: Op, frame: FrameType, places: Mapping[str, int], tensors: Tensors) -> None:
        self.op, self.code, self.at, self.places = op, frame.f_code, frame.f_lasti, places
        self.facts = [(name, entry, x.dtype, x.shape) for name, entry, x in tensors]
        self.before = [ctypes.string_at(x.data_ptr(), x.nbytes) for _, _, x in tensors]
        self.after: list[bytes | None] = []
        self.weak: list[tuple[StorageWeakRef, int, int]] = []  # while it is under way: its tensors' memory


class Copies:
    """The small tensors of the last calls of one cell."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self._calls: deque[Call] = deque(maxlen=CALLS)
        self._under_way: dict[int, Call] = {}

    def before(
        self, op: Op, frame: FrameType, names: Sequence[str], given: Callable[[str], Any], places: Mapping[str, int]
    ) -> tuple[Call, Tensors]:
        """Note what a call is given. `frame` makes it; `names` are its arguments that may be tensors."""
        tensors: Tensors = []
        for name in names:
            _note(tensors, name, given(name))
        call = Call(op, frame, places, tensors)
        self._calls.append(call)
        return call, tensors

    def after(self, call: Call, tensors: Tensors, result: Any = None) -> None:
        """Note what a call's tensors hold now, and those that it has returned."""
        if result is not None:
            _note(tensors, RESULT, result)
            call.facts += [(name, entry, x.dtype, x.shape) for name, entry, x in tensors[len(call.facts) :]]
        call.after = [ctypes.string_at(x.data_ptr(), x.nbytes) for _, _, x in tensors]

    def let_go(self, call: Call, tensors: Tensors) -> None:
        """An asynchronous call has returned: remember its tensors without keeping them."""
        call.weak = [
            (StorageWeakRef(x.untyped_storage()), int(x.storage_offset()) * x.element_size(), x.nbytes)
            for _, _, x in tensors
        ]
        self._under_way[id(call.op)] = call

    def waited(self, op: Op) -> None:
        """Note what its tensors hold now, as far as they are there."""
        call = self._under_way.pop(id(op), None)
        if call is not None:
            call.after = [_read_if_there(*weak) for weak in call.weak]
            call.weak = []

    def tell(self) -> None:
        """Write into the operations what their tensors held, under the names that the learner's code has for them."""
        for call in list(self._calls):
            names = _names(call) if call.facts else {}
            rows = zip_longest(list(call.facts), call.before, list(call.after))
            call.op.held = [_told(fact, before, after, names) for fact, before, after in rows]


def _note(tensors: Tensors, name: str, value: Any) -> None:
    """Add a tensor that is small enough, or those of a list."""
    if type(value) in PLAIN:
        if _small(value):
            tensors.append((name, None, value))
    elif isinstance(value, (list, tuple)):
        tensors += [(name, i, x) for i, x in enumerate(value[:LONGEST]) if type(x) in PLAIN and _small(x)]


def _small(tensor: Tensor) -> bool:
    plain = tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_quantized
    return plain and tensor.numel() <= MOST and tensor.is_contiguous()


def _read_if_there(weak: StorageWeakRef, start: int, size: int) -> bytes | None:
    """The bytes of a tensor whose memory may be gone."""
    storage = storage_behind(weak)
    if storage is None or storage.nbytes() < start + size:
        return None
    return ctypes.string_at(storage.data_ptr() + start, size)


def _told(fact: Fact, before: bytes | None, after: bytes | None, names: Mapping[str, str]) -> Held:
    argument, entry, dtype, shape = fact
    name = names.get(argument, argument) + ("" if entry is None else f"[{entry}]")
    held = [None if data is None else values(data, dtype) for data in (before, after)]
    return Held(name, tuple(shape), *held)


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
