"""Join, leave and re-join the process group; choose the device and the backend. The only room with `if cuda`."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
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

from labkit.floor import pid_namespace, time_limits, timestamps
from labkit.rank import gloo, guard, patience, torch_internals
from labkit.rank.peer_owner import accept_again, refuse_other_users, stop_accepting
from labkit.rank.store import TCP, MeetingStore
from labkit.theory import gpu_sharing

BACKENDS = {"nccl": "cpu:gloo,cuda:nccl"}  # torch's words for a lab's backend, where it stands beside Gloo
ABORTED = {"nccl"}  # in torch's words for a group: it has communicators whose abort frees who waits in them
ESTABLISHED = 1  # the first byte of `struct tcp_info`
LAZY = "TORCH_GLOO_LAZY_INIT"  # connects ranks in their first call, where the sockets are not noted
EVENT_LOOP = "anon_inode:[eventpoll]"  # what Linux calls the descriptor of an epoll instance
WATCHED = re.compile(r"^tfd:\s*(\d+) .*\bino:([0-9a-f]+)", re.MULTILINE)  # a descriptor that it watches (proc(5))

Socket = tuple[int, int]  # a file descriptor and its inode: the descriptor's number is used again

_store: MeetingStore | None = None
_joined_at = 0.0  # a timestamp, as the next
_aborted_at: float | None = None
_world: weakref.ref[Any] | None = None  # the group that was joined last
_sockets: list[tuple[weakref.ref[Any] | None, set[Socket]]] = []  # a group, and what connects it to other ranks
_shut_listeners: set[Socket] = set()  # at which Gloo listens, and that accept no connection any more
_to_store: set[Socket] = set()  # what connects this rank to a store on another host
_listened_before: set[Socket] | None = None  # at which this rank listened before the group that is being made
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
    count: int = 1,
) -> dict[str, Any]:
    """Leave the group that there was and join a new one of `world_size` ranks that meet at `store` (`MeetingStore`).

    `limit` is the group's time-out in seconds: what torch falls back to should a waiting rank not be freed. `local`
    counts the ranks of one host: it chooses the GPU, which the rank `shares` with others, by NCCL's own paths where
    NCCL has these for so many ranks of one GPU (`direct`). Groups that are made later are numbered from `count`: torch
    finds a group by its number, and what was made in an earlier world must not find one of other ranks.
    Return the facts that the lab's table shows, and whether a call that waits in the group can be freed.
    """
    global _store, _joined_at, _world, _counted
    leave()
    _shut_listeners.clear()
    torch_internals.number_groups_from(0)  # a failed attempt counts; what an earlier world holds knows it by its name
    _joined_at = timestamps.now()
    before = tcp_sockets()[0]
    _store = MeetingStore(store, world_size)  # held here: torch keeps only its C++ half
    _to_store.clear()
    _to_store.update(tcp_sockets()[0] - before)
    device = choose_device(local, backend)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(local))
    direct = direct if direct and torch.cuda.nccl.version() >= gpu_sharing.MANY_A_GPU else 0
    os.environ.update(gpu_sharing.settings(rank, direct) if shares else {})
    with guard.world("" if store.startswith(TCP) else store):
        dist.init_process_group(
            BACKENDS.get(backend, backend),
            store=_store,
            rank=rank,
            world_size=world_size,
            # It bounds the rendezvous, hence not `limit`; but sends and receives keep it, and must outlast the lab
            timeout=timedelta(seconds=max(time_limits.RANKS_MEET, limit / 5)),
            device_id=device if device.type == "cuda" else None,
        )
    torch_internals.number_groups_from(count)
    world: Any = dist.group.WORLD
    _world = weakref.ref(world)
    for kind in ("cpu", "cuda"):  # a group split off needs them, and torch fills them in for a process's first world
        with contextlib.suppress(RuntimeError, AttributeError):  # it has no such backend, or none with options
            torch_internals.backend_of(world, kind).options.global_ranks_in_group = list(range(world_size))
    _counted = backend not in BACKENDS and _counts()
    if direct:  # what does not fit on the GPU together hangs, and only in the first call: now, while that can be mended
        dist.barrier()
        torch.cuda.synchronize(device)
    torch_internals.set_timeout(timedelta(seconds=limit))
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "place": pid_namespace.here(),
        "device": str(device),
        "backend": "gloo + nccl" if backend == "nccl" else backend,
    }


def joined() -> bool:
    """Tell whether this rank is in the group that it joined last, and that works as far as can be seen here."""
    # A learner may have left it or made another one, the lab may have broken it off, a connection may be down, or a
    # cell has ended at a call that was refused.
    world = _world() if _world is not None and dist.is_initialized() else None
    works = not aborted() and broken() is not True and not guard.refused()
    return world is not None and world is dist.group.WORLD and works


def leave() -> None:
    """Free every call that waits in the group, then forget the group and its sub-groups."""
    _shut()
    guard.forget()
    if not dist.is_initialized() and (left := next(iter(torch_internals.groups()), None)):
        torch_internals.set_default_group(left)  # of a join that failed at its end: the next one needs its name
    if dist.is_initialized():
        dist.destroy_process_group()
    _sockets.clear()


def choose_device(local: int, backend: str) -> torch.device:
    """Choose one GPU a rank with NCCL, the CPU otherwise."""
    if backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", local % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def abort() -> None:
    """Shut Gloo's sockets between the ranks, so that a call blocked in Gloo raises; abort NCCL's communicators."""
    global _aborted_at
    if not aborted():
        _aborted_at = timestamps.now()
    _shut()


def _shut() -> None:
    if _store is not None:  # a rank that still looks for the others there, in `new_group` say, is freed too
        _store.abort()
        _come_for_others(_store.world_size)
    # Connected sockets of Gloo's alone: shutting a listening one kills the process, and the engine's own connection to
    # the notebook must live. NCCL's are left to NCCL: an abort ends its kernels, and every call that waits for the GPU.
    for noted in noted_sockets():
        with contextlib.suppress(OSError), opened(noted) as s:  # it may be closed meanwhile, or shut by the other side
            s.shutdown(socket.SHUT_RDWR)
    _sockets.clear()
    if dist.is_initialized() and any(name in dist.get_backend_config() for name in ABORTED):
        torch_internals.abort_groups()


def _come_for_others(world_size: int) -> None:
    """Connect to where a group that is being made listens, as each rank of the world would, and leave at once.

    Gloo waits in C++ for ranks that connect to it, however hopeless: one that has failed never comes.
    """
    before = _listened_before
    if before is None:
        return
    with contextlib.ExitStack() as handles:
        for listener in _opened((tcp_sockets()[1] - before) & _watched(), handles):
            for other in range(world_size):
                with contextlib.suppress(OSError):  # it has gone on meanwhile
                    address = listener.getsockname()[:2]
                    with socket.create_connection(address, time_limits.RELEASE_STEP) as s:
                        s.sendall(struct.pack("<q", other))


def aborted(within: float = 0.0) -> bool:
    """Tell whether `abort` has come since this rank joined, or comes within so many seconds."""
    return _store is None or _store.broken_off.wait(within)


def times() -> tuple[float, float | None]:
    """Return when this rank last joined a group, and when the lab last broke one off (None: never)."""
    return _joined_at, _aborted_at


def broken() -> bool | None:
    """Tell whether a connection to another rank has gone down; None where there is none that can be asked."""
    living = noted_sockets(only_living=True)
    if sys.platform != "linux" or not living:
        return None
    # Gloo closes what failed: after a time-out, or once a peer has died, sockets are gone or no longer established.
    return not all(map(_is_up, living))


def counted() -> bool:
    """Tell whether bytes were seen to be counted on the sockets between this rank and the others."""
    return _counted


def moved() -> int | None:
    """Count the bytes acknowledged or received on the sockets to other ranks; None where the kernel counts none."""
    # None on other systems than Linux, on NCCL, in some sandboxes.
    return _moved() if _counted else None


def _counts() -> bool:
    """Tell whether a barrier, which every rank joins in, is seen to move bytes here."""
    before = _moved()
    dist.barrier()
    return _moved() > before


def _moved() -> int:
    """Read the bytes from `struct tcp_info`, where Linux has two 64-bit numbers at byte 120; elsewhere this is 0."""
    total = 0
    for noted in noted_sockets() if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, struct.error), opened(noted) as s:
            total += sum(struct.unpack_from("QQ", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136), 120))
    return total


def noted_sockets(only_living: bool = False) -> list[Socket]:
    """List the sockets between this rank and others; those of a group that the learner has destroyed may be closed."""
    return [s for group, sockets in list(_sockets) if not only_living or _lives(group) for s in sockets]


def _lives(group: weakref.ref[Any] | None) -> bool:
    return group is not None and group() in torch_internals.groups()


def _is_up(noted: Socket) -> bool:
    try:
        with opened(noted) as s:
            return s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED
    except OSError as error:
        return error.errno == errno.EMFILE  # no descriptor is left to ask with: it may be up


def opened(noted: Socket) -> socket.socket:
    """Open a second handle on a socket, while it is the one that was noted; OSError where it is gone."""
    fd, inode = noted
    own = os.dup(fd)
    try:
        if os.fstat(own).st_ino != inode:
            raise OSError("closed meanwhile")
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)  # which no socket has taken: the number may be a file's by now
        raise


def data_sockets() -> set[Socket]:
    """Return the connected TCP sockets that carry data: not the one to the store where ranks meet and compare calls."""
    return tcp_sockets()[0] - _to_store


def _watched() -> set[Socket]:
    """Return the descriptors that event loops of this process watch; none where /proc does not tell it."""
    found = set()
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{name}") == EVENT_LOOP:
                with open(f"/proc/self/fdinfo/{name}") as info:
                    found |= {(int(fd), int(inode, 16)) for fd, inode in WATCHED.findall(info.read())}
    return found


def tcp_sockets() -> tuple[set[Socket], set[Socket]]:
    """Return file descriptor and inode of this process's TCP sockets: of the connected, and of the listening ones."""
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


def _noting_sockets(make_group: Callable[..., Any], splits: bool = False) -> Callable[..., Any]:
    """Wrap a maker of process groups to note their sockets, so that sub-groups can be freed as well as the world."""

    @functools.wraps(make_group)
    def noted(*args: Any, **kwargs: Any) -> Any:
        global _listened_before
        before, open_before = tcp_sockets()
        # In a group that is split off, ranks connect to the listening sockets of the group that it was split from.
        reopened = _shut_listeners & open_before if splits else set()
        with contextlib.ExitStack() as handles:
            for listener in _opened(reopened, handles):
                accept_again(listener)
        lazy = os.environ.pop(LAZY, None)
        made, _listened_before = None, open_before
        gloo.set_timer_slack(gloo.SLACK)  # for Gloo's thread; this one has none from its first wait for another rank
        try:
            made = make_group(*args, **kwargs)
            return made
        finally:
            gloo.set_timer_slack(0)
            _listened_before = None
            if lazy is not None:
                os.environ[LAZY] = lazy
            now, open_now = tcp_sockets()
            # Gloo's sockets are watched, NCCL's never.
            watched = _watched()
            new, listeners = ((s & watched if watched else s) for s in (now - before, open_now - open_before))
            listeners |= reopened
            group = made[0] if isinstance(made, tuple) else made
            group = group if isinstance(group, dist.ProcessGroup) else None
            patience.lift(group)
            _sockets[:] = [(g, s) for g, s in _sockets if _lives(g) or s & now]
            _sockets.append((weakref.ref(group) if group is not None else None, new))
            with contextlib.ExitStack() as handles:
                try:
                    refuse_other_users(_opened(new, handles))
                except BaseException:  # a Stop as well
                    _forget(group)
                    made = group = None  # or the traceback would keep it, with what it listens at
                    raise
                for listener in _opened(listeners, handles):  # only now: a rank that was kept out is on its way
                    stop_accepting(listener)
                _shut_listeners.update(listeners)

    return noted


def _forget(group: Any) -> None:
    """Destroy a group that torch has made and not handed out yet."""
    if group in torch_internals.groups():
        torch_internals.group_ranks().setdefault(group, {})  # which its maker would have noted next
        dist.destroy_process_group(group)
    elif group is not None:  # split off another one
        group.shutdown()


def _opened(noted: set[Socket], handles: contextlib.ExitStack) -> list[socket.socket]:
    """Open handles on these sockets, without those that are gone."""
    found = []
    for one in noted:
        with contextlib.suppress(OSError):
            found.append(handles.enter_context(opened(one)))
    return found


torch_internals.set_group_maker(_noting_sockets(torch_internals.group_maker()))
torch_internals.wrap_group_splitter(functools.partial(_noting_sockets, splits=True))
guard.install()
