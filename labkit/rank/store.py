"""A store in which ranks meet before they are connected, a file or rank 0's memory, with waits that can be broken off.

torch's own stores wait in C++ until their time-out, however hopeless. A rank that waits there, because another
one never calls `new_group`, could only be ended with all its variables.
"""

from __future__ import annotations

import os
import socket
import threading
from datetime import timedelta
from time import monotonic, sleep

import torch.distributed as dist

from labkit.floor import time_limits
from labkit.rank import patience
from labkit.rank.gloo import set_timer_slack

ADDRESS = "LABKIT_ADDRESS"  # where the other hosts of the lab reach this one
TCP = "tcp://"

_listening: socket.socket | None = None  # on rank 0, between `open_at` and the join


def open_at() -> str:
    """Listen for ranks on other hosts, at this host's address alone; return the place for `MeetingStore`."""
    global _listening
    if _listening is not None:  # of a join that did not come about
        _listening.close()
    _listening = socket.socket()
    # Torch's own store would listen on every address that there is.
    _listening.bind((os.environ.get(ADDRESS, "127.0.0.1"), 0))
    _listening.listen(128)
    host, port = _listening.getsockname()
    return f"{TCP}{host}:{port}"


def _store(place: str, world_size: int) -> dist.Store:
    """Make torch's store at this place; the rank that listens there keeps it, all others reach it."""
    global _listening
    if not place.startswith(TCP):
        return dist.FileStore(place, world_size)
    host, port = place.removeprefix(TCP).rsplit(":", 1)
    mine, _listening = _listening, None
    answers = timedelta(seconds=time_limits.STORE_ANSWERS)
    if mine is not None and mine.getsockname() == (host, int(port)):
        return dist.TCPStore(
            host, int(port), None, is_master=True, wait_for_workers=False, timeout=answers,
            master_listen_fd=mine.detach(),
        )  # fmt: skip
    return dist.TCPStore(host, int(port), None, is_master=False, wait_for_workers=False, timeout=answers)


class MeetingStore(dist.Store):
    """A store whose waits end at once when `abort` is called; it lives as long as its group.

    `place` is the path of a file on one host, or what `open_at` returned on rank 0.
    """

    def __init__(self, place: str, world_size: int) -> None:
        super().__init__()
        self.store, self.world_size = _store(place, world_size), world_size
        self.broken_off = threading.Event()

    def abort(self) -> None:
        """Let every wait in this store, now and later, raise."""
        self.broken_off.set()

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        set_timer_slack(0)
        own: timedelta = timeout or self.timeout  # type: ignore[attr-defined]  # which torch's C++ has set
        limit = patience.limit(own)
        deadline = monotonic() + limit.total_seconds()
        while True:
            if self.broken_off.is_set():  # also where all is there: who has put it there has left
                raise dist.DistStoreError("the wait was broken off by the lab")
            if self.store.check(keys):
                return
            if monotonic() > deadline:
                raise dist.DistStoreError(f"wait timeout after {limit}, keys: {', '.join(keys)}")
            sleep(time_limits.STORE_LOOK)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self.store.get(key)

    def set(self, key: str, value: str) -> None:
        self.store.set(key, value)

    def add(self, key: str, value: int) -> int:
        return self.store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self.store.compare_set(key, expected, desired)

    def delete_key(self, key: str) -> bool:
        return self.store.delete_key(key)

    def num_keys(self) -> int:
        return self.store.num_keys()

    def clone(self) -> MeetingStore:
        """Return this store: a copy that torch makes for a group split off must end its waits with the others."""
        return self

    # torch's C++ calls these two by the names that they have there
    deleteKey = delete_key
    getNumKeys = num_keys
