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
from typing import BinaryIO

import torch
import torch.distributed as dist

from labkit.floor.errors import LabError
from labkit.floor.words import nbytes

FOLDERS = (*["/dev/shm"] * os.path.isdir("/dev/shm"), None)  # files in memory; None: where temporary files go
LINE = 64  # bytes of a cache line: two flags in one would slow each other down
SLOT = 2**21  # bytes by default: the slots of a few ranks, and what they copy there, fit into a cache
KEPT = 32  # lengths whose chunks a room remembers


@dataclass
class Room:
    """What `open_room` returns on every rank; only rank r writes `slots[r]` and `flags[r]`."""

    slots: list[torch.Tensor]  # bytes, uint8
    flags: memoryview  # whole numbers
    size: int  # of a slot, in bytes
    me: int
    file: BinaryIO  # that is mapped: ranks may lock bytes of it, and closing it would let go of them
    count: int = 0  # how many times this rank has met the others
    _known: dict[tuple[int, torch.dtype], list[list[torch.Tensor]]] = field(default_factory=dict)

    def places(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the beginning of every slot as a tensor of x's length and dtype: `places(x)[r]` is in rank r's slot.

        Raises ValueError where x is larger than a slot.
        """
        length = self._fits(x)
        return [slot[:length].view(x.dtype) for slot in self.slots]

    def chunks(self, x: torch.Tensor) -> list[list[torch.Tensor]]:
        """Cut each slot as x is cut: `chunks(x)[r][c]`, in rank r's slot, has the length of `x.tensor_split(n)[c]`.

        Chunk c begins at the same byte of a slot whatever x's length: else a rank that goes on to a shorter x would
        write where another one still reads the longer one. Raises ValueError where x is larger than a slot.
        """
        self._fits(x)
        key = x.numel(), x.dtype
        if key not in self._known:
            if len(self._known) == KEPT:
                self._known.clear()
            lengths = [len(chunk) * x.itemsize for chunk in x.tensor_split(len(self.slots))]
            regions = [slot.tensor_split(len(self.slots)) for slot in self.slots]
            self._known[key] = [
                [region[:length].view(x.dtype) for region, length in zip(mine, lengths, strict=True)]
                for mine in regions
            ]
        return self._known[key]

    def _fits(self, x: torch.Tensor) -> int:
        length = x.numel() * x.itemsize
        if x.dim() != 1 or length > self.size:
            raise ValueError(f"x has {x.dim()} dimensions and {length} bytes; a slot takes 1 and {self.size}")
        return length

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
    slot = n * LINE * (size // (n * LINE) + 2)  # so that n chunks fit, each on lines of its own, with one element more
    flags = n * LINE
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
        file = open(path, "r+b")  # noqa: SIM115  # as long as the room
        dist.barrier()
    finally:
        if me == 0 and told[0] and told[0][0]:
            os.unlink(told[0][0])
    words = memory[:flags].view(torch.int64).numpy().data[:: LINE // 8]
    return Room(list(memory[flags:].split(slot)), words, size, me, file)


def _file(size: int) -> tuple[str, str]:
    """Make a file of zeros in memory, or on disk where a container has little memory; or return why there is none."""
    why = ""
    for folder in FOLDERS:
        handle, path = tempfile.mkstemp(prefix="labkit-", dir=folder)
        try:
            os.posix_fallocate(handle, 0, size)  # else a rank would die where the memory ends
            return path, ""
        except OSError as error:
            os.unlink(path)
            why = f"There are no {nbytes(size)} of shared memory ({error.strerror}). Ask for smaller slots."
        finally:
            os.close(handle)
    return "", why
