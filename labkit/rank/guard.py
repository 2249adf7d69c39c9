"""Before a collective runs, its ranks compare what they are about to do: what does not fit raises, and runs nowhere.

Without that it may hang, end a rank or give wrong numbers. All collectives go through torch's dispatcher, whoever
calls: `dist.…`, `comms.…`, a functional collective, DDP's buckets in C++. There, under the key that every call passes
first (BackendSelect), the guard puts up the call on the group's board (`labkit.rank.board`), reads what the others
have put up, and raises where they disagree. Nobody waits for a rank that has not come: a broadcast stays no barrier,
and who comes first goes on. Whoever comes later finds the mismatch and enters nothing, so no two ranks that disagree
ever exchange a byte. The lab then ends the cell on the other ranks too.

`install` puts it in place; `off` takes it out, for good or for a while, and torch is as if there had been none.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from labkit.errors import MismatchError
from labkit.lines import line
from labkit.rank.board import HEAD, ROOM, FileBoard, StoreBoard
from labkit.theory.fingerprint import SHOWN, Call, Statement, disagreement, fit, pack, statement, unpack
from labkit.theory.record import is_cell

GATHER = 0.5  # seconds that whoever has found a mismatch waits for ranks that have not come, to name all of them
WITHDRAWN = 0.02  # seconds after which a call that torch refuses has been taken back
PAUSE = 0.002  # seconds between two looks at the board
KEY = torch._C.DispatchKey.BackendSelect
MAIN = threading.main_thread().ident or 0


@dataclass
class Guarded:
    """A group whose calls are compared."""

    board: FileBoard | StoreBoard
    me: int  # among its ranks
    members: list[int]  # ranks of the world
    made: int = 0  # calls of mine


_groups: dict[str, Guarded] = {}  # by the group's name
_folder: str | None = None  # where boards of the lab's groups go; "" in a store; None: nobody's group is guarded
_library: torch.library.Library | None = None
_wanted = False


def install() -> None:
    """Guard every group that is made from now on while the lab's own is the default group."""
    make_group = distributed_c10d._new_process_group_helper
    if not hasattr(make_group, "guarded"):
        distributed_c10d._new_process_group_helper = _guarding(make_group)


@contextlib.contextmanager
def world(folder: str | None) -> Iterator[None]:
    """The group that is made inside is the lab's; boards go into the folder, or with "" into the group's store."""
    global _folder
    forget()
    _folder = folder
    try:
        yield
    except BaseException:
        forget()
        raise


def forget() -> None:
    """Let all groups go."""
    global _folder
    _folder = None
    for guarded in _groups.values():
        guarded.board.close()
    _groups.clear()


def _guarding(make_group: Callable[..., Any]) -> Callable[..., Any]:
    """Let the members of a new group share a board; its first one makes it, before the others can have come."""
    parameters = inspect.signature(make_group)

    @functools.wraps(make_group)
    def made(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        name, n, ranks = given["group_name"], given["group_size"], given["global_ranks_in_group"]
        if not _ours() or n < 2:
            return make_group(*args, **kwargs)
        first = given["group_rank"] == 0 and (not ranks or dist.get_rank() in ranks)
        key, store = f"labkit-board/{name}", given["store"]
        if first:
            store.set(key, _new_board(name, n))
        result = make_group(*args, **kwargs)
        if isinstance(result[0], dist.ProcessGroup):
            place = store.get(key).decode()
            _forget_one(name)
            if place:
                board = _open_board(place, store, given["group_rank"], n)
                _groups[name] = Guarded(board, given["group_rank"], list(ranks) or list(range(n)))
        return result

    made.guarded = True  # type: ignore[attr-defined]
    return made


def _ours() -> bool:
    """Whether a group that is made now is the lab's: the world as it joins, or a group made in a guarded one."""
    if _folder is None:
        return False
    return not dist.is_initialized() or distributed_c10d._get_default_group().group_name in _groups


def _new_board(name: str, n: int) -> str:
    """Make a board; its place, or "" where there is no room for one."""
    unique = secrets.token_hex(6)  # names of groups come again
    if not _folder:
        return f"store:{unique}"
    path = f"{_folder}/board-{unique}"
    try:
        FileBoard.make(path, n)
    except OSError:
        return ""
    return path


def _open_board(place: str, store: dist.Store, me: int, n: int) -> FileBoard | StoreBoard:
    if place.startswith("store:"):
        return StoreBoard(dist.PrefixStore(f"labkit-board/{place}", store), me, n)
    return FileBoard(place, me, n)


def _forget_one(name: str) -> None:
    old = _groups.pop(name, None)
    if old is not None:
        old.board.close()


# -- in the dispatcher --------------------------------------------------------------------------------------------


def on() -> None:
    """Compare from now on."""
    global _library, _wanted
    _wanted = True
    if _library is None:
        library = torch.library.Library("c10d", "IMPL")
        for name in CALLS:
            operation = getattr(torch.ops.c10d, name).default
            library.impl(name, _comparing(name, operation), "BackendSelect", with_keyset=True)
        _library = library


def resume() -> None:
    """Compare, if that is wanted: a Stop may have come just as `paused` took the guard out."""
    if _wanted:
        on()


def off() -> None:
    """Compare nothing from now on; torch's functions are as fast as without a guard."""
    global _wanted
    _wanted = False
    _take_out()


def _take_out() -> None:
    global _library
    if _library is not None:
        _library._destroy()
        _library = None


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """What runs inside is not compared."""
    wanted = _wanted
    _take_out()
    try:
        yield
    finally:
        if wanted:
            on()


def _comparing(name: str, operation: Any) -> Callable[..., Any]:
    names = [a.name for a in operation._schema.arguments]
    at, describe = names.index("process_group"), CALLS[name]

    def compare(keys: Any, *args: Any) -> Any:
        group = dist.ProcessGroup.unbox(args[at])
        guarded = _groups.get(group.group_name)
        if guarded is None:
            return operation.redispatch(keys.remove(KEY), *args)
        _meet(guarded, describe, dict(zip(names, args, strict=False)))
        try:
            return operation.redispatch(keys.remove(KEY), *args)
        except BaseException:  # it was refused here, for its own arguments, and has not begun
            guarded.made -= 1
            guarded.board.take_back(guarded.made + 1)
            raise

    return compare


def _meet(guarded: Guarded, describe: Callable[..., Call], given: dict[str, Any]) -> None:
    """Put up this call, and raise where one that is up already does not fit."""
    guarded.made = nth = guarded.made + 1
    mine = _located(describe(given, guarded))
    guarded.board.write(nth, pack(mine, ROOM - HEAD.size))
    up = guarded.board.read(nth)
    if all(fit(mine, guarded.me, unpack(data), i) for i, data in up.items() if i != guarded.me):
        return
    found = time.monotonic()
    while True:
        calls, waited = _read(guarded, nth), time.monotonic() - found
        if waited > GATHER or (waited > WITHDRAWN and len(calls) == len(guarded.members)):
            break
        time.sleep(PAUSE)
    if said := disagreement(calls, guarded.members):
        raise MismatchError(said)


def _read(guarded: Guarded, nth: int) -> dict[int, Call]:
    return {guarded.members[i]: unpack(data) for i, data in guarded.board.read(nth).items()}


# -- what a call is -----------------------------------------------------------------------------------------------


def _located(call: Call) -> Call:
    """The call with its place in the learner's cell: line, function, statements."""
    frame: FrameType | None = sys._getframe(2)
    if threading.get_ident() != MAIN:
        frame = sys._current_frames().get(MAIN)  # autograd's own thread: the cell waits in backward
    mine: list[FrameType] = []
    while frame is not None:
        if is_cell(frame.f_code.co_filename):
            mine.append(frame)
        elif frame.f_code.co_name == "run_code":
            break
        frame = frame.f_back
    if not mine:
        return call
    inner, outer = mine[0], mine[-1]
    place, text, path = _place(inner.f_code, line(inner), outer.f_code, line(outer), inner is outer)
    return replace(call, place=place, text=text, path=path)


@functools.lru_cache(maxsize=256)
def _place(
    inner: CodeType, line: int, outer: CodeType, called: int, same: bool
) -> tuple[str, str, tuple[Statement, ...]]:
    """Where that is in words, the statement there, and the statements that it is in."""
    text, here = _statement(inner, line)
    if same:
        return f"line {line}", text[: SHOWN + 1], (here,)
    place = f"line {line} of {inner.co_name}, called in line {called}"
    return place, text[: SHOWN + 1], (here, _statement(outer, called)[1])


def _statement(code: CodeType, line: int) -> tuple[str, Statement]:
    return statement("".join(linecache.getlines(code.co_filename)), line)


def _tensor(kind: str, x: torch.Tensor, gives: Any = None, takes: Any = None, **more: Any) -> Call:
    """A call that brings a tensor; it gives as many elements as it has, and takes as many, unless told."""
    n = x.numel()
    dtype = str(x.dtype).removeprefix("torch.")
    return Call(
        kind, dtype=dtype, shape=str(list(x.shape)), gives=n if gives is None else gives,
        takes=n if takes is None else takes, **more,
    )  # fmt: skip


def _reduction(op: Any) -> str:
    return _named(op.op())


@functools.lru_cache(maxsize=32)
def _named(number: int) -> str:
    return str(dist.ReduceOp.RedOpType(number)).rpartition(".")[2]


def _numels(tensors: Any) -> tuple[int, ...]:
    return tuple(x.numel() for x in tensors)


def _only_at(root: int, many: int, n: int) -> tuple[int, ...]:
    """Elements for the group's root, or of it; none for the others."""
    return tuple(many if i == root else 0 for i in range(n))


def _all_reduce(given: dict[str, Any], group: Guarded) -> Call:
    return _tensor("all_reduce", given["tensors"][0], reduce=_reduction(given["reduce_op"]))


def _broadcast(given: dict[str, Any], group: Guarded) -> Call:
    return _tensor("broadcast", given["tensors"][0], root=group.members[given["root_rank"]], other="src")


def _reduce(given: dict[str, Any], group: Guarded) -> Call:
    root = group.members[given["root_rank"]]
    return _tensor("reduce", given["tensors"][0], reduce=_reduction(given["reduce_op"]), root=root, other="dst")


def _all_gather(given: dict[str, Any], group: Guarded) -> Call:
    return _tensor("all_gather", given["input_tensors"][0], takes=_numels(given["output_tensors"][0]))


def _all_gather_single(given: dict[str, Any], group: Guarded) -> Call:
    takes = given["output_tensor"].numel() // len(group.members)
    return _tensor("all_gather", given["input_tensor"], takes=takes)


def _reduce_scatter(given: dict[str, Any], group: Guarded) -> Call:
    gives, op = _numels(given["input_tensors"][0]), _reduction(given["reduce_op"])
    return _tensor("reduce_scatter", given["output_tensors"][0], gives, reduce=op)


def _reduce_scatter_single(given: dict[str, Any], group: Guarded) -> Call:
    gives, op = given["input_tensor"].numel() // len(group.members), _reduction(given["reduce_op"])
    return _tensor("reduce_scatter_tensor", given["output_tensor"], gives, reduce=op)


def _gather(given: dict[str, Any], group: Guarded) -> Call:
    x, root, n = given["input_tensors"][0], given["root_rank"], len(group.members)
    takes = _numels(given["output_tensors"][0]) if root == group.me else 0
    return _tensor("gather", x, _only_at(root, x.numel(), n), takes, root=group.members[root], other="dst")


def _scatter(given: dict[str, Any], group: Guarded) -> Call:
    x, root, n = given["output_tensors"][0], given["root_rank"], len(group.members)
    gives = _numels(given["input_tensors"][0]) if root == group.me else 0
    return _tensor("scatter", x, gives, _only_at(root, x.numel(), n), root=group.members[root], other="src")


def _all_to_all(given: dict[str, Any], group: Guarded) -> Call:
    gives, takes = _numels(given["input_tensors"]), _numels(given["output_tensors"])
    return _tensor("all_to_all", given["input_tensors"][0], gives, takes)


def _all_to_all_single(given: dict[str, Any], group: Guarded) -> Call:
    n = len(group.members)
    gives = _split(given["input"], given["input_split_sizes"], n)
    return _tensor("all_to_all", given["input"], gives, _split(given["output"], given["output_split_sizes"], n))


def _split(x: torch.Tensor, sizes: Any, n: int) -> Any:
    """How many elements each rank's part has; sizes are along the first dimension."""
    row = x.numel() // max(x.shape[0], 1) if x.dim() else 1
    return tuple(size * row for size in sizes) if sizes else x.numel() // n


def _coalesced(kind: str, gives: str, takes: str) -> Callable[..., Call]:
    """Several tensors at once: as many, of as many elements, with the same dtype, on each rank."""

    def describe(given: dict[str, Any], group: Guarded) -> Call:
        tensors = given[gives]
        dtypes = "+".join(dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in tensors))
        reduce = _reduction(given["reduce_op"]) if "reduce_op" in given else ""
        shape = "+".join(str(list(x.shape)) for x in tensors)
        return Call(kind, reduce, dtype=dtypes, shape=shape, gives=sum(_numels(tensors)), takes=sum(_numels(tensors)))

    return describe


CALLS: dict[str, Callable[[dict[str, Any], Guarded], Call]] = {
    "allreduce_": _all_reduce,
    "broadcast_": _broadcast,
    "reduce_": _reduce,
    "allgather_": _all_gather,
    "_allgather_base_": _all_gather_single,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_single,
    "gather_": _gather,
    "scatter_": _scatter,
    "alltoall_": _all_to_all,
    "alltoall_base_": _all_to_all_single,
    "allreduce_coalesced_": _coalesced("all_reduce of several", "tensors", "tensors"),
    "allgather_into_tensor_coalesced_": _coalesced("all_gather of several", "inputs", "outputs"),
    "reduce_scatter_tensor_coalesced_": _coalesced("reduce_scatter of several", "outputs", "inputs"),
    "barrier": lambda given, group: Call("barrier"),
    "monitored_barrier_": lambda given, group: Call("monitored_barrier"),
}
