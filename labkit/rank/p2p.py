"""Send a value from one rank to another, and ahead of it what it is, so that the receiver can make room."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from labkit.floor.errors import LabError
from labkit.rank import transport
from labkit.rank.consistency import announced, is_one_of, members, world_rank
from labkit.rank.objects import HEADER, dumps, pack, to_tensor, unpack


def send(x: Any, dst: int, group: Any = None) -> None:
    """Hand x, a tensor or an object, to rank `dst`; return once `dst` has called `recv`.

    >>> comms.send(activations, dst=rank + 1)

    Two messages travel: 1 KiB that says what comes, then the value. Pair it with `comms.recv`, not with
    `dist.recv`. No gradient flows back.
    """
    _check_other("dst", dst, group)
    parcel = pack(x, group)
    announcement = announced("send", parcel, group)
    header = dumps(announcement)
    assert len(header) <= HEADER, f"{len(header)} bytes do not fit into one header"
    dist.send(to_tensor(header.ljust(HEADER, b"\0"), group), dst=dst, group=group)
    if announcement.complaint:
        raise LabError(f"send on rank {world_rank(group)}: {announcement.complaint}")
    transport.send(parcel.tensors[0].detach(), dst, group)


def recv(src: int, group: Any = None) -> Any:
    """Return what rank `src` sends; its shape and dtype come with it.

    >>> activations = comms.recv(src=rank - 1)
    """
    _check_other("src", src, group)
    header = to_tensor(bytes(HEADER), group)
    dist.recv(header, src=src, group=group)
    announcement = unpack(header, "object")  # pickle stops where the object ends
    if announcement.complaint:
        raise LabError(f"send on rank {src}: {announcement.complaint}")
    return unpack(transport.recv(announcement.specs[0], src, group), announcement.kind)


def _check_other(name: str, rank: int, group: Any) -> None:
    others = [r for r in members(group) if r != world_rank(group)]
    if not is_one_of(rank, others):
        whose = "this rank itself" if is_one_of(rank, [world_rank(group)]) else "no rank of this group"
        raise LabError(f"{name}={rank!r} is {whose}. Choose one of {others}.")
