"""Memory that all ranks of one host share: a slot for each rank, and a flag for each rank to say how far it is.

There is no `dist` call between the moment when a room is open and its end: ranks talk through memory alone. That one
rank's writes are seen in their order by another one, which `meet` counts on, holds on x86. On ARM it takes fences,
which Python does not have.
"""

from __future__ import annotations

import os
import socket
import tempfile
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from labkit.errors import LabError
from labkit.words import nbytes

FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None  # files in memory; None: where temporary files go
LINE = 64  # bytes of a cache line: two flags in one would slow each other down
PAGE = 4096
SLOT = 2**21  # bytes by default: the slots of a few ranks, and what they copy there, fit into a cache
KEPT = 32  # shapes whose places a room remembers


@dataclass
class Room:
    """What `open_room` returns on every rank; only rank r writes `flags[r]`."""

    slots: list[torch.Tensor]  # slots[r]: rank r's bytes, uint8
    flags: memoryview
    me: int
    count: int = 0  # how many times this rank has met the others
    _places: dict[tuple[int, torch.dtype], list[torch.Tensor]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The bytes of a slot."""
        return len(self.slots[0])

    def places(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The beginning of every slot, as tensors of x's length and dtype; `places(x)[r]` is rank r's.

        Raises ValueError where a slot is too small.
        """
        length, key = x.numel() * x.itemsize, (x.numel(), x.dtype)
        if length > self.size:
            raise ValueError(f"x has {length} bytes, and a slot {self.size}")
        if key not in self._places:
            if len(self._places) == KEPT:
                self._places.clear()
            self._places[key] = [slot[:length].view(x.dtype) for slot in self.slots]
        return self._places[key]

    def meet(self) -> None:
        """Return when every rank has come here as many times as this one."""
        flags = self.flags
        self.count = count = self.count + 1
        flags[self.me] = count
        while min(flags) < count:
            os.sched_yield()  # another rank may need this core


def open_room(size: int = SLOT) -> Room:
    """Map one file into the memory of all ranks, which must be on one host; each slot has `size` bytes.

    >>> room = open_room(2**20)
    >>> room.slots[rank][0] = 1    # every rank sees it there

    The file has no name any more when this returns: its memory is freed with the last rank that maps it, however that
    one ends. Every rank of the default group calls this. Raises `LabError` where there is no such memory.
    """
    n, me = dist.get_world_size(), dist.get_rank()
    slot = -(-size // PAGE) * PAGE
    flags = -(-n * LINE // PAGE) * PAGE
    told = [_file(flags + n * slot) if me == 0 else None]
    try:
        dist.broadcast_object_list(told, src=0)
        hosts: list[str] = [""] * n
        dist.all_gather_object(hosts, socket.gethostname())
        path, problem = told[0] or ("", "")
        if len(set(hosts)) > 1:
            problem = f"The ranks are on {len(set(hosts))} hosts, which share no memory. Use ranks of one host."
        if problem:
            raise LabError(problem)
        memory = torch.from_file(path, shared=True, size=flags + n * slot, dtype=torch.uint8)
        dist.barrier()
    finally:
        if me == 0 and told[0] and told[0][0]:
            os.unlink(told[0][0])
    words = memory[:flags].view(torch.int64).numpy().data[:: LINE // 8][:n]
    slots = memory[flags:].split(slot)
    return Room([s[:size] for s in slots], words, me)


def _file(size: int) -> tuple[str, str]:
    """A new file of so many zeros, or why there is none."""
    handle, path = tempfile.mkstemp(prefix="labkit-", dir=FOLDER)
    try:
        os.posix_fallocate(handle, 0, size)  # else a rank would die where the memory ends
    except OSError as error:
        os.unlink(path)
        return "", f"There are no {nbytes(size)} of shared memory ({error.strerror}). Ask for smaller slots."
    finally:
        os.close(handle)
    return path, ""
