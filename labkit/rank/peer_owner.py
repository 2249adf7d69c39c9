"""Look up the owner of a connection's other end, to keep another user's program out of a group.

Gloo listens at a TCP port of its own for each group, and takes the first connection that tells the right small number
for the rank that it waits for. Linux tells whose a connection on this host is, and a filter lets a socket accept none
without closing it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from labkit.floor import time_limits
from labkit.floor.errors import LabError

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27  # asm-generic/socket.h; Python has no names for them
TAKE_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # "return 0", the one instruction of a program for packets

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLMSG_ERROR, NLM_F_REQUEST = 4, 20, 2, 1  # linux/netlink.h, linux/sock_diag.h
HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
WANTED = struct.Struct("=BBBBI")  # inet_diag_req_v2: family, protocol, extensions, padding, states; then what follows
CONNECTION = struct.Struct(">HH16s16s")  # inet_diag_sockid: both ports and addresses, this end's first
WHERE = struct.Struct("=I8s")  # its other two: the interface that the socket is bound to, and a cookie
NO_COOKIE = b"\xff" * 8
FOUND = struct.Struct("=4x48s12xII")  # inet_diag_msg: inet_diag_sockid, user, inode
MAPPED = b"\0" * 10 + b"\xff\xff"  # before an IPv4 address that is written as one of IPv6

End = tuple[bytes, int]  # address and port; of an IPv4-mapped address the IPv4 one
Ends = tuple[End, End]  # this end of a connection and the other one


def stop_accepting(listening: socket.socket) -> None:
    """Let no other process connect to this socket: a filter drops its packets, and the rank does not even wake up."""
    # Closing it, or shutting it down, would end Gloo and the rank with it.
    if sys.platform == "linux":
        program = ctypes.create_string_buffer(TAKE_NOTHING, len(TAKE_NOTHING))
        with contextlib.suppress(OSError):  # some sandboxes have no filters
            listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def accept_again(listening: socket.socket) -> None:
    """Let others connect to this socket again, if it had stopped accepting."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            listening.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def refuse_other_users(connected: Iterable[socket.socket]) -> None:
    """Raise `LabError` where another user's process is at the other end of one of these connections."""
    for mine, theirs in owners([e for s in connected if (e := _ends(s))]):
        if mine is not None and theirs is not None and mine != theirs:
            raise LabError(
                f"A program of another user of this machine (user number {theirs}) connected in the place of a rank. "
                "Nothing was sent to it, and the group was not made. Try again; if it happens again, ask whoever runs "
                "the machine to end that program."
            )


def owners(connections: Sequence[Ends]) -> list[tuple[int | None, int | None]]:
    """Look up the users of both ends of these connections; None for an end on another host, or held by no process."""
    if not connections:
        return []
    # Netlink looks up one connection; /proc, which lists all, takes a thousand times as long.
    try:
        if sys.platform == "linux":
            return by_netlink(connections)
    except (OSError, struct.error):  # a sandbox, or a kernel without it
        pass
    return by_proc(connections)


def by_netlink(connections: Sequence[Ends]) -> list[tuple[int | None, int | None]]:
    """Ask the kernel for each end; OSError where it cannot be asked."""
    interfaces = [0, *(number for number, _ in socket.if_nameindex())]
    found = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(time_limits.NETLINK_ANSWERS)
        for here, there in connections:
            (present, mine), (_, theirs) = (
                _look_up(kernel, *ends, interfaces) for ends in [(here, there), (there, here)]
            )
            if not present:  # it is ours: the kernel says the same where it lacks the module for TCP
                raise OSError(errno.ENOENT, "netlink does not know this process's own connection")
            found.append((mine, theirs))
    return found


def _look_up(kernel: socket.socket, here: End, there: End, interfaces: Sequence[int]) -> tuple[bool, int | None]:
    """Tell whether this host has this end, and its user, None where no process holds it."""
    # A socket that is bound to an interface, as anyone may bind theirs, is found by that interface's number alone.
    for interface in interfaces:
        if (answer := _asked(kernel, here, there, interface)) is not None:
            user, inode = answer
            return True, user if inode else None
    return False, None


def _asked(kernel: socket.socket, here: End, there: End, interface: int) -> tuple[int, int] | None:
    """Ask for user and inode of the socket with these ends; one that no process holds has no inode, and root's user."""
    family = socket.AF_INET if len(here[0]) == 4 else socket.AF_INET6
    ends = CONNECTION.pack(here[1], there[1], here[0].ljust(16, b"\0"), there[0].ljust(16, b"\0"))
    wanted = WANTED.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + ends + WHERE.pack(interface, NO_COOKIE)
    kernel.send(HEADER.pack(HEADER.size + len(wanted), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0) + wanted)
    reply = kernel.recv(4096)
    kind, data = HEADER.unpack_from(reply)[1], reply[HEADER.size :]
    if kind == NLMSG_ERROR:
        number = -struct.unpack_from("=i", data)[0]
        if number == errno.ENOENT:
            return None
        raise OSError(number, os.strerror(number))
    if kind != SOCK_DIAG_BY_FAMILY or len(data) < FOUND.size:
        raise OSError(errno.EPROTO, os.strerror(errno.EPROTO))
    # Where there is no such connection, the kernel tells of a socket that listens at this end.
    its, user, inode = FOUND.unpack_from(data)
    return (user, inode) if CONNECTION.unpack_from(its)[:2] == (here[1], there[1]) else None


def by_proc(connections: Sequence[Ends]) -> list[tuple[int | None, int | None]]:
    """Read the list of all TCP connections of this host."""
    users = {}
    mapped = _words(MAPPED)
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] != "0":  # the inode: what no process holds has none, and says that it is root's
                    users[fields[1].removeprefix(mapped), fields[2].removeprefix(mapped)] = int(fields[7])
    spelt = [(_spelt(here), _spelt(there)) for here, there in connections]
    return [(users.get((here, there)), users.get((there, here))) for here, there in spelt]


def _ends(s: socket.socket) -> Ends | None:
    try:
        return _end(s.family, s.getsockname()), _end(s.family, s.getpeername())
    except OSError:  # it went down meanwhile
        return None


def _end(family: int, address: tuple[str, int]) -> End:
    return socket.inet_pton(family, address[0].partition("%")[0]).removeprefix(MAPPED), address[1]


def _spelt(end: End) -> str:
    return f"{_words(end[0])}:{end[1]:04X}"


def _words(address: bytes) -> str:
    """Write the 32-bit words of an address in this machine's order."""
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(address) // 4}I", address))
