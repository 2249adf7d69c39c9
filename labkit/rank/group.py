"""Join, leave and re-join the process group; choose the device and the backend. The only room with `if cuda`."""

from __future__ import annotations

import functools
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before a group is joined: it keeps the default group of this moment
from torch.distributed import distributed_c10d

from labkit.rank.store import MeetingStore

RENDEZVOUS = timedelta(seconds=20)  # how long a rank waits for the others to join

_store: MeetingStore | None = None
_noted: set[tuple[int, int]] = set()  # (file descriptor, inode) of the sockets that connect this rank to others


def join(rank: int, world_size: int, backend: str, store: str, limit: float) -> dict[str, Any]:
    """Leave whatever group there was and join a new one of `world_size` ranks that meet in the file `store`.

    `limit` is the group's time-out in seconds: what torch falls back to should nobody free a waiting rank.
    Returns the facts that the lab's table shows.
    """
    global _store
    leave()
    _store = MeetingStore(store, world_size)  # held here: torch keeps only its C++ half
    device = choose_device(rank, backend)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if backend == "nccl" else backend,
        store=_store,
        rank=rank,
        world_size=world_size,
        timeout=RENDEZVOUS,  # it also bounds the rendezvous, hence not `limit`
        device_id=device if device.type == "cuda" else None,
    )
    set_timeout = dist.set_timeout if hasattr(dist, "set_timeout") else distributed_c10d._set_pg_timeout  # before 2.14
    set_timeout(timedelta(seconds=limit), None)
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "device": str(device),
        "backend": "gloo + nccl" if backend == "nccl" else backend,
    }


def leave() -> None:
    """Free every call that waits in the group, then forget the group and its sub-groups."""
    abort()
    if dist.is_initialized():
        dist.destroy_process_group()
    distributed_c10d._world.group_count = 0  # a failed attempt counts, and ranks meet under the count's name
    _noted.clear()


def choose_device(rank: int, backend: str) -> torch.device:
    """One GPU a rank with NCCL, the CPU otherwise."""
    if backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def abort() -> None:
    """Shut the sockets between the ranks, so that a call blocked in Gloo raises at once.

    Only connected sockets that appeared while a group was made are shut: shutting a listening one kills the
    process, and the engine's own connection to the notebook must live. On NCCL the communicator is aborted.
    A rank that still looks for the others, in `new_group` say, is freed through the store where they meet.
    """
    if _store is not None:
        _store.abort()
    for fd, inode in list(_noted):
        try:
            if os.fstat(fd).st_ino == inode:
                with socket.socket(fileno=os.dup(fd)) as s:
                    s.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed meanwhile, or shut by the other side
            pass
    _noted.clear()
    if torch.cuda.is_available() and dist.is_initialized() and "nccl" in dist.get_backend_config():
        distributed_c10d._abort_process_group()


def aborted() -> bool:
    """Whether `abort` has come since this rank joined."""
    return _store is None or _store.aborted


def moved() -> int:
    """Bytes that the kernel has acknowledged or received on the sockets between this rank and the others.

    Linux counts them in `struct tcp_info`, two 64-bit numbers at byte 120; elsewhere this is 0.
    """
    total = 0
    for fd, inode in list(_noted):
        try:
            if sys.platform == "linux" and os.fstat(fd).st_ino == inode:
                with socket.socket(fileno=os.dup(fd)) as s:
                    total += sum(struct.unpack_from("QQ", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136), 120))
        except (OSError, struct.error):
            continue
    return total


def _connected_sockets() -> set[tuple[int, int]]:
    """File descriptor and inode of every connected TCP socket of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            info = os.fstat(int(name))
            if not stat.S_ISSOCK(info.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as s:
                tcp = s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM
                if tcp and not s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    s.getpeername()  # raises where it is not connected
                    found.add((int(name), info.st_ino))
        except OSError:
            continue
    return found


def _noting_sockets(make_group: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch's one maker of process groups, so that sub-groups can be freed as well as the world."""

    @functools.wraps(make_group)
    def noted(*args: Any, **kwargs: Any) -> Any:
        before = _connected_sockets()
        try:
            return make_group(*args, **kwargs)
        finally:
            _noted.update(_connected_sockets() - before)

    return noted


distributed_c10d._new_process_group_helper = _noting_sockets(distributed_c10d._new_process_group_helper)
