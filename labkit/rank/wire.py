"""Read what the kernel has counted on this rank's TCP connections, and what a GPU has counted on its NVLinks."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import socket
import struct
import sys
import termios
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from labkit.rank import gloo, group

# struct tcp_info (linux/tcp.h): bytes received, bytes that wait to be sent, and, since Linux 4.19, bytes sent and those
# of them that were sent again.
RECEIVED, WAITING, SENT = 128, 144, 200
NVLINK_SENT = 138  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: KiB of payload since the driver was loaded
ALL_LINKS = 0xFFFFFFFF


def read() -> dict[str, Any]:
    """Tell what each connection of this process has carried so far.

    `sockets` are (local, peer, sent, received): two addresses, then bytes of the program's own data, headers of TCP
    and repetitions left out; `sent` has also what the kernel has taken and not sent yet. `nvlink` is how many bytes
    this rank's GPU has sent over NVLink, None where that is not known. `busy` is whether more may follow by itself:
    bytes have come that were not read yet, or a thread of Gloo has something to do. `why` says in words why there are
    no counters.
    """
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()  # a call on a GPU has returned before its data has moved
    why = "" if sys.platform == "linux" else f"{sys.platform} does not count bytes per connection; Linux does"
    return {
        "why": why,
        "sockets": [] if why else sockets(),
        "nvlink": nvlink(),
        "busy": not why and (unread() or not gloo.all_sleep()),
    }


def sockets() -> list[tuple[str, str, int, int]]:
    """List every connected TCP socket of this process that carries data, with its counters."""
    found = []
    for noted in sorted(group.data_sockets()):
        try:
            with group.opened(noted) as s:
                found.append((name(s.getsockname()), name(s.getpeername()), *counters(s)))
        except (OSError, struct.error):  # closed meanwhile, or an older kernel
            continue
    return found


def unread() -> bool:
    """Tell whether bytes of another rank have come, over the sockets of its groups, that were not read here yet."""
    for noted in group.noted_sockets(only_living=True):
        with contextlib.suppress(OSError), group.opened(noted) as s:  # closed meanwhile
            if struct.unpack("i", fcntl.ioctl(s, termios.FIONREAD, bytes(4)))[0]:
                return True
    return False


def sent() -> int | None:
    """Count the bytes that this rank has sent to others over its groups' sockets; None where that is not known."""
    # Checks of every call (DETAIL) send as well: then these are not the caller's bytes alone.
    if not group.counted() or dist.get_debug_level() == dist.DebugLevel.DETAIL:
        return None
    try:
        return sent_over(group.noted_sockets(only_living=True))
    except (OSError, struct.error):
        return None


def sent_over(connections: Iterable[group.Socket]) -> int:
    """Count the bytes that have gone out over these connections; OSError or struct.error where one does not tell."""
    total = 0
    for noted in connections:
        with group.opened(noted) as s:
            total += counters(s)[0]
    return total


def counters(s: socket.socket) -> tuple[int, int]:
    """Read the bytes sent, with what waits to be, and received."""
    info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (received,), (waiting,) = struct.unpack_from("Q", info, RECEIVED), struct.unpack_from("I", info, WAITING)
    done, again = struct.unpack_from("QQ", info, SENT)
    return done - again + waiting, received


def nvlink() -> int | None:
    """Count the bytes that this rank's GPU has sent over all its NVLinks, by NVML's counters."""
    if not torch.cuda.is_available():
        return None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        (field,) = nvml.nvmlDeviceGetFieldValues(handle, [(NVLINK_SENT, ALL_LINKS)])
        return None if field.nvmlReturn else int(field.value.ullVal) * 1024
    except Exception:  # no pynvml, no NVLink, an older driver: the notebook's side says so
        return None


def name(address: tuple[Any, ...]) -> str:
    """Spell an address as both ends of a connection do; a loopback one is the host's own."""
    host, port = str(address[0]).removeprefix("::ffff:").partition("%")[0], address[1]
    here = f"{socket.gethostname()} " if host.startswith("127.") or host == "::1" else ""
    return f"{here}{host} {port}"
