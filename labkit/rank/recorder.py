"""What every rank did: each send, receive and collective of the last cell, and when it was entered and left.

The Python functions of `torch.distributed` are wrapped once a process, torch's signature and source kept
(`dist.send??` shows torch's). So calls that DDP and FSDP2 make through these functions are recorded too; what torch
starts inside C++ (DDP's own bucket all-reduces, NCCL's kernels) is not. A call within a call (the broadcast under
`broadcast_object_list`, everything under `comms`) counts as its outermost one.

A record costs a rank alone 4 to 20 µs; two ranks on two cores were seen to take 30 to 80 µs longer for a small
broadcast and 100 to 160 µs for a send and its wait: pictures are to look at, `timed` is the clock. Times are
`perf_counter_ns`, which Linux reads from CLOCK_MONOTONIC: one clock for all processes of a host.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from labkit.rank import comms
from labkit.rank.snapshots import Snapshots
from labkit.theory.primitives import PRIMITIVES

LIMIT = 2000  # operations of one cell that are kept: the last ones
MAIN = threading.main_thread().ident or 0

_records: deque[dict[str, Any]] = deque(maxlen=LIMIT)
_snapshots = Snapshots()
_count = itertools.count()
_nth: dict[tuple[int, ...], int] = {}  # how many collectives a group has had in this cell
_works: dict[int, tuple[weakref.ref[Any], list[dict[str, Any]]]] = {}
_inside = threading.local()
_wrapped: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = []  # where, its name, torch's, ours
_cell: dict[str, Any] = {"on": False, "began": 0, "made": 0, "space": {}, "peers": None}


def install(shell: Any) -> None:
    """Wrap torch's functions, once, and let every cell of this engine begin with an empty record."""
    if not hasattr(dist.send, "recorded"):
        for p in PRIMITIVES.values():
            for name, what in ((name, f.data) for f in p.functions for name in f.names if hasattr(dist, name)):
                _wrap(name, _recording(getattr(dist, name), name, p.kind, what, p.other), distributed_c10d, dist)
            if p.comms is not None:
                ours = getattr(comms, p.name)
                _wrap(p.name, _recording(ours, f"comms.{p.name}", p.kind, p.comms, p.other), comms)
        _wrap("batch_isend_irecv", _batching(dist.batch_isend_irecv), distributed_c10d, dist)
        _wrap("wait", _waiting(dist.Work.wait), dist.Work)  # the class's: a Work stays itself
        _put(ours=True)
    _cell["space"] = shell.user_ns
    for event, callback in (("pre_run_cell", begin), ("post_run_cell", end)):
        if callback not in shell.events.callbacks[event]:
            shell.events.register(event, callback)


def confine(n: int | None) -> None:
    """While a function is checked among n ranks: refuse a peer beyond them, which Gloo would crash on or wait for."""
    _cell["peers"] = n


def _wrap(name: str, wrapper: Callable[..., Any], *places: Any) -> None:
    wrapper.recorded = True  # type: ignore[attr-defined]
    _wrapped.extend((place, name, vars(place)[name], wrapper) for place in places)  # a method as its class has it


def _put(ours: bool) -> None:
    """Our wrappers in place of the functions, or the functions themselves."""
    for place, name, function, wrapper in _wrapped:
        setattr(place, name, wrapper if ours else function)


def begin(info: Any = None) -> None:
    """A cell starts: forget the last one."""
    global _count
    _inside.call = False
    _put(ours=True)  # both stand already, unless a Stop came just as `paused` or a call ended
    _records.clear()
    _nth.clear()
    _works.clear()
    _snapshots.begin(getattr(info, "raw_cell", None) or "", _cell["space"])
    _count = itertools.count()
    _cell.update(on=True, began=time.perf_counter_ns(), made=0)


def end(_: Any = None) -> None:
    """A cell has ended: what runs between cells, `lab.look` for instance, is nobody's business."""
    _cell["on"] = False
    _snapshots.last()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """What runs inside leaves no record and costs none: `timed` measures torch, not the recorder.

    Torch's functions stand in their places meanwhile. A wrapper that only passes on would cost a small call 4 %.
    """
    before = getattr(_inside, "call", False)
    _inside.call = True
    try:
        if not before:
            _put(ours=False)
        yield
    finally:
        _inside.call = before
        if not before:
            _put(ours=True)


def records() -> dict[str, Any]:
    """The last cell's operations as plain data, and what is needed to compare this rank's times with others'."""
    kept = [_plain(r) for r in list(_records)]
    return {
        "ops": kept,
        "dropped": _cell["made"] - len(kept),
        "began": _cell["began"],
        **_snapshots.told(),
        "host": socket.gethostname(),
        "wall": time.time_ns() - time.perf_counter_ns(),
    }


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """A record as JSON carries it."""
    dtype, shape = record["dtype"], record["shape"]
    return {
        **record,
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        "shape": None if shape is None else list(shape),
        "reduce": _reduction(record["reduce"]) if "reduce" in record["op"] else None,
    }


# -- wrappers -----------------------------------------------------------------------------------------------------


def _recording(function: Callable[..., Any], op: str, kind: str, what: str, other: str) -> Callable[..., Any]:
    """The same function, which leaves a record; nothing about its result or its exceptions changes."""
    places = {name: i for i, name in enumerate(inspect.signature(function).parameters)}

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if not _cell["on"] or getattr(_inside, "call", False):
            return function(*args, **kwargs)

        def given(name: str) -> Any:
            i = places.get(name)
            return None if i is None else args[i] if i < len(args) else kwargs.get(name)

        record = _begun(op, kind, given(what), other, given)
        if record is None:
            return function(*args, **kwargs)
        _inside.call = True
        record["entered"] = time.perf_counter_ns()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            record["left"] = time.perf_counter_ns()
            record["error"] = type(error).__name__
            raise
        finally:
            _inside.call = False
        record["left"] = time.perf_counter_ns()
        _done(record, result)
        return result

    return recorded


def _batching(function: Callable[..., Any]) -> Callable[..., Any]:
    """Each send and receive of a batch leaves a record of its own, with the batch's name."""

    @functools.wraps(function)
    def batched(*args: Any, **kwargs: Any) -> Any:
        if not _cell["on"] or getattr(_inside, "call", False):
            return function(*args, **kwargs)
        _inside.batch = []
        try:
            works = function(*args, **kwargs)
            if len(works) == 1 and len(_inside.batch) > 1:  # NCCL: one Work for all
                _works[id(works[0])] = (weakref.ref(works[0]), _inside.batch)
            return works
        finally:
            _inside.batch = None

    return batched


def _waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        work, mine = _works.get(id(self), (None, []))
        if work is None or work() is not self or mine[0]["waited"] or getattr(_inside, "call", False):
            return function(self, *args, **kwargs)
        entered = time.perf_counter_ns()
        line = _where()[0]
        try:
            return function(self, *args, **kwargs)
        except BaseException as error:
            for record in mine:
                record["error"] = type(error).__name__
            raise
        finally:
            for record in mine:
                record["waited"] = (entered, time.perf_counter_ns(), line)
                if record["kind"] == "recv" and not record["error"]:
                    if record["peer"] is None:
                        record["peer"] = record["ranks"][cast(Any, self)._source_rank()]
                    _snapshots.after(record["view"])
                record["done"] = next(_count)

    return wait


# -- records ------------------------------------------------------------------------------------------------------


def _begun(op: str, kind: str, what: Any, other: str, given: Callable[[str], Any]) -> dict[str, Any] | None:
    """What is known of a call before it runs; None where it is not this rank's, or not well-formed."""
    group = given("group")
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    try:
        ranks = tuple(dist.get_process_group_ranks(group))
        peer = given(other) if other else None
        if peer is None and (inside := given(f"group_{other}")) is not None:
            peer = ranks[inside] if inside in range(len(ranks)) else inside
        if peer is None and other and kind == "collective":
            peer = 0  # the root that torch and comms take where none is named
        dtype, shape, size = _facts(what)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return None  # torch itself says what is wrong
    most = _cell["peers"]
    if most is not None and kind != "collective" and isinstance(peer, int) and peer not in range(most):
        raise ValueError(f"there is no rank {peer} among {most} ranks")
    line, function = _where()
    nth = 0
    if kind == "collective":
        nth = _nth[ranks] = _nth.get(ranks, -1) + 1
    record = {
        "sequence": next(_count),
        "op": op,
        "kind": kind,
        "ranks": ranks,
        "peer": peer,
        "tag": given("tag") or 0,
        "nth": nth,
        "reduce": given("op"),
        "dtype": dtype,
        "shape": shape,
        "bytes": size,
        "line": line,
        "function": function,
        "async": op in ("isend", "irecv") or bool(given("async_op")),
        "batch": False,
        "enqueued": isinstance(what, Tensor) and what.is_cuda,
        "entered": 0,
        "left": None,
        "waited": None,
        "done": None,
        "error": "",
        "view": _snapshots.before(what, line, kind) if kind != "collective" and isinstance(what, Tensor) else None,
    }
    batch = getattr(_inside, "batch", None)
    if batch is not None:
        batch.append(record)
        record["batch"] = True
    _records.append(record)
    _cell["made"] += 1
    return record


def _done(record: dict[str, Any], result: Any) -> None:
    """What is known once a call has returned."""
    if record["kind"] == "recv" and not record["async"]:
        if record["peer"] is None and isinstance(result, int) and result >= 0:
            record["peer"] = result
        _snapshots.after(record["view"])
    if not record["async"]:
        record["done"] = next(_count)
    elif isinstance(result, dist.Work):
        _works[id(result)] = (weakref.ref(result), [record])


def _facts(what: Any) -> tuple[Any, Any, int | None]:
    """dtype, shape and bytes of a tensor, or of a list of them together; nothing of an object."""
    if isinstance(what, Tensor):
        return what.dtype, what.shape, what.nbytes
    if isinstance(what, (list, tuple)) and what and all(isinstance(x, Tensor) for x in what):
        return _facts(what[0])[0], None, sum(x.nbytes for x in what)
    return None, None, None


def _reduction(op: Any) -> str:
    """ "sum", "avg", …"""
    return "sum" if op is None else str(op).rpartition(".")[2].lower()


_mine: dict[str, bool] = {}  # file name → whether it is a cell


def _where() -> tuple[int | None, str | None]:
    """The line of the cell that the call came from, and the learner's function that made it."""
    frame: FrameType | None = sys._getframe(2)
    if threading.get_ident() != MAIN:
        frame = sys._current_frames().get(MAIN)  # autograd's own thread: the cell waits in backward
    inner, outer = None, None
    while frame is not None:
        code = frame.f_code
        is_cell = _mine.get(code.co_filename)
        if is_cell is None:
            name = code.co_filename
            is_cell = _mine[name] = "ipykernel_" in name or name.startswith("<ipython-input")
        if is_cell:
            inner, outer = inner or frame, frame
        elif code.co_name == "run_code":
            break
        frame = frame.f_back
    if inner is None or outer is None:
        return None, None
    return outer.f_lineno, None if inner is outer else f"{inner.f_code.co_name}, its line {inner.f_lineno}"
