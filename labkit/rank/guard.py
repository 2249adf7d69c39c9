"""Compare, before a collective runs, what its ranks are about to do: what does not fit raises, and runs nowhere.

Without that it may hang, end a rank or give wrong numbers. All collectives go through torch's dispatcher, whether
`dist.…`, `comms.…`, a functional collective or DDP's buckets in C++ call. There, under the key that every call passes
first (BackendSelect), the guard puts up the call on the group's board (`labkit.rank.board`), reads what the others
have put up, and raises where they disagree. It waits for no rank: a broadcast stays no barrier, and the rank that
comes first goes on. One that comes later finds the mismatch and enters nothing, so no two ranks that disagree ever
exchange a byte. The lab then ends the cell on the other ranks too.

`install` puts it in place; `off` takes it out, for good or for a while, and torch is as if there had been none.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import secrets
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from labkit.floor import time_limits
from labkit.floor.errors import LabError, MismatchError
from labkit.floor.words import count
from labkit.rank import group_counters, membership, models, torch_internals
from labkit.rank.board import HEAD, ROOM, FileBoard, StoreBoard, gathered
from labkit.rank.contiguity import spoiled
from labkit.rank.dispatched_calls import CALLS, Place, located
from labkit.rank.torch_internals import BACKEND_SELECT
from labkit.theory.fingerprint import Call, differs, disagreement, fit, pack, unpack

GONE = (OSError, RuntimeError)  # a board is, with the rank that kept its store: the call itself will tell


@dataclass
class Guarded:
    """A group whose calls are compared."""

    board: FileBoard | StoreBoard
    place: Place
    made: int = 0  # calls of mine
    models: int = 0  # that I gave DistributedDataParallel


_groups: dict[str, Guarded] = {}  # by the group's name
_beside: str | None = None  # a file beside which boards go; "": into the group's store; None: no group is guarded
_library: torch.library.Library | None = None
_wanted = False
_shown = False  # what Gloo spoils is shown by a check, and not refused
_refused: Exception | None = None  # the first call that this rank was refused in its cell
_forbidden = ""  # why nothing may be called


def install() -> None:
    """Guard every group that is made from now on while the lab's own is the default group."""
    make_group = torch_internals.group_maker()
    if not hasattr(make_group, "guarded"):
        torch_internals.set_group_maker(_guarding(make_group))
        torch_internals.wrap_model_verifier(functools.partial(models.comparing, compare=_compare_models))
        torch_internals.wrap_group_splitter(_guarding_splits)
        torch_internals.note_reductions()


@contextlib.contextmanager
def world(store: str) -> Iterator[None]:
    """Make the lab's group inside; boards go beside its store, a file, or with "" into the store."""
    global _beside
    forget()
    # The lab removes them with the store's file, once all ranks have joined another group.
    _beside = store
    try:
        yield
    except BaseException:
        forget()
        raise


def compared() -> dict[str, tuple[list[int], int]]:
    """Return the ranks of each group whose calls are compared, and how many were, by the group's name."""
    return {name: (list(guarded.place.members), guarded.made) for name, guarded in list(_groups.items())}


def started(group: Any) -> int:
    """Count the operations that this rank has started in a group; -1 where torch does not count them."""
    try:
        return torch_internals.calls_counted(group)
    except RuntimeError:
        return -1


def is_board(path: Any) -> bool:
    """Tell whether a file is a board of the lab's groups."""
    return bool(_beside) and str(path).startswith(f"{_beside}-board-")


def forget() -> None:
    """Let all groups go."""
    global _beside
    clear_refusal()
    _beside = None
    for guarded in _groups.values():
        guarded.board.close()
    _groups.clear()


def _guarding(make_group: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch's maker of groups to guard every group that it makes."""
    parameters = inspect.signature(make_group)

    @functools.wraps(make_group)
    def made(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        name, n, ranks = given["group_name"], given["group_size"], given["global_ranks_in_group"]
        if _ours() and _wanted and ranks and (said := membership.compare(given["store"], name, ranks)):
            refuse(MismatchError(said))
        me = given["group_rank"] if not ranks or dist.get_rank() in ranks else None
        return _with_board(lambda: make_group(*args, **kwargs), given["store"], name, list(ranks) or list(range(n)), me)

    made.guarded = True  # type: ignore[attr-defined]
    return made


def _guarding_splits(split_group: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `ProcessGroup.split_group` to guard every group that it makes."""

    @functools.wraps(split_group)
    def split(parent: Any, ranks: Any, *args: Any, **kwargs: Any) -> Any:
        name, of = kwargs.get("group_name"), torch_internals.group_ranks().get(parent, {})
        if name is None or parent.group_name not in _groups:
            return split_group(parent, ranks, *args, **kwargs)
        world = {inside: rank for rank, inside in of.items()}
        me = ranks.index(parent.rank()) if parent.rank() in ranks else None
        make = functools.partial(split_group, parent, ranks, *args, **kwargs)
        return _with_board(make, parent.get_group_store(), name, [world[r] for r in ranks], me)

    return split


def _with_board(make: Callable[[], Any], store: Any, name: str, members: list[int], me: int | None) -> Any:
    """Let a new group's members share a board; `me` is this rank's place among them, None if it is none of them."""
    n = len(members)
    if not _ours() or n < 2:
        return make()
    key = f"labkit-board/{name}"
    # The first one makes it, before the others can have come.
    board = _shared_board(store, key, 0, n) if me == 0 else None
    try:
        made = make()
    except BaseException:
        if board:
            board.remove()
        raise
    group = made[0] if isinstance(made, tuple) else made
    if isinstance(group, dist.ProcessGroup) and me is not None:
        try:
            board = board or _shared_board(store, key, me, n)
        except FileNotFoundError:  # its first rank never got the group, or has let it go: no call will be complete
            return made
        _groups[name] = Guarded(board, Place(me, members))
        weakref.finalize(group, _gone, name, _groups[name]).atexit = False
    return made


def _ours() -> bool:
    """Tell whether a group that is made now is the lab's: the world as it joins, or a group made in a guarded one."""
    if _beside is None:
        return False
    return (world := dist.group.WORLD) is None or world.group_name in _groups


def _compare_models(group: Any, states: models.States) -> None:
    """Raise where another rank of a guarded group has given DistributedDataParallel another model."""
    guarded = _groups.get(group.group_name) if _library is not None and group in torch_internals.groups() else None
    if guarded is not None:
        guarded.models += 1
        store, (me, members) = torch_internals.groups()[group][1], (guarded.place.me, guarded.place.members)
        with contextlib.suppress(*GONE):
            models.compare(store, f"{group.group_name}/{guarded.models}", me, list(members), states)


def board_for(group: Any, key: str) -> FileBoard | StoreBoard:
    """Make one more board for a group, found under this key of its store; each of its ranks calls this."""
    store = torch_internals.groups()[group][1]
    return _shared_board(store, key, dist.get_rank(group), dist.get_world_size(group))


def _shared_board(store: dist.Store, key: str, me: int, n: int) -> FileBoard | StoreBoard:
    """Make a board as the first rank and tell the others its place under this key, or open it as one of them."""
    if me:
        return _open_board(store.get(key).decode(), store, me, n)
    unique = secrets.token_hex(6)  # names of groups come again
    file = FileBoard.make(f"{_beside}-board-{unique}", n) if _beside else None
    place = file.path if file else f"store:{unique}"
    store.set(key, place)
    return file or _open_board(place, store, 0, n)


def _open_board(place: str, store: dist.Store, me: int, n: int) -> FileBoard | StoreBoard:
    if place.startswith("store:"):
        return StoreBoard(dist.PrefixStore(f"labkit-board/{place}", store), me, n)
    return FileBoard(place, me, n)


def _gone(name: str, guarded: Guarded) -> None:
    """Remove the board of a group that was destroyed, by a learner say."""
    if _groups.get(name) is guarded:
        del _groups[name]
        guarded.board.remove()


# -- refusing -----------------------------------------------------------------------------------------------------


def refuse(error: Exception) -> NoReturn:
    """Raise this error, and the same again at every later collective of this rank in its cell."""
    # The ranks are out of step from here on: others may wait in the refused call, which would meet a later one.
    global _refused
    _refused = _refused or copy.copy(error)  # without the frames that it comes through
    raise error from None


def must_exist(rank: int, n: int, group: Any) -> None:
    """Refuse a rank that is none of a group's n: Gloo crashes on it, or waits for it."""
    if rank not in range(n):
        within = "" if group is dist.group.WORLD else " of this group"
        refuse(ValueError(f"there is no rank {rank} among {count(n, 'rank')}{within}: choose one of 0 to {n - 1}"))


@contextlib.contextmanager
def shows_what_is_spoiled() -> Iterator[None]:
    """Let Gloo spoil tensors inside: a check compares the numbers, and from wrong ones a learner sees what happens."""
    global _shown
    _shown = True
    try:
        yield
    finally:
        _shown = False


def refused() -> bool:
    """Tell whether this rank was refused a call in its cell: what the ranks have sent until then may lie open."""
    return _refused is not None


def clear_refusal() -> None:
    """Let collectives be called again: the cell that was refused one is over."""
    global _refused
    _refused = None


# -- in the dispatcher --------------------------------------------------------------------------------------------


def on() -> None:
    """Compare from now on."""
    global _library, _wanted
    _wanted = True
    if _library is None:
        library = torch.library.Library("c10d", "IMPL")
        for name in CALLS:
            if operation := getattr(torch.ops.c10d, name, None):  # an older torch has fewer
                library.impl(name, _comparing(name, operation.default), "BackendSelect", with_keyset=True)
        _library = library


def forbid(why: str) -> None:
    """Refuse every collective from now on, in a process that has taken over the rank's groups without their threads."""
    global _forbidden
    _forbidden = why
    _groups.clear()  # the boards are the rank's
    on()


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
    if _library is not None and not _forbidden:
        torch_internals.take_out(_library)
        _library = None


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Compare nothing that runs inside."""
    _take_out()
    try:
        yield
    finally:
        resume()


def _comparing(name: str, operation: Any) -> Callable[..., Any]:
    names = torch_internals.argument_names(operation)
    at, describe = names.index("process_group"), CALLS[name]

    def compare(keys: Any, *args: Any) -> Any:
        if _forbidden:
            raise LabError(_forbidden)
        group = dist.ProcessGroup.unbox(args[at])
        guarded = _groups.get(group.group_name)
        if guarded is None:
            return operation.redispatch(keys.remove(BACKEND_SELECT), *args)
        if _refused is not None:
            raise copy.copy(_refused)
        made, begun = guarded.made, group_counters.counted(group)
        try:
            given = dict(zip(names, args, strict=False))
            must_exist(given.get("root_rank", 0), len(guarded.place.members), group)
            if not _shown and (said := spoiled(name, given, group)):
                refuse(ValueError(said))
            _meet(guarded, describe, given)
            return operation.redispatch(keys.remove(BACKEND_SELECT), *args)
        except MismatchError:
            raise
        except BaseException as error:
            # Refused, or interrupted before it began. NCCL refuses a reduction only once it has counted the call, on
            # every rank, some a little later: there it has been made, or a rank that goes on would seem out of step.
            counted = group_counters.counted(group)
            if counted == begun or (isinstance(error, Exception) and len(counted) == 1):
                guarded.made = made
                with contextlib.suppress(*GONE):
                    guarded.board.take_back(made + 1)
            raise

    return compare


def _meet(guarded: Guarded, describe: Callable[..., Call], given: dict[str, Any]) -> None:
    """Put up this call, and raise where one that is up already does not fit."""
    guarded.made = nth = guarded.made + 1
    me, members = guarded.place.me, guarded.place.members
    mine = located(describe(given, guarded.place))
    mine = replace(mine, strides="") if _shown else mine
    with contextlib.suppress(*GONE):
        guarded.board.write(nth, pack(mine, ROOM - HEAD.size))
    up = _up(guarded, nth)
    if all(fit(mine, me, call, i) for i, call in ((me, mine), *up.items())):  # its output fits its own input, too
        return
    up = gathered(lambda: _up(guarded, nth), len(members), time_limits.CALL_WITHDRAWN)
    calls = {members[i]: call for i, call in up.items()}
    if said := disagreement(calls, members):
        refuse(MismatchError(said, differs(calls, members)))


def _up(guarded: Guarded, nth: int) -> dict[int, Call]:
    with contextlib.suppress(*GONE):
        return {i: unpack(data) for i, data in guarded.board.read(nth).items()}
    return {}
