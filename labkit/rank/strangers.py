"""Another user's programs at Gloo's doors: none gets a rank's place unnoticed, and none gets in afterwards.

Gloo listens at a TCP port of its own for each group, and takes whoever comes first with the right small number for the
rank that it waits for. Linux tells whose a connection on this host is, and a filter shuts a door without closing it.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from labkit.errors import LabError

SO_ATTACH_FILTER = 26  # asm-generic/socket.h; Python has no name for it
TAKE_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # "return 0", the one instruction of a program for packets

Ends = tuple[str, str]  # this end's address and the other one's, as /proc/net/tcp writes them


def shut_the_door(listening: socket.socket) -> None:
    """Let nobody else connect to this socket: whoever tries gets no answer. The rank does not even wake up.

    Closing it, or shutting it down, would end Gloo and the rank with it.
    """
    if sys.platform == "linux":
        program = ctypes.create_string_buffer(TAKE_NOTHING, len(TAKE_NOTHING))
        with contextlib.suppress(OSError):  # some sandboxes have no filters
            listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def refuse_strangers(connected: Iterable[socket.socket]) -> None:
    """Raise `LabError` where another user's process is at the other end of one of these connections."""
    ends = [e for s in connected if (e := _ends(s))]
    owners = _owners() if ends else {}
    for here, there in ends:
        mine, theirs = owners.get((here, there)), owners.get((there, here))
        if mine is not None and theirs is not None and mine != theirs:
            raise LabError(
                f"A program of another user of this machine (user number {theirs}) connected in the place of a rank. "
                "Nothing was sent to it, and the group is not made. Try again; if it comes back, ask whoever runs "
                "the machine to end that program."
            )


def _owners() -> dict[Ends, int]:
    """The user of each end of a TCP connection on this host, by its addresses; of ends that nobody holds, none."""
    owners = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] != "0":  # the inode: what no process holds has none, and says that it is root's
                    owners[fields[1], fields[2]] = int(fields[7])
    return owners


def _ends(s: socket.socket) -> Ends | None:
    try:
        return _spelt(s.family, s.getsockname()), _spelt(s.family, s.getpeername())
    except OSError:  # it went down meanwhile
        return None


def _spelt(family: int, address: tuple[str, int]) -> str:
    """An address as /proc/net/tcp spells it: its 32-bit words in this machine's order."""
    packed = socket.inet_pton(family, address[0].partition("%")[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{address[1]:04X}"
