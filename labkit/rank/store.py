"""Where ranks meet before they are connected: a file, with waits that can be broken off.

torch's own stores wait in C++ until their time-out, however hopeless. A rank that waits there, because another
one never calls `new_group`, could only be ended with all its variables.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist

from labkit.rank.slack import may_oversleep

PAUSE = 0.002  # seconds between two looks at the file


class MeetingStore(dist.Store):
    """A `FileStore` whose waits end at once when `abort` is called; the file lives as long as its group."""

    def __init__(self, path: str, world_size: int) -> None:
        super().__init__()
        self.file = dist.FileStore(path, world_size)
        self.patience = timedelta(seconds=300)
        self.aborted = False

    def abort(self) -> None:
        """Let every wait in this store, now and later, raise."""
        self.aborted = True

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        may_oversleep(0)
        deadline = time.monotonic() + (timeout or self.patience).total_seconds()
        while not self.file.check(keys):
            if self.aborted:
                raise dist.DistStoreError("the wait was broken off by the lab")
            if time.monotonic() > deadline:
                raise dist.DistStoreError(f"wait timeout after {timeout or self.patience}, keys: {', '.join(keys)}")
            time.sleep(PAUSE)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self.file.get(key)

    def set(self, key: str, value: str) -> None:
        self.file.set(key, value)

    def add(self, key: str, value: int) -> int:
        return self.file.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self.file.check(keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self.file.compare_set(key, expected, desired)

    def delete_key(self, key: str) -> bool:
        return self.file.delete_key(key)

    def num_keys(self) -> int:
        return self.file.num_keys()

    def set_timeout(self, timeout: timedelta) -> None:
        self.patience = timeout
