"""Join, leave and re-join the process group; choose the device and the backend. The only room with `if cuda`."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
import stat
import struct
import sys
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before a group is joined: it keeps the default group of this moment
from torch.distributed import distributed_c10d

from labkit import moment, place
from labkit.rank import guard
from labkit.rank.peer_owner import refuse_other_users, shut_the_door
from labkit.rank.slack import DROWSY, may_oversleep
from labkit.rank.store import TCP, MeetingStore
from labkit.theory import sharing

RENDEZVOUS = 20.0  # seconds that a rank waits for the others to join, or a fifth of the group's time-out

ESTABLISHED = 1  # the first byte of `struct tcp_info`
LAZY = "TORCH_GLOO_LAZY_INIT"  # connects ranks in their first call, where nobody notes the sockets

Socket = tuple[int, int]  # a file descriptor and its inode: the descriptor's number is used again

_store: MeetingStore | None = None
_joined_at = 0.0  # a `moment`, as the next
_aborted_at: float | None = None
_world: weakref.ref[Any] | None = None  # the group that was joined last
_sockets: list[tuple[weakref.ref[Any] | None, set[Socket]]] = []  # a group, and what connects it to other ranks
_to_store: set[Socket] = set()  # what connects this rank to a store on another host
_counted = False  # bytes were seen to be counted on them


def join(
    rank: int,
    world_size: int,
    backend: str,
    store: str,
    limit: float,
    local: int = 0,
    shares: bool = False,
    direct: int = 0,
) -> dict[str, Any]:
    """Leave whatever group there was and join a new one of `world_size` ranks that meet at `store` (`MeetingStore`).

    `limit` is the group's time-out in seconds: what torch falls back to should nobody free a waiting rank. `local`
    counts the ranks of one host: it chooses the GPU, which the rank `shares` with others, by NCCL's own paths where
    NCCL has these for so many ranks of one GPU (`direct`).
    Returns the facts that the lab's table shows, and whether a call that waits in the group can be freed.
    """
    global _store, _joined_at, _world, _counted
    leave()
    _joined_at = moment.now()
    before = connected_sockets()
    _store = MeetingStore(store, world_size)  # held here: torch keeps only its C++ half
    _to_store.clear()
    _to_store.update(connected_sockets() - before)
    device = choose_device(local, backend)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(local))
    direct = direct if direct and torch.cuda.nccl.version() >= sharing.MANY_A_GPU else 0
    os.environ.update(sharing.settings(rank, direct) if shares else {})
    with guard.world("" if store.startswith(TCP) else store):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if backend == "nccl" else backend,
            store=_store,
            rank=rank,
            world_size=world_size,
            # It bounds the rendezvous, hence not `limit`; but sends and receives keep it, and must outlast the lab
            timeout=timedelta(seconds=max(RENDEZVOUS, limit / 5)),
            device_id=device if device.type == "cuda" else None,
        )
    _world = weakref.ref(distributed_c10d._get_default_group())
    _counted = backend != "nccl" and _counts()
    if direct:  # what does not fit on the GPU together hangs, and only in the first call: now, while that can be mended
        dist.barrier()
        torch.cuda.synchronize(device)
    set_timeout = dist.set_timeout if hasattr(dist, "set_timeout") else distributed_c10d._set_pg_timeout  # before 2.14
    set_timeout(timedelta(seconds=limit), None)
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "place": place.here(),
        "device": str(device),
        "backend": "gloo + nccl" if backend == "nccl" else backend,
        "freeable": world_size == 1 or bool(noted_sockets()) or backend == "nccl",
    }


def joined() -> bool:
    """Whether this rank is in the group that it joined last, and that works as far as anybody can see here.

    A learner may have left it or made another one, the lab may have broken it off, a connection may be down.
    """
    world = _world() if _world is not None and dist.is_initialized() else None
    return world is not None and world is dist.group.WORLD and not aborted() and broken() is not True


def leave() -> None:
    """Free every call that waits in the group, then forget the group and its sub-groups."""
    _shut()
    guard.forget()
    if not dist.is_initialized() and (left := next(iter(distributed_c10d._world.pg_map), None)):
        distributed_c10d._update_default_pg(left)  # of a join that failed at its end: the next one needs its name
    if dist.is_initialized():
        dist.destroy_process_group()
    distributed_c10d._world.group_count = 0  # a failed attempt counts, and ranks meet under the count's name
    _sockets.clear()


def choose_device(local: int, backend: str) -> torch.device:
    """One GPU a rank with NCCL, the CPU otherwise."""
    if backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", local % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def abort() -> None:
    """Shut the sockets between the ranks, so that a call blocked in Gloo raises at once.

    Only connected sockets that appeared while a group was made are shut: shutting a listening one kills the
    process, and the engine's own connection to the notebook must live. On NCCL the communicator is aborted.
    A rank that still looks for the others, in `new_group` say, is freed through the store where they meet.
    """
    global _aborted_at
    if not aborted():
        _aborted_at = moment.now()
    _shut()


def _shut() -> None:
    if _store is not None:
        _store.abort()
    for noted in noted_sockets():
        with contextlib.suppress(OSError), opened(noted) as s:  # it may be closed meanwhile, or shut by the other side
            s.shutdown(socket.SHUT_RDWR)
    _sockets.clear()
    if torch.cuda.is_available() and dist.is_initialized() and "nccl" in dist.get_backend_config():
        distributed_c10d._abort_process_group()


def aborted() -> bool:
    """Whether `abort` has come since this rank joined."""
    return _store is None or _store.aborted


def times() -> tuple[float, float | None]:
    """When this rank last joined a group, and when the lab last broke one off (None: never); both a `moment`."""
    return _joined_at, _aborted_at


def broken() -> bool | None:
    """Whether a connection to another rank has gone down; None where there is none that can be asked.

    Gloo closes what failed: after a time-out, or once a peer has died, sockets are gone or no longer established.
    """
    living = noted_sockets(only_living=True)
    if sys.platform != "linux" or not living:
        return None
    return not all(map(_is_up, living))


def counted() -> bool:
    """Whether bytes were seen to be counted on the sockets between this rank and the others."""
    return _counted


def moved() -> int | None:
    """Bytes that the kernel has acknowledged or received on the sockets between this rank and the others.

    None where nobody counts them, or nobody has seen them counted: not on Linux, on NCCL, in some sandboxes.
    """
    return _moved() if _counted else None


def _counts() -> bool:
    """Whether a barrier, which every rank joins in, is seen to move bytes here."""
    before = _moved()
    dist.barrier()
    return _moved() > before


def _moved() -> int:
    """Linux counts in `struct tcp_info`, two 64-bit numbers at byte 120; elsewhere this is 0."""
    total = 0
    for noted in noted_sockets() if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, struct.error), opened(noted) as s:
            total += sum(struct.unpack_from("QQ", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136), 120))
    return total


def noted_sockets(only_living: bool = False) -> list[Socket]:
    """The sockets between this rank and others; those of a group that the learner has destroyed may be closed."""
    return [s for group, sockets in list(_sockets) if not only_living or _lives(group) for s in sockets]


def _lives(group: weakref.ref[Any] | None) -> bool:
    return group is not None and group() in distributed_c10d._world.pg_map


def _is_up(noted: Socket) -> bool:
    try:
        with opened(noted) as s:
            return s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED
    except OSError as error:
        return error.errno == errno.EMFILE  # no descriptor is left to ask with: nobody says that it is down


def opened(noted: Socket) -> socket.socket:
    """A second handle on a socket, while it is the one that was noted; OSError where it is gone."""
    fd, inode = noted
    own = os.dup(fd)
    try:
        if os.fstat(own).st_ino != inode:
            raise OSError("closed meanwhile")
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)  # which no socket has taken: the number may be a file's by now
        raise


def connected_sockets() -> set[Socket]:
    """File descriptor and inode of every connected TCP socket of this process."""
    return tcp_sockets()[0]


def data_sockets() -> set[Socket]:
    """Of those, all but the one to the store where ranks meet and compare their calls: it carries no data of theirs."""
    return connected_sockets() - _to_store


def tcp_sockets() -> tuple[set[Socket], set[Socket]]:
    """File descriptor and inode of every TCP socket of this process: of the connected ones, and of the listening."""
    connected, listening = set(), set()
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            info = os.fstat(int(name))
            if not stat.S_ISSOCK(info.st_mode):
                continue
            with opened((int(name), info.st_ino)) as s:
                tcp = s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM
                if tcp and s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listening.add((int(name), info.st_ino))
                elif tcp:
                    s.getpeername()  # raises where it is not connected
                    connected.add((int(name), info.st_ino))
        except OSError:
            continue
    return connected, listening


def _noting_sockets(make_group: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch's one maker of process groups, so that sub-groups can be freed as well as the world."""

    @functools.wraps(make_group)
    def noted(*args: Any, **kwargs: Any) -> Any:
        before, open_before = tcp_sockets()
        lazy = os.environ.pop(LAZY, None)
        made = None
        may_oversleep(DROWSY)  # for Gloo's thread; this one is brisk again when it first waits for another rank
        try:
            made = make_group(*args, **kwargs)
            return made
        finally:
            may_oversleep(0)
            if lazy is not None:
                os.environ[LAZY] = lazy
            now, open_now = tcp_sockets()
            group = weakref.ref(made[0]) if made and isinstance(made[0], dist.ProcessGroup) else None
            _sockets[:] = [(g, s) for g, s in _sockets if _lives(g) or s & now] + [(group, now - before)]
            with contextlib.ExitStack() as handles:
                try:
                    refuse_other_users(_opened(now - before, handles))
                except BaseException:  # a Stop as well
                    _forget(made)
                    made = None  # or the traceback would keep it, with what it listens at
                    raise
                for door in _opened(open_now - open_before, handles):  # only now: who was kept out is on its way
                    shut_the_door(door)

    return noted


def _forget(made: Any) -> None:
    """Destroy a group that torch has made and not handed out yet."""
    if made and isinstance(made[0], dist.ProcessGroup):
        distributed_c10d._world.pg_group_ranks.setdefault(made[0], {})  # which its maker would have noted next
        dist.destroy_process_group(made[0])


def _opened(noted: set[Socket], handles: contextlib.ExitStack) -> list[socket.socket]:
    """Handles on these sockets, without those that are gone."""
    found = []
    for one in noted:
        with contextlib.suppress(OSError):
            found.append(handles.enter_context(opened(one)))
    return found


distributed_c10d._new_process_group_helper = _noting_sockets(distributed_c10d._new_process_group_helper)
guard.install()
