"""Record every send, receive and collective of a cell, and when it was entered and left, in functions around torch's.

The Python functions of `torch.distributed` are wrapped once a process, torch's signature and source kept
(`dist.send??` shows torch's). A call within a call (the broadcast under `broadcast_object_list`, everything under
`comms`) counts as its outermost one. What goes past these functions is seen from below, see
`labkit.rank.group_counters`:

| called by | wrappers | the group's count | flight recorder |
|---|---|---|---|
| `dist.…`, `comms.…`; DDP, FSDP2 through them | times, line, arguments | yes | collectives: begin, line, size |
| `group.send`, `group.recv` | times, line, arguments | yes | NCCL's, not Gloo's |
| `group.allreduce`, functional collectives, DTensor, DDP's buckets in C++ | no | yes | begin, line, size |
| `dist.monitored_barrier` | times, line | yes | no |

A call is recorded once: the wrappers note which of the group's numbers are theirs, and only calls under other numbers
are taken from the flight recorder.

Once spans are used (`labkit.rank.spans`), an asynchronous collective on a CPU also notes when its data was there: the
work's future tells it, on the backend's own thread, and its call takes 10 to 30 µs longer. What a hook sends of DDP's
buckets is waited for by DDP, in C++, at the end of the backward pass (`labkit.rank.backward_pass`).

A record costs a rank alone 20 to 30 µs on a busy machine; two ranks on two cores were seen to take 30 to 80 µs longer
for a small broadcast and 100 to 160 µs for a send and its wait: pictures are to look at, `timed` is the clock.
Times are `perf_counter`'s, which Linux reads from CLOCK_MONOTONIC: one clock for all processes of a host. Of what a GPU
does, `labkit.rank.stream` knows the times.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import graph
from torch.distributed import distributed_c10d

from labkit.floor.source_lines import is_cell
from labkit.rank import backward_pass, cell_record, comms, guard, objects, patience, spans, stream, wire
from labkit.rank.call_facts import begun, check_batch, facts, is_true, reduction, shared, where
from labkit.rank.cell_record import Cell, records
from labkit.rank.snapshots import Snapshots
from labkit.rank.torch_internals import RUN_BACKWARD, backward_number, source_rank
from labkit.theory.log import Op
from labkit.theory.primitives import PRIMITIVES

__all__ = ["begin", "end", "install", "keep_in_place", "paused", "records"]

RESULTS = ("gather_list", "tensor_list", "output_tensor_list")  # arguments: lists of tensors that a call writes to

# The methods of a process group that the flight recorder does not see on Gloo: where their arguments stand.
P2P = {
    "send": ("send", "dst", {"group": 0, "tensors": 1, "group_dst": 2, "tag": 3}),
    "recv": ("recv", "src", {"group": 0, "tensors": 1, "group_src": 2, "tag": 3}),
    "recv_anysource": ("recv", "src", {"group": 0, "tensors": 1, "tag": 2}),
}

NEW_GROUP = inspect.signature(dist.new_group)  # before it is wrapped

# Where comms' own functions tell one another what will come: no part of what travels.
HEADERS = {objects.exchange.__code__, comms.send.__code__, comms.recv.__code__}

_space: dict[str, Any] = {}  # the learner's variables
_inside = threading.local()
_wrapped: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = []  # where, its name, torch's, ours


def install(shell: Any) -> None:
    """Wrap torch's functions, once, and let every cell of this engine begin with an empty record."""
    global _space
    if not hasattr(dist.send, "recorded"):
        for p in PRIMITIVES.values():
            for name, what in ((name, f.data) for f in p.functions for name in f.names if hasattr(dist, name)):
                function = getattr(dist, name)
                _wrap(name, _recording(function, name, p.kind, what, p.other, p.reduces), distributed_c10d, dist)
            if p.comms is not None:
                ours = getattr(comms, p.name)
                _wrap(p.name, _recording(ours, f"comms.{p.name}", p.kind, p.comms, p.other, p.reduces), comms)
        for name, (kind, other, places) in P2P.items():
            method = vars(dist.ProcessGroup)[name]
            wrapper = _recording(method, f"ProcessGroup.{name}", kind, "tensors", other, places=places)
            _wrap(name, wrapper, dist.ProcessGroup)
        _wrap("batch_isend_irecv", _batching(dist.batch_isend_irecv), distributed_c10d, dist)
        _wrap("new_group", _noting(dist.new_group, _makes_group), distributed_c10d, dist)
        _wrap("destroy_process_group", _noting(dist.destroy_process_group, _leaves_group), distributed_c10d, dist)
        _wrap(RUN_BACKWARD, backward_pass.noting(vars(graph)[RUN_BACKWARD], _passing), graph, torch.autograd)
        _wrap("wait", _waiting(dist.Work.wait), dist.Work)  # the class's: a Work stays itself
        for name in ("get_future", "is_completed"):
            _wrap(name, _noting(vars(dist.Work)[name], _asks), dist.Work)
        _put(ours=True)
    _space = shell.user_ns
    for event, callback in (("pre_run_cell", begin), ("post_run_cell", end)):
        if callback not in shell.events.callbacks[event]:
            shell.events.register(event, callback)


def _wrap(name: str, wrapper: Callable[..., Any], *places: Any) -> None:
    wrapper.recorded = True  # type: ignore[attr-defined]
    _wrapped.extend((place, name, vars(place)[name], wrapper) for place in places)  # a method as its class has it


def _put(ours: bool) -> None:
    """Put our wrappers in the places of the functions, or the functions themselves."""
    for place, name, function, wrapper in _wrapped:
        setattr(place, name, wrapper if ours else function)


def keep_in_place() -> None:
    """Swap no functions any more: in a forked process what stands in their places now is to stay there."""
    _wrapped.clear()


def begin(info: Any = None) -> None:
    """Begin the record of a cell, and forget the last one's."""
    _inside.call = False
    _inside.whole = None
    _put(ours=True)  # all stand already, unless a Stop came just as `paused` or a call ended
    guard.clear_refusal()
    guard.resume()
    code = getattr(info, "raw_cell", None) or ""
    spans.expect(code)
    backward_pass.forget()
    stream.forget()
    cell_record.current = Cell(
        on=True,
        rank=dist.get_rank() if dist.is_initialized() else 0,
        snapshots=Snapshots(code, _space),
        sent=wire.sent(),
        began=time.perf_counter(),
        gpu=stream.gpu(),
    )


def end(result: Any = None) -> None:
    """End the record of a cell: what runs between cells, `lab.look` for instance, is not recorded."""
    if getattr(result, "success", True):  # else the lab heals the group: `group.joined` tells it to
        guard.clear_refusal()
    cell = cell_record.current
    if not cell.on:
        return
    cell.on = False
    cell.ended = time.perf_counter()
    cell.tally.end()
    now = wire.sent()
    cell.sent = None if now is None or cell.sent is None else now - cell.sent
    cell.snapshots.last()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Record and guard nothing of what runs inside: `timed` measures torch, not the lab."""
    cell = cell_record.current
    if getattr(_inside, "call", False) or cell.paused:
        yield
        return
    with cell.tally.apart(), guard.paused():
        cell.paused = True
        try:
            # Torch's functions in their places: a wrapper that only passes on would cost a small call 4 %.
            _put(ours=False)
            yield
        finally:
            cell.paused = False
            _put(ours=True)


def _recording(
    function: Callable[..., Any],
    op: str,
    kind: str,
    what: str,
    other: str,
    reduces: bool = False,
    places: dict[str, int] | None = None,
) -> Callable[..., Any]:
    """Wrap a function so that it leaves a record; nothing about its result or its exceptions changes.

    `what` and `other` are the arguments that tell what travels, and the other rank or the root; `places` where
    arguments stand, for a function without a signature.
    """
    at = places or {name: i for i, name in enumerate(inspect.signature(function).parameters)}
    asynchronous = op in ("isend", "irecv") or places is not None
    results = next((name for name in RESULTS if name in at), "")

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        def given(name: str) -> Any:
            i = at.get(name)
            return None if i is None else args[i] if i < len(args) else kwargs.get(name)

        if getattr(_inside, "call", False):
            whole = None if places else getattr(_inside, "whole", None)
            if whole is not None and _caller().f_code not in HEADERS and (size := facts(given(what))[2]):
                whole.bytes = size + (whole.bytes or 0)  # an object's are those of what carries it
            return function(*args, **kwargs)
        cell = cell_record.current
        if not cell.recording or (noted := begun(cell, op, kind, given(what), other, given)) is None:
            return function(*args, **kwargs)
        record, group, counted = noted
        if (batch := getattr(_inside, "batch", None)) is not None:
            batch.append(record)
            record.batch = True
        if reduces:
            record.reduce = reduction(given("op"))
        if results:
            record.shared = shared(given(results))
        record.asynchronous = asynchronous or is_true(given("async_op"))
        if record.asynchronous and backward_number() >= 0 and backward_pass.carries_a_bucket():
            backward_pass.at_end(_brought_back(cell, record))
        _inside.whole = record if record.bytes is None else None
        _inside.call = True
        if record.enqueued and not record.asynchronous:
            stream.mark_start(record)
        record.entered = time.perf_counter()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            record.left = time.perf_counter()
            record.error = type(error).__name__
            raise
        finally:
            _inside.call = False
            _inside.whole = None
            cell.tally.done(group, record.group, counted)
        record.left = time.perf_counter()
        stream.mark_end(record)
        _done(cell, record, result)
        return result

    return recorded


def _batching(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function of batches: each send and receive leaves a record of its own, with the batch's name."""

    @functools.wraps(function)
    def batched(*args: Any, **kwargs: Any) -> Any:
        cell = cell_record.current
        if not cell.recording or getattr(_inside, "call", False):
            return function(*args, **kwargs)
        check_batch(*args, **kwargs)
        _inside.batch = []
        try:
            works = function(*args, **kwargs)
            if len(works) == 1 and len(_inside.batch) > 1:  # NCCL: one Work for all
                cell.works[id(works[0])] = (weakref.ref(works[0]), _inside.batch)
            return works
        except BaseException as error:  # on NCCL the end of the batch is where its transfers begin
            for op in _inside.batch:
                op.error = op.error or type(error).__name__
            raise
        finally:
            _inside.batch = None

    return batched


def _noting(function: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    """Wrap a function to note its arguments before it is called."""

    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return function(*args, **kwargs)

    return noting


def _makes_group(*args: Any, **kwargs: Any) -> None:
    """Note a group that all ranks have to make: a rank that waits in it waits for the others."""
    if (cell := cell_record.current).on:
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # torch will say what is wrong with it
            given = NEW_GROUP.bind(*args, **kwargs).arguments
            if not given.get("use_local_synchronization"):
                ranks = given.get("ranks")
                cell.grouped.append(tuple(sorted(range(dist.get_world_size()) if ranks is None else ranks)))


def _leaves_group(*_: Any, **__: Any) -> None:
    """Look up what a group has counted before it goes."""
    if (cell := cell_record.current).on:
        cell.tally.leave()


def _asks(work: Any, *_: Any, **__: Any) -> None:
    """Note that a learner's line asks for the end of an operation otherwise than by `.wait()`."""
    known, mine = cell_record.current.works.get(id(work), (None, []))
    if known is not None and known() is work and is_cell(sys._getframe(2).f_code.co_filename):
        for op in mine:
            op.asked = True


def _waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        cell = cell_record.current
        args = args if args or kwargs else patience.of_a_work()
        work, mine = cell.works.get(id(self), (None, []))
        if work is None or work() is not self or mine[0].waited or getattr(_inside, "call", False) or cell.paused:
            return function(self, *args, **kwargs)
        for op in (op for op in mine if op.enqueued):
            stream.mark_start(op)
        entered = time.perf_counter()
        at, inside = where()
        for op in mine:
            op.wait_in = inside
        try:
            result = function(self, *args, **kwargs)
        except BaseException as error:
            for op in mine:
                op.waited = (entered, time.perf_counter(), at)
                op.error = type(error).__name__
            raise
        for op in mine:
            op.waited = (entered, time.perf_counter(), at)
            stream.mark_end(op)
            if op.kind == "recv":
                if op.peer is None:
                    op.peer = op.ranks[source_rank(self)]
                cell.snapshots.after(op.view)
            op.done = next(cell.order)
        return result

    return wait


def _passing() -> backward_pass.Pass | None:
    """Note that a backward pass begins, and in which line: autograd may work for it on a thread of its own."""
    cell = cell_record.current
    if not cell.recording:
        return None
    began = backward_pass.Pass(where(), time.perf_counter())
    cell.passes.append(began)
    return began


def _caller() -> FrameType:
    """Return the frame that has made the call which is recorded; where autograd itself has, that of the wrapper."""
    recorded = sys._getframe(1)
    return recorded.f_back or recorded


def _done(cell: Cell, record: Op, result: Any) -> None:
    """Note what is known once a call has returned."""
    if record.kind == "recv" and not record.asynchronous:
        if record.peer is None and isinstance(result, int) and result >= 0:
            record.peer = result
        cell.snapshots.after(record.view)
    if not record.asynchronous:
        record.done = next(cell.order)
        return
    if isinstance(result, dist.Work):
        cell.works[id(result)] = (weakref.ref(result), [record])
        if record.kind == "collective" and not record.enqueued and spans.wanted():
            _watch(result, record)
    else:
        record.asked = True  # torch's function has given its future, on which no wait is seen


def _brought_back(cell: Cell, record: Op) -> backward_pass.End:
    """Return what notes, at the end of a backward pass, from when to when DDP waited for one of its buckets."""

    def waited(computed: float, done: float) -> None:
        if not record.waited:
            record.waited = (computed, done, record.line)
            record.done = next(cell.order)

    return waited


def _watch(work: dist.Work, record: Op) -> None:
    """Let the work tell when its data is there; Gloo's collectives do, and on a GPU it would mean something else."""

    def arrived(future: Any) -> None:
        moment = time.perf_counter()
        with contextlib.suppress(Exception):
            future.value()  # raises what the operation has failed with
            record.there = moment

    with contextlib.suppress(Exception):
        work.get_future().add_done_callback(arrived)
