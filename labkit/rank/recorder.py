"""What every rank did: each send, receive and collective of the last cell, and when it was entered and left.

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
import itertools
import math
import socket
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import graph
from torch.distributed import distributed_c10d

from labkit.floor import timestamps
from labkit.rank import backward_pass, comms, guard, objects, p2p, spans, stream, wire
from labkit.rank.consistency import whole
from labkit.rank.frames import leading_here
from labkit.rank.group_counters import Noted, Span, Tally
from labkit.rank.snapshots import Snapshots
from labkit.rank.torch_internals import RUN_BACKWARD, backward_number, group_ranks, source_rank
from labkit.theory.log import Log, Op, is_cell
from labkit.theory.primitives import PRIMITIVES

RESULTS = ("gather_list", "tensor_list", "output_tensor_list")  # arguments: lists of tensors that a call writes to
LIMIT = 2000  # operations of one cell that are kept: the last ones; the flight recorder keeps as many
ENQUEUES = {"cuda"}  # kinds of devices on which a call returns once it is enqueued

# The methods of a process group that the flight recorder does not see on Gloo: where their arguments stand.
P2P = {
    "send": ("send", "dst", {"group": 0, "tensors": 1, "group_dst": 2, "tag": 3}),
    "recv": ("recv", "src", {"group": 0, "tensors": 1, "group_src": 2, "tag": 3}),
    "recv_anysource": ("recv", "src", {"group": 0, "tensors": 1, "tag": 2}),
}

# Where comms' own functions tell one another what will come: no part of what travels.
HEADERS = {objects.exchange.__code__, p2p.send.__code__, p2p.recv.__code__}


@dataclass
class Cell:
    """What is recorded of the cell that runs, or that ran last."""

    on: bool = False
    paused: bool = False  # for every thread: autograd's calls are the cell's as well
    rank: int = 0
    began: float = 0.0
    ended: float | None = None
    ops: deque[Op] = field(default_factory=lambda: deque(maxlen=LIMIT))
    made: int = 0  # operations, also those that are not kept
    order: Iterator[int] = field(default_factory=itertools.count)
    passes: deque[backward_pass.Pass] = field(default_factory=lambda: deque(maxlen=LIMIT))
    nth: dict[str, int] = field(default_factory=dict)  # the last collective of a group, by its name, counted from 0
    grouped: list[tuple[int, ...]] = field(default_factory=list)  # the ranks of groups that were made
    works: dict[int, tuple[weakref.ref[Any], list[Op]]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    sent: int | None = None  # bytes on the wire: before the cell while it runs, then within it
    gpu: str = ""  # this rank's


_cell = Cell()
_snapshots = Snapshots()
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
        _wrap("new_group", _making(dist.new_group), distributed_c10d, dist)
        _wrap("destroy_process_group", _leaving(dist.destroy_process_group), distributed_c10d, dist)
        _wrap(RUN_BACKWARD, backward_pass.noting(vars(graph)[RUN_BACKWARD], _passing), graph, torch.autograd)
        _wrap("wait", _waiting(dist.Work.wait), dist.Work)  # the class's: a Work stays itself
        for name in ("get_future", "is_completed"):
            _wrap(name, _asking(vars(dist.Work)[name]), dist.Work)
        _put(ours=True)
    _space = shell.user_ns
    for event, callback in (("pre_run_cell", begin), ("post_run_cell", end)):
        if callback not in shell.events.callbacks[event]:
            shell.events.register(event, callback)


def _wrap(name: str, wrapper: Callable[..., Any], *places: Any) -> None:
    wrapper.recorded = True  # type: ignore[attr-defined]
    _wrapped.extend((place, name, vars(place)[name], wrapper) for place in places)  # a method as its class has it


def _put(ours: bool) -> None:
    """Our wrappers in place of the functions, or the functions themselves."""
    for place, name, function, wrapper in _wrapped:
        setattr(place, name, wrapper if ours else function)


def stay() -> None:
    """Swap no functions any more: in a forked process what stands in their places now is to stay there."""
    _wrapped.clear()


def begin(info: Any = None) -> None:
    """A cell starts: forget the last one."""
    global _cell
    _inside.call = False
    _inside.whole = None
    _put(ours=True)  # all stand already, unless a Stop came just as `paused` or a call ended
    guard.pardon()
    guard.resume()
    _snapshots.begin(getattr(info, "raw_cell", None) or "", _space)
    rank = dist.get_rank() if dist.is_initialized() else 0
    spans.begin(rank, getattr(info, "raw_cell", None) or "")
    stream.forget()
    _cell = Cell(on=True, rank=rank, sent=wire.sent(), began=time.perf_counter(), gpu=stream.gpu())


def end(result: Any = None) -> None:
    """A cell has ended: what runs between cells, `lab.look` for instance, is nobody's business."""
    if getattr(result, "success", True):  # else the lab heals the group: `group.joined` tells it to
        guard.pardon()
    if not _cell.on:
        return
    _cell.on = False
    spans.end()
    _cell.ended = time.perf_counter()
    _cell.tally.end()
    now = wire.sent()
    _cell.sent = None if now is None or _cell.sent is None else now - _cell.sent
    _snapshots.last()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """What runs inside leaves no record and costs none, and is not guarded: `timed` measures torch, not the lab.

    Torch's functions stand in their places meanwhile. A wrapper that only passes on would cost a small call 4 %.
    """
    cell = _cell
    if getattr(_inside, "call", False) or cell.paused:
        yield
        return
    with cell.tally.apart(), spans.paused(), guard.paused():
        cell.paused = True
        try:
            _put(ours=False)
            yield
        finally:
            cell.paused = False
            _put(ours=True)


def _records() -> bool:
    """Whether what is called now, by whatever thread, is the cell's to record."""
    return _cell.on and not _cell.paused


def records() -> dict[str, Any]:
    """The last cell's operations and buffers as plain data, and what is needed to compare times with other ranks'."""
    stream.told()
    kept = list(_cell.ops)
    until = time.perf_counter() if _cell.ended is None else _cell.ended
    missing, unnamed = _cell.tally.missing(_cell.began, until)
    computed = spans.kept()
    return Log(
        ops=_merged(kept, missing),
        buffers=_snapshots.buffers,
        journal=_snapshots.journal(),
        began=_cell.began,
        ended=_cell.ended,
        clock=timestamps.clock(),
        host=socket.gethostname(),
        gpu=_cell.gpu,
        together=stream.together(),
        dropped=_cell.made - len(kept),
        unnamed=unnamed,
        sent=None if _cell.on else _cell.sent,
        spans=(found := list(computed.spans)),
        cut=computed.made - len(found),
        stood=list(computed.stood),
        made=list(_cell.grouped),
    ).plain()


def _merged(ops: list[Op], missing: list[Noted]) -> list[Op]:
    """Operations in the order in which they began, those among them that only a process group has noted.

    Each collective counts among its group's, and each call stands in the rank's program where it was made.
    """
    if not missing:
        return ops
    moments = [(op.entered, float(op.issued)) for op in ops]
    moments += [(op.waited[1] if op.waited else op.left or op.entered, float(op.done)) for op in ops if op.done]
    merged = [replace(op) for op in ops] + [_witnessed(one, moments) for one in missing]
    merged.sort(key=lambda op: op.entered)
    before: dict[str, list[Op]] = {}
    for op in (op for op in merged if op.kind == "collective"):
        earlier = before.setdefault(op.group, [])
        op.nth += sum(o.witnessed for o in earlier) if not op.witnessed else earlier[-1].nth + 1 if earlier else 0
        earlier.append(op)
    return merged


def _witnessed(one: Noted, moments: list[tuple[float, float]]) -> Op:
    """The operation that a process group has noted."""
    mine = [f for f in one.frames if is_cell(f["filename"])]
    behind = _pass_behind(one)
    at, function = behind.where if behind else (mine[-1]["line"] if mine else None, None)
    if len(mine) > 1 or (mine and behind):
        function = mine[0]["name"], mine[0]["line"]
    return Op(
        rank=_cell.rank,
        issued=max((place for moment, place in moments if moment <= one.entered), default=-1.0) + 0.5,
        op=one.op,
        kind="collective",
        ranks=_cell.tally.ranks[one.group],
        group=one.group,
        dtype=one.dtype,
        shape=one.shape,
        bytes=one.bytes,
        line=at,
        function=function,
        witnessed=True,
        entered=one.entered,
        left=one.entered,
    )


def _pass_behind(one: Noted) -> backward_pass.Pass | None:
    """The backward pass of the cell that has called this on a thread of autograd's own, with none of its frames."""
    if any(f["name"] == "run_code" or f["filename"] == threading.__file__ for f in one.frames):
        return None
    kept = list(_cell.passes)  # the main thread may go on
    return next((p for p in reversed(kept) if p.entered <= one.entered <= (p.left or math.inf)), None)


# -- wrappers -----------------------------------------------------------------------------------------------------


def _recording(
    function: Callable[..., Any],
    op: str,
    kind: str,
    what: str,
    other: str,
    reduces: bool = False,
    places: dict[str, int] | None = None,
) -> Callable[..., Any]:
    """The same function, which leaves a record; nothing about its result or its exceptions changes.

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
            if whole is not None and _caller().f_code not in HEADERS and (size := _facts(given(what))[2]):
                whole.bytes = size + (whole.bytes or 0)  # an object's are those of what carries it
            return function(*args, **kwargs)
        if not _records():
            return function(*args, **kwargs)
        begun = _begun(op, kind, given(what), other, given)
        if begun is None:
            return function(*args, **kwargs)
        record, group, name, span = begun
        if reduces:
            record.reduce = _reduction(given("op"))
        if results:
            record.shared = _shared(given(results))
        record.asynchronous = asynchronous or _is_true(given("async_op"))
        if record.asynchronous and backward_number() >= 0 and backward_pass.carries_a_bucket():
            backward_pass.at_end(_brought_back(record))
        tally = _cell.tally
        _inside.whole = record if record.bytes is None else None
        _inside.call = True
        if record.enqueued and not record.asynchronous:
            stream.came(record)
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
            tally.done(group, name, span)
        record.left = time.perf_counter()
        stream.left(record)
        _done(record, result)
        return result

    return recorded


def _batching(function: Callable[..., Any]) -> Callable[..., Any]:
    """Each send and receive of a batch leaves a record of its own, with the batch's name."""

    @functools.wraps(function)
    def batched(*args: Any, **kwargs: Any) -> Any:
        if not _records() or getattr(_inside, "call", False):
            return function(*args, **kwargs)
        _check_batch(*args, **kwargs)
        _inside.batch = []
        try:
            works = function(*args, **kwargs)
            if len(works) == 1 and len(_inside.batch) > 1:  # NCCL: one Work for all
                _cell.works[id(works[0])] = (weakref.ref(works[0]), _inside.batch)
            return works
        except BaseException as error:  # on NCCL the end of the batch is where its transfers begin
            for op in _inside.batch:
                op.error = op.error or type(error).__name__
            raise
        finally:
            _inside.batch = None

    return batched


def _making(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rank notes which groups it makes, of those that all ranks have to: who waits in one waits for the others."""
    called = inspect.signature(function)

    @functools.wraps(function)
    def making(*args: Any, **kwargs: Any) -> Any:
        if _cell.on:
            with contextlib.suppress(TypeError, ValueError, RuntimeError):  # torch will say what is wrong with it
                given = called.bind(*args, **kwargs).arguments
                if not given.get("use_local_synchronization"):
                    ranks = given.get("ranks")
                    _cell.grouped.append(tuple(sorted(range(dist.get_world_size()) if ranks is None else ranks)))
        return function(*args, **kwargs)

    return making


def _leaving(function: Callable[..., Any]) -> Callable[..., Any]:
    """A group that goes takes its counts along: what it did is looked up."""

    @functools.wraps(function)
    def leaving(*args: Any, **kwargs: Any) -> Any:
        if _cell.on:
            _cell.tally.leave()
        return function(*args, **kwargs)

    return leaving


def _waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        work, mine = _cell.works.get(id(self), (None, []))
        if work is None or work() is not self or mine[0].waited or getattr(_inside, "call", False) or _cell.paused:
            return function(self, *args, **kwargs)
        order = _cell.order
        for op in (op for op in mine if op.enqueued):
            stream.came(op)
        entered = time.perf_counter()
        at, inside = _where()
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
            stream.left(op)
            if op.kind == "recv":
                if op.peer is None:
                    op.peer = op.ranks[source_rank(self)]
                _snapshots.after(op.view)
            op.done = next(order)
        return result

    return wait


def _asking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Note that a learner's line asks for the end of an operation otherwise than by `.wait()`."""

    @functools.wraps(function)
    def asking(self: Any, *args: Any, **kwargs: Any) -> Any:
        work, mine = _cell.works.get(id(self), (None, []))
        if work is not None and work() is self and is_cell(sys._getframe(1).f_code.co_filename):
            for op in mine:
                op.asked = True
        return function(self, *args, **kwargs)

    return asking


# -- records ------------------------------------------------------------------------------------------------------


def _begun(op: str, kind: str, what: Any, other: str, given: Callable[[str], Any]) -> tuple[Op, Any, str, Span] | None:
    """What is known of a call before it runs; its group and the group's name; its span in the tally.

    None where it is not this rank's call, or where torch will say what is wrong with it.
    """
    try:
        group: Any = given("group")
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return None
        group = dist.group.WORLD if group is None else group
        name = group.group_name
        ranks = _cell.tally.ranks.get(name)
        if ranks is None:
            ranks = _cell.tally.know(group, name)
        peer, inside = (whole(given(name)) for name in (other, f"group_{other}")) if other else (None, None)
        dtype, shape, size = _facts(what)
    except KeyError:  # torch's word for it, which some of its functions forget to say
        raise ValueError("Invalid process group specified") from None
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return None
    if not op.startswith("comms."):  # whose ranks tell one another
        _check_peer(group, ranks, peer, inside)
    if peer is None and inside is not None:
        peer = ranks[inside]
    if peer is None and other and kind == "collective":
        peer = 0  # the root that torch and comms take where none is named
    span = _cell.tally.begun(group, name)
    at, function = _where()
    record = Op(
        rank=_cell.rank,
        issued=next(_cell.order),
        op=op,
        kind=kind,
        ranks=ranks,
        peer=peer,
        dtype=dtype,
        shape=shape,
        bytes=size,
        line=at,
        function=function,
        group=name,
    )
    tensor = what[0] if shape is not None and not isinstance(what, Tensor) else what
    if isinstance(tensor, Tensor) and tensor.device.type in ENQUEUES:
        record.enqueued = True
    if kind == "collective":
        record.nth = _cell.nth[name] = _cell.nth.get(name, -1) + 1
    else:
        record.tag = whole(given("tag")) or 0
        if isinstance(tensor, Tensor):
            record.view = _snapshots.before(tensor, at, kind)
    batch = getattr(_inside, "batch", None)
    if batch is not None:
        batch.append(record)
        record.batch = True
    _cell.ops.append(record)
    _cell.made += 1
    return record, group, name, span


def _is_true(given: Any) -> bool:
    """Whether what a learner has given counts as true; not what is neither, an array say: torch will say so."""
    try:
        return bool(given)
    except (RuntimeError, ValueError):
        return False


def _check_peer(group: Any, ranks: Sequence[int], peer: int | None, inside: int | None) -> None:
    """Refuse a rank that does not exist: `peer` is its number in the world, `inside` the one in the group.

    Of a rank that the world has and a smaller group has not, torch says so itself.
    """
    if peer is None and inside is not None:
        guard.must_exist(inside, len(ranks), group)
    elif peer is not None and group is dist.group.WORLD:
        guard.must_exist(peer, len(ranks), group)


def _check_batch(batch: Any = None, *more: Any, **others: Any) -> None:
    """Refuse a batch that cannot be carried out before any of it is begun; torch says what is no batch at all."""
    ops = others.get("p2p_op_list", batch)
    if not isinstance(ops, list) or not all(isinstance(op, dist.P2POp) for op in ops):
        return
    if not ops:
        guard.refuse(ValueError("this batch has no send and no receive: leave the call out on a rank without any"))
    for op in ops:
        if ranks := group_ranks().get(op.group):  # torch says where it has forgotten a group
            _check_peer(op.group, tuple(ranks), None, op.group_peer)


def _passing() -> backward_pass.Pass | None:
    """A backward pass begins: which line of the cell autograd works for, should it do so on a thread of its own."""
    if not _records():
        return None
    began = backward_pass.Pass(_where(), time.perf_counter())
    _cell.passes.append(began)
    return began


def _caller() -> FrameType:
    """The frame that has made the call which is recorded; where autograd itself has, that of the wrapper."""
    recorded = sys._getframe(1)
    return recorded.f_back or recorded


def _done(record: Op, result: Any) -> None:
    """What is known once a call has returned."""
    if record.kind == "recv" and not record.asynchronous:
        if record.peer is None and isinstance(result, int) and result >= 0:
            record.peer = result
        _snapshots.after(record.view)
    if not record.asynchronous:
        record.done = next(_cell.order)
        return
    if isinstance(result, dist.Work):
        _cell.works[id(result)] = (weakref.ref(result), [record])
        if record.kind == "collective" and not record.enqueued and spans.wanted():
            _watch(result, record)


def _brought_back(record: Op) -> backward_pass.End:
    """What the end of a backward pass tells of one of DDP's buckets: from when to when DDP waited for it."""
    order, at = _cell.order, record.line

    def waited(computed: float, done: float) -> None:
        if not record.waited:
            record.waited = (computed, done, at)
            record.done = next(order)

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


_dtypes: dict[Any, str] = {}  # their names


def _facts(what: Any) -> tuple[str | None, tuple[int, ...] | None, int | None]:
    """dtype, shape and bytes of a tensor, or dtype and bytes of a list of them; nothing of an object."""
    if isinstance(what, Tensor):
        name = _dtypes.get(what.dtype)
        if name is None:
            name = _dtypes[what.dtype] = str(what.dtype).removeprefix("torch.")
        return name, tuple(what.shape), what.nbytes
    if isinstance(what, (list, tuple)) and what and all(isinstance(x, Tensor) for x in what):
        dtype, shape, _ = _facts(what[0])
        return dtype, shape if len(what) == 1 else None, sum(x.nbytes for x in what)
    return None, None, None


def _shared(tensors: Any) -> int:
    """How many times one tensor stands in a list; 0 where all are different, or where there is no list."""
    times = max(Counter(map(id, tensors)).values(), default=0) if isinstance(tensors, (list, tuple)) else 0
    return times if times > 1 else 0


def _reduction(op: Any) -> str:
    """ "sum", "avg", …; "" for what is no operation, a group in its place for one."""
    name = "SUM" if op is None else str(op).rpartition(".")[2]
    return name.lower() if name.isidentifier() else ""


def _where() -> backward_pass.Where:
    """The line of the cell that a call came from, and the learner's function that made it."""
    cells = leading_here()
    if not cells:
        return None, None
    (code, line), (_, called) = cells[0], cells[-1]
    return called, None if len(cells) == 1 else (code.co_name, line)
