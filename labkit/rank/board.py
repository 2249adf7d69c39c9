"""Boards, on which the ranks of a group put up what they are about to do and read what the others have put up.

Reading waits for no rank. Of two ranks at least one sees what the other has put up, since each writes before it reads.
A board has room for the last calls only; a rank that is further behind finds nothing to compare.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from time import monotonic, sleep  # by name: a cell that replaces time.monotonic does not replace this one
from typing import Any, TypeVar

import torch.distributed as dist

from labkit.floor import time_limits

ROOM = 1024  # bytes for one call of one rank
SLOTS = 64  # calls that a board has room for
IN_MEMORY = "labkit-board-"  # in the name that Linux shows for a board which is not a file on disk
HEAD = struct.Struct("<QIH")  # the call's number, a checksum, how many bytes follow

Put = TypeVar("Put")


def look_up(store: dist.Store, keys: Mapping[int, str]) -> dict[int, bytes]:
    """Read those of these keys, by rank, that are in the store now."""
    return {i: store.get(key) for i, key in keys.items() if store.check([key])}


def put_up(store: dist.Store, keys: Mapping[int, str], me: int, mine: Any) -> Callable[[], dict[int, Any]]:
    """Put up a value in a store, as JSON, under this rank's key; return what reads those that are up, by rank."""
    store.set(keys[me], json.dumps(mine))
    return lambda: {r: json.loads(data) for r, data in look_up(store, keys).items()}


def gathered(look: Callable[[], dict[int, Put]], n: int, least: float = 0.0) -> dict[int, Put]:
    """Look until all n ranks have put something up, at least for `least` seconds, and not for too long."""
    began = monotonic()
    while True:
        up = look()
        waited = monotonic() - began
        if waited > time_limits.MISMATCH_GATHERED or (waited > least and len(up) == n):
            return up
        sleep(time_limits.BOARD_LOOK)


def _sealed(nth: int, data: bytes) -> bytes:
    data = data[: ROOM - HEAD.size]
    return HEAD.pack(nth, zlib.crc32(data, nth & 0xFFFFFFFF), len(data)) + data


def _opened(nth: int, record: bytes) -> bytes | None:
    """Read what was put up for this call; None where it is another's, or is being written right now."""
    if len(record) < HEAD.size:
        return None
    found, check, size = HEAD.unpack_from(record)
    data = record[HEAD.size : HEAD.size + size]
    return data if found == nth and zlib.crc32(data, nth & 0xFFFFFFFF) == check else None


def _open(path: str) -> int:
    """Open the board that another rank has made; FileNotFoundError where that rank has let it go again."""
    if path.startswith("/proc/") and IN_MEMORY not in os.readlink(path):  # its number is another file's by now
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


class FileBoard:
    """A board in a file, for the ranks of one host."""

    def __init__(self, path: str, me: int, n: int, fd: int = -1) -> None:
        self.path, self.me, self.n = path, me, n
        self._fd = _open(path) if fd < 0 else fd

    @classmethod
    def make(cls, path: str, n: int) -> FileBoard:
        """Make the file as the group's first rank, for others to open at `path` until this one closes it."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, SLOTS * n * ROOM)
            except OSError:
                os.close(fd)
                os.unlink(path)
                raise
        except OSError:
            # Where the disk is full it is one in memory, which Linux has.
            if not hasattr(os, "memfd_create"):
                raise
            fd = os.memfd_create(IN_MEMORY)
            os.ftruncate(fd, SLOTS * n * ROOM)
            path = f"/proc/{os.getpid()}/fd/{fd}"
        return cls(path, 0, n, fd)

    def write(self, nth: int, data: bytes) -> None:
        """Put up this rank's call number `nth`, counted from 1."""
        os.pwrite(self._fd, _sealed(nth, data), (nth % SLOTS * self.n + self.me) * ROOM)

    def take_back(self, nth: int) -> None:
        """Remove it."""
        os.pwrite(self._fd, bytes(HEAD.size), (nth % SLOTS * self.n + self.me) * ROOM)

    def read(self, nth: int) -> dict[int, bytes]:
        """Return what the group's ranks have put up for call `nth`, this rank's among them."""
        rows = os.pread(self._fd, self.n * ROOM, nth % SLOTS * self.n * ROOM)
        found = {i: _opened(nth, rows[i * ROOM : (i + 1) * ROOM]) for i in range(self.n)}
        return {i: data for i, data in found.items() if data is not None}

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Close the file, and remove it as the first rank; the others keep what they have open."""
        self.close()
        if self.me == 0:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


class StoreBoard:
    """A board in the store where the ranks of several hosts have met; each look goes over the network."""

    def __init__(self, store: dist.Store, me: int, n: int) -> None:
        self.store, self.me, self.n = store, me, n

    def write(self, nth: int, data: bytes) -> None:
        self.store.set(self._key(nth, self.me), _sealed(nth, data).hex())

    def take_back(self, nth: int) -> None:
        self.store.set(self._key(nth, self.me), "")

    def read(self, nth: int) -> dict[int, bytes]:
        there = look_up(self.store, {i: self._key(nth, i) for i in range(self.n)})
        found = {i: _opened(nth, bytes.fromhex(text.decode())) for i, text in there.items()}
        return {i: data for i, data in found.items() if data is not None}

    def close(self) -> None:
        """Do nothing: the store goes with its group."""

    remove = close

    def _key(self, nth: int, rank: int) -> str:
        return f"{nth % SLOTS}/{rank}"
