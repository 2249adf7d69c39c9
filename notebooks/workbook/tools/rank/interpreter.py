"""Watch the kernels that Triton's interpreter runs on a CPU rank: loads, stores and flags, each in symmetric memory.

The interpreter reads and writes memory by four functions of its builder, which are wrapped here, once a process. What
is read and written is noted where it lies in a buffer or in flags that `open_symmetric` has opened, and counted in
bytes everywhere. What lies nowhere, beyond the end of a tensor, is refused before it is touched.

A successful atomic operation on a flag takes a ticket: the tickets of all ranks are the order of these operations, from
which `workbook.tools.kernels.races` tells what they have ordered. A rank that asks in vain for the same flag waits for
the rank that sets it, and is recorded so.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import triton.runtime.interpreter as triton_interpreter
from torch import Tensor

from labkit.floor.errors import LabError
from labkit.floor.source_lines import is_cell
from labkit.floor.words import count
from labkit.rank import cell_record
from labkit.rank.flags import wait_begins, wait_ends
from workbook.tools.kernels.races import KEPT

FEW = 8  # numbers of a move that are kept, and of a buffer that are told
VAIN = 20  # looks at a flag in vain, after which a rank waits for it
PAUSE = 1e-4  # seconds between two looks from then on
NEEDED = ("interpreter_semantic", "_InterpreterComparison")  # names in the functions that the interpreter rewrites
LOADS, STORES, ATOMICS = "create_masked_load", "create_masked_store", ("create_atomic_cas", "create_atomic_rmw")

_open: weakref.WeakSet[Any] = weakref.WeakSet()  # of Seen
_running: list[Any] = []  # the kernel that runs, if one does
_arguments: list[tuple[str, int, int, int]] = []  # of the running kernel: name, first address, end, bytes of a number


class Seen:
    """What the kernels of one rank did in one symmetric memory in the last cell.

    An event is a row: what, owner, first place, end, program, line, and for an atomic operation its ticket, how it
    orders ("acq_rel", "relaxed") and among whom ("sys", "gpu"). `late`, in seconds, holds this rank up wherever it goes
    over from numbers to flags, or back: what another rank does too early then shows.
    """

    def __init__(self, room: Any, buffers: list[Tensor], flags: list[Tensor], memory: Any) -> None:
        self.room, self.buffers, self.flags = room, buffers, flags
        self.memory = weakref.ref(memory)
        self.me = dist.get_rank()
        self.late = 0.0
        self.spoilt = False  # whether a kernel was broken off in it
        self.forget()
        _open.add(self)

    def forget(self) -> None:
        """Forget what the last cell did, as a new one starts."""
        self.events: list[list[Any]] = []
        self.moves: list[list[Any]] = []
        self.made = self.phase = 0
        self.program: tuple[int, ...] = ()
        self.at_flags = False
        self.met: dict[int, int] = {}  # address of a flag → what this rank last saw there
        self.calls = cell_record.current.made  # that communicate, of those that were looked at

    def told(self) -> dict[str, Any]:
        """Return the last cell as plain data: for `lab.moves`, and for `workbook.tools.kernels.races`."""
        mine = self.buffers[self.me]
        self.hear()
        return {
            "what": "buffer", "moves": self.moves, "made": self.made, "size": len(mine), "handed": 0,
            "now": mine.tolist() if len(mine) <= FEW else None, "events": self.events,
        }  # fmt: skip

    # -- what happens ---------------------------------------------------------------------------------------------

    def note(self, what: str, owner: int, first: int, end: int, *more: Any) -> None:
        """Keep an event of the running kernel, or of the host where none runs, and the meetings before it."""
        if not _arguments:
            self.hear()
        if len(self.events) < KEPT:
            self.events.append([what, owner, first, end, _program(), _line(), *more])

    def hear(self) -> None:
        """Note the collective calls since this rank looked last: what comes after one has an order, too."""
        cell = cell_record.current
        new, self.calls = max(0, cell.made - self.calls), cell.made
        for op in list(cell.ops)[len(cell.ops) - new :] if new else ():
            met = op.kind == "collective" and op.done is not None and op.primitive
            if met and all(met.needs(r, op.peer, op.ranks) >= set(op.ranks) - {r} for r in op.ranks):
                self.events.append(["meeting", 0, op.nth, op.nth, (), ("", 0), 0, op.group])

    def filled(self, size: int) -> None:
        """Note that the host writes into this rank's own buffer."""
        self.note("fill", self.me, 0, size)

    def touched(self, what: str, owner: int, at: np.ndarray, values: np.ndarray) -> None:
        """Note a load or a store of numbers in a buffer, one event a run of places."""
        self.turn(to_flags=False)
        for run in np.split(np.arange(len(at)), np.flatnonzero(np.diff(at) != 1) + 1):
            first, size = int(at[run[0]]), len(run)
            self.note(what, owner, first, first + size)
            self.made += 1
            if len(self.moves) < KEPT:
                now, shown = time.perf_counter(), _few(values[run])
                before = _few(self.buffers[owner][first : first + size]) if what == "store" else shown
                kind = "put" if what == "store" else "get"
                self.moves.append([kind, owner, first, size, shown, before, now, now, self.phase])

    def turn(self, to_flags: bool) -> None:
        """Note that the rank goes over from numbers to flags, or back; it may be held up there."""
        if _program() != self.program:
            self.program, self.at_flags = _program(), False
        if to_flags != self.at_flags:
            self.at_flags = to_flags
            self.phase += not to_flags
            if self.late:
                time.sleep(self.late)

    @contextlib.contextmanager
    def ticket(self) -> Iterator[int]:
        """Hold the others off, and give this operation its number among those of all ranks."""
        fcntl.lockf(self.room.file, fcntl.LOCK_EX, 1)
        try:
            self.room.flags[0] += 1
            yield self.room.flags[0]
        finally:
            fcntl.lockf(self.room.file, fcntl.LOCK_UN, 1)


def begin(_: Any = None) -> None:
    """Forget what the last cell did, as a new one starts."""
    for seen in list(_open):
        seen.forget()


# -- the interpreter's own functions, wrapped -----------------------------------------------------------------------


def install() -> None:
    """Watch the interpreter, once a process."""
    builder, executor = triton_interpreter.interpreter_builder, triton_interpreter.GridExecutor
    if hasattr(builder, "watched"):
        return
    builder.watched = True
    setattr(builder, LOADS, _loads(getattr(builder, LOADS)))
    setattr(builder, STORES, _stores(getattr(builder, STORES)))
    for name in ATOMICS:
        setattr(builder, name, _atomics(getattr(builder, name)))
    builder.create_barrier = _barriers(builder.create_barrier)
    executor.__call__ = _launches(executor.__call__)
    kernel = triton_interpreter.InterpretedFunction
    kernel.__call__ = _calls(kernel.__call__)
    kernel.__wrapped__ = property(lambda self: self.fn)  # for `??`
    kernel.__doc__ = "A kernel, which Triton's interpreter runs."
    rewriter = triton_interpreter.FunctionRewriter
    rewriter._compile_and_exec = _rewrites(rewriter._compile_and_exec)


def _launches(function: Callable[..., None]) -> Callable[..., None]:
    """Run a kernel with its arguments known; an error inside it is raised as it is."""

    @functools.wraps(function)
    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        for name, tensor in tensors.items():
            _refuse(name, tensor)
        for seen in list(_open):
            seen.note("launch", seen.me, 0, 0)
        _arguments[:] = [(name, t.data_ptr(), _end(t), t.itemsize) for name, t in tensors.items()]
        _running.append(self.fn)
        try:
            with np.errstate(all="ignore"):  # a GPU does not warn either
                function(self, *args, **kwargs)
        except triton_interpreter.InterpreterError as error:
            raise _cause(error) from None
        except KeyboardInterrupt as error:
            wait_ends(error)
            for seen in _open:
                seen.spoilt |= any(t is memory.flags for t in tensors.values() if (memory := seen.memory()))
            raise
        finally:
            _arguments.clear()
            _running.clear()
            for seen in list(_open):
                seen.note("over", seen.me, 0, 0)
            wait_ends()

    return launched


def _rewrites(function: Callable[..., Any]) -> Callable[..., Any]:
    """Put into a learner's namespace only what a rewritten kernel needs there, not all that the interpreter knows."""

    @functools.wraps(function)
    def rewritten(self: Any, *args: Any) -> Any:
        space = self.fn.__globals__
        before = {*space, *NEEDED}
        try:
            return function(self, *args)
        finally:
            for name in [name for name in space if name not in before]:
                del space[name]

    return rewritten


def _cause(error: BaseException) -> BaseException:
    """Return what went wrong in a kernel, with a traceback that has the learner's line."""
    chain = [error]
    while isinstance(chain[-1], triton_interpreter.InterpreterError) and chain[-1].__cause__:
        chain.append(chain[-1].__cause__)
    for one in reversed(chain):
        if any(is_cell(frame.filename) for frame in traceback.extract_tb(one.__traceback__)):
            return chain[-1].with_traceback(one.__traceback__)
    return chain[-1]


def _calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a kernel call another one, and nobody else."""

    @functools.wraps(function)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _running:
            raise LabError(
                f"{self.__name__} is a kernel. Say in brackets how many programs to launch: {self.__name__}[(1,)](…)."
            )
        return function(self, *args, **kwargs)

    return called


def _refuse(name: str, tensor: Tensor) -> None:
    """Refuse memory in which a kernel was broken off, and a tensor in it, since all of an argument is written back."""
    storage = tensor.untyped_storage().data_ptr()
    if any(seen.spoilt and (memory := seen.memory()) and tensor is memory.flags for seen in _open):
        raise LabError(
            "A kernel was broken off in this memory, and its flags are as they were then. Open it anew: "
            "memory = open_symmetric(…), on all ranks."
        )
    if any(seen.buffers[0].untyped_storage().data_ptr() == storage for seen in _open):
        raise LabError(
            f"The argument {name} lies in symmetric memory. A kernel reaches that by addresses: give it memory.buffers."
        )


def _end(tensor: Tensor) -> int:
    """Return the address behind a tensor's last number."""
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr() + reach * tensor.itemsize * (tensor.numel() > 0)


def _loads(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def load(ptrs: Any, mask: Any, other: Any, *more: Any) -> Any:
        held = mask.data.astype(bool)  # what is made of whole numbers is a mask, too
        where = _lies(ptrs, held, "tl.load reads")
        result = function(ptrs, mask, _anything(ptrs) if other is None else other, *more)
        _noted("load", where, ptrs, held, result.data)
        return result

    return load


def _anything(ptrs: Any) -> Any:
    """Return what a masked load without `other=` finds where its mask is false: on a GPU that may be any number."""
    dtype = ptrs.get_element_ty()
    kind = triton_interpreter._get_np_dtype(dtype)
    whole = 0x7FC0 if dtype.is_bf16() else None if np.dtype(kind).kind == "f" else np.iinfo(kind).max // 3 * 2
    odd = np.full(ptrs.data.shape, np.nan if whole is None else whole, kind)
    return triton_interpreter.TensorHandle(odd, dtype)


def _stores(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def store(ptrs: Any, value: Any, mask: Any, *more: Any) -> Any:
        held = mask.data.astype(bool)
        where = _lies(ptrs, held, "tl.store writes")
        _noted("store", where, ptrs, held, value.data)
        return function(ptrs, value, mask, *more)

    return store


def _barriers(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def barrier(*args: Any) -> Any:
        for seen in list(_open):
            seen.note("barrier", seen.me, 0, 0)
        return function(*args)

    return barrier


Lies = list[tuple[Any, int, bool, np.ndarray]]  # memory, owner, whether it is a flag, which of the addresses


def _lies(ptrs: Any, mask: np.ndarray, does: str) -> Lies | None:
    """Find in which buffers and flags these addresses lie; None for arguments. Raises `LabError` for no memory."""
    at = ptrs.data[mask] if ptrs.data.shape == mask.shape else ptrs.data.flatten()
    if not at.size:
        return None
    low, high = int(at.min()), int(at.max())
    if any(start <= low and high < end for _, start, end, _ in _arguments):
        return None
    found: Lies = []
    left = np.ones(at.shape, bool)
    for seen in list(_open):
        for flags, tensors in ((False, seen.buffers), (True, seen.flags)):
            for owner, tensor in enumerate(tensors):
                inside = (at >= tensor.data_ptr()) & (at < _end(tensor))
                if inside.any():
                    found.append((seen, owner, flags, inside))
                    left &= ~inside
    for _, start, end, _ in _arguments:
        left &= ~((at >= start) & (at < end))
    if left.any():
        raise LabError(_beyond(int(at[left][0]), does, masked=not mask.all()))
    return found


def _beyond(address: int, does: str, masked: bool) -> str:
    """Say beyond which tensor's end an address lies: of those that begin before it the nearest one."""
    known = [(start, f"the argument {name}", (end - start) // size, size) for name, start, end, size in _arguments]
    for seen in list(_open):
        for owner, tensor in enumerate(seen.buffers):
            known.append((tensor.data_ptr(), f"rank {owner}'s buffer", len(tensor), tensor.itemsize))
    where, line = _line()
    at = f" (line {line} of {where})"
    before = [one for one in known if one[0] <= address]
    if not before:
        return f"{does} where there is no tensor{at}. Add whole numbers to a pointer that the kernel was given."
    start, name, size, width = max(before)
    place = (address - start) // width
    said = f"{does} beyond the end of {name}{at}: number {place}, and it has {count(size, 'number')}, from 0 on."
    if name.endswith(("buffers", "flags")):
        return f"{said} That is a table of addresses: buffer(buffers, r, x) is the pointer to rank r's numbers."
    if masked:
        return f"{said} Its mask is true there: look at the place, and at the mask."
    return f"{said} On a GPU nothing would stop it. Give it a mask that is false from there on: mask=at < size."


def _noted(what: str, where: Lies | None, ptrs: Any, mask: np.ndarray, values: np.ndarray) -> None:
    """Count the bytes of a load or a store, and note what of it lies in symmetric memory."""
    size = int(mask.sum()) * (ptrs.get_element_ty().primitive_bitwidth // 8)
    table = where is None and _is_table(ptrs.data, mask)
    flags = where is not None and all(flag for _, _, flag, _ in where)
    if not (flags or table):
        cell_record.current.moved = (cell_record.current.moved or 0) + size
    if not where:
        return
    at, values = ptrs.data[mask], np.broadcast_to(values, mask.shape)[mask]
    for seen, owner, flag, inside in where:
        tensor = (seen.flags if flag else seen.buffers)[owner]
        places = (at[inside].astype(np.int64) - tensor.data_ptr()) // tensor.itemsize
        if flag:
            seen.note(f"{what} flag", owner, int(places[0]), int(places[-1]) + 1)
            if what == "load":
                _asked(seen, owner, int(places[0]), int(at[inside][0]), int(values[inside][0]))
        else:
            seen.touched(what, owner, places, _numbers(values[inside], tensor.dtype))


def _is_table(at: np.ndarray, mask: np.ndarray) -> bool:
    """Tell whether a load reads addresses: those are no part of what the kernel moves."""
    first = int(at[mask].min()) if mask.any() else 0
    tables = (t for seen in _open if (memory := seen.memory()) for t in (memory.buffers, memory.flags))
    return any(t.data_ptr() <= first < _end(t) for t in tables)


def _atomics(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give an atomic operation on a flag its ticket, unless it finds the flag as it last was, and changes nothing."""

    @functools.wraps(function)
    def atomic(*args: Any) -> Any:
        ptr = next(a for a in args if hasattr(getattr(a, "dtype", None), "element_ty"))
        where = _lies(ptr, np.ones(ptr.data.shape, bool), "an atomic operation works")
        if not where or len(where) > 1 or ptr.data.size != 1:
            return function(*args)
        seen, owner, flag, _ = where[0]
        tensor = (seen.flags if flag else seen.buffers)[owner]
        address = int(ptr.data.flat[0])
        place = (address - tensor.data_ptr()) // tensor.itemsize
        seen.turn(to_flags=flag)
        cas = function.__name__ == ATOMICS[0]
        if flag and cas and (found := _peek(address)) != int(args[1].data.flat[0]):
            _asked(seen, owner, place, address, found)
            return triton_interpreter.TensorHandle(np.full_like(args[1].data, found), args[1].dtype.scalar)
        with seen.ticket() as ticket:
            result = function(*args)
            changed = _peek(address) != (old := int(result.data.flat[0])) if flag else True
        if changed or cas or seen.met.get(address) != old or not _looks:
            sem, scope = (str(a).rpartition(".")[2].lower() for a in args[-2:])
            seen.note("atomic" if flag else "accumulate", owner, place, place + 1, ticket, sem, scope)
        if not flag:
            added, now = _few(_numbers(args[2].data.flatten(), tensor.dtype)), time.perf_counter()
            seen.moves.append(["accumulate", owner, place, 1, added, [old], now, now, seen.phase])
            seen.made += 1
        if changed or cas:
            _came()
        else:
            _asked(seen, owner, place, address, old)
        return result

    return atomic


def _peek(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


_vain: dict[int, tuple[int, int, int]] = {}  # flags looked at since the last step on: owner, place and value of each
_looks = 0  # at flags, in vain, since then


def _came() -> None:
    """Note that this rank has got a step on: a flag was changed by it, or has changed."""
    global _looks
    _looks = 0
    _vain.clear()
    wait_ends()


def _asked(seen: Seen, owner: int, place: int, address: int, value: int) -> None:
    """Note that a flag is still as it was: after many times in a row this rank waits for the one that sets it."""
    global _looks
    if seen.met.get(address) != value:
        _came()
    seen.met[address] = value
    _vain[address] = owner, place, value
    _looks += 1
    if _looks >= VAIN:
        time.sleep(PAUSE)  # else neither the other ranks nor the lab's questions have their turn
    if _looks == VAIN:
        # A rank that looks at several flags in turn waits for those that are not up yet, or not taken down by another.
        open_ = [flag for flag in _vain.values() if (flag[0] == seen.me) == (flag[2] == 0)]
        owner, place, _ = min(open_ or [(owner, place, value)])
        by = place % len(seen.flags)  # as `workbook.tools.rank.kernels.flag` has them
        wait_begins(owner if owner != seen.me else by if by != seen.me else None)


# -- small things -----------------------------------------------------------------------------------------------------


def _program() -> tuple[int, ...]:
    return tuple(getattr(triton_interpreter.interpreter_builder, "grid_idx", ())) if _arguments else ()


def _line() -> tuple[str, int]:
    """Return the innermost function that is neither Triton's nor of this module, and its line."""
    own = (__file__, os.path.dirname(triton_interpreter.__file__).rpartition("/")[0])
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    return frame.f_code.co_name, frame.f_lineno


def _numbers(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return numbers as they are: the interpreter has bfloat16 as whole numbers."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(values.astype(np.uint16).view(np.int16)).view(torch.bfloat16).float().numpy()
    return values


def _few(values: np.ndarray | Tensor) -> list[Any] | None:
    return values.tolist() if len(values) <= FEW else None
