"""The collectives as functions that return their result, for tensors and for Python objects.

    total = comms.all_reduce(x)
    weights = comms.broadcast(model.state_dict() if rank == 0 else None, src=0)

- Out of place: what you pass is never modified, unlike with `dist.all_reduce(x)`.
- `src` and `dst` are ranks of the world, as in torch, also with a `group`.
- Every rank of the group makes the call. Ranks that disagree on the call, its root or op, on shape or dtype,
  all raise the same LabError. To know it they first exchange 1 KiB each, an all-gather: so every call here
  waits for all ranks, and a small tensor takes two to three times as long. To measure, call `dist.*`.
- Gradients flow back where any rank's input requires one; then every rank has to call backward.
- Objects are pickled, and tensors inside them arrive on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from labkit.floor.errors import LabError
from labkit.rank import transport
from labkit.rank.consistency import ALIKE, EQUAL, agree, announced, is_one_of, members, world_rank
from labkit.rank.gradient import linear
from labkit.rank.objects import HEADER, NOTHING, dumps, exchange, pack, pack_chunks, to_tensor, unpack
from labkit.rank.ops import op_name
from labkit.theory.values import combine

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
]


def barrier(group: Any = None) -> None:
    """Return when all ranks have come here.

    >>> comms.barrier()
    """
    agree("barrier", NOTHING, group)
    dist.barrier(group)


def broadcast(x: Any = None, src: int = 0, group: Any = None) -> Any:
    """Return the value of rank `src`, a tensor or any object; the other ranks may pass None.

    >>> settings = comms.broadcast({"lr": 0.1} if rank == 0 else None, src=0)

    A tensor that another rank passes must have the same shape and dtype; it is not read.
    """
    here = world_rank(group) == src
    parcel = pack(x, group) if here or x is not None else NOTHING
    source = agree("broadcast", parcel, group, EQUAL, src=src).of(src)

    def there(*xs):
        return [transport.broadcast(xs, source.specs[0], src, group)]

    def back(g):
        total = transport.reduce(g, "sum", src, group)
        return [total] if here else []

    (out,) = linear(there, back, parcel.tensors if here else (), source.grad)
    return unpack(out, source.kind)


def reduce(x: Any, dst: int = 0, op: Any = "sum", group: Any = None) -> Any:
    """Return all ranks' x reduced on rank `dst`, and None elsewhere.

    >>> mean = comms.reduce(loss, dst=0, op="mean")

    `op` is as in `all_reduce`. No gradient flows back: elsewhere there is nothing to call backward on.
    """
    op, parcel = op_name(op), pack(x, group)
    agree("reduce", parcel, group, EQUAL, dst=dst, op=op)
    if parcel.kind == "object":
        values = exchange(x, group)
        return combine(values, op) if dist.get_rank() == dst else None
    total = transport.reduce(x.detach(), op, dst, group)
    return total if dist.get_rank() == dst else None  # elsewhere the backend leaves something undefined


def all_reduce(x: Any, op: Any = "sum", group: Any = None) -> Any:
    """Return all ranks' x reduced, on every rank; gradients flow through sum and mean.

    >>> mean = comms.all_reduce(gradient, op="mean")

    `op` is sum, mean (avg), product, min, max, band, bor, bxor or torch's ReduceOp. Python numbers, and lists
    of them that are equally long, are reduced as well.
    """
    op, parcel = op_name(op), pack(x, group)
    agreed = agree("all_reduce", parcel, group, EQUAL, linear=True, op=op)
    if parcel.kind == "object":
        return combine(exchange(x, group), op)

    def there(x):
        return [transport.all_reduce(x, op, group)]

    (out,) = linear(there, there, parcel.tensors, agreed.grad)
    return out


def gather(x: Any, dst: int = 0, group: Any = None) -> list[Any] | None:
    """Return the list of all ranks' x on rank `dst`, and None elsewhere; shapes may differ.

    >>> losses = comms.gather(loss.item(), dst=0)

    No gradient flows back: elsewhere there is nothing to call backward on.
    """
    parcel = pack(x, group)
    agreed = agree("gather", parcel, group, ALIKE, dst=dst)
    out = transport.gather(parcel.tensors[0].detach(), agreed.specs, dst, group)
    return [unpack(t, parcel.kind) for t in out] if dist.get_rank() == dst else None


def all_gather(x: Any, group: Any = None) -> list[Any]:
    """Return the list of all ranks' x, on every rank; shapes may differ.

    >>> everyone = torch.cat(comms.all_gather(shard))
    """
    parcel = pack(x, group)
    agreed = agree("all_gather", parcel, group, ALIKE)

    def there(x):
        return transport.all_gather(x, agreed.specs, group)

    def back(*gs):
        return [transport.reduce_scatter(gs, "sum", group)]

    out = linear(there, back, parcel.tensors, agreed.grad)
    return [unpack(t, parcel.kind) for t in out]


def scatter(xs: Any = None, src: int = 0, group: Any = None) -> Any:
    """Return chunk r of the list that rank `src` passes; shapes may differ, and only `src`'s list is read.

    >>> indices = comms.scatter([order[r::world_size] for r in range(world_size)] if rank == 0 else None)
    """
    here = world_rank(group) == src
    parcel = pack_chunks(xs, len(members(group)), group) if here else NOTHING
    source = agree("scatter", parcel, group, src=src).of(src)

    def there(*xs):
        return [transport.scatter(xs, source.specs, src, group)]

    def back(g):
        return transport.gather(g, source.specs, src, group)

    (out,) = linear(there, back, parcel.tensors, source.grad)
    return unpack(out, source.kind)


def reduce_scatter(xs: Any, op: Any = "sum", group: Any = None) -> Any:
    """Return everyone's chunk r reduced, on rank r; each rank passes a list of world_size chunks.

    >>> shard = comms.reduce_scatter(gradient.tensor_split(world_size), op="mean")

    Chunks may differ in shape, the same way on every rank. `op` is as in `all_reduce`.
    """
    op, parcel = op_name(op), pack_chunks(xs, len(members(group)), group)
    agreed = agree("reduce_scatter", parcel, group, EQUAL, linear=True, op=op)
    if parcel.kind == "object":
        return combine([chunks[dist.get_rank(group)] for chunks in exchange(xs, group)], op)

    def there(*xs):
        return [transport.reduce_scatter(xs, op, group)]

    def back(g):
        g = g / dist.get_world_size(group) if op == "avg" else g
        return transport.all_gather(g, agreed.announcements[0].specs, group)

    (out,) = linear(there, back, parcel.tensors, agreed.grad)
    return out


def all_to_all(xs: Any, group: Any = None) -> list[Any]:
    """Return everyone's chunk r, on rank r; each rank passes a list of world_size chunks of any shapes.

    >>> received = comms.all_to_all([tokens[expert == r] for r in range(world_size)])
    """
    parcel = pack_chunks(xs, len(members(group)), group)
    agreed = agree("all_to_all", parcel, group, ALIKE)
    me = dist.get_rank(group)

    def there(*xs):
        return transport.all_to_all(xs, [a.specs[me] for a in agreed.announcements], group)

    def back(*gs):
        return transport.all_to_all(gs, agreed.announcements[me].specs, group)

    out = linear(there, back, parcel.tensors, agreed.grad)
    return [unpack(t, parcel.kind) for t in out]


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
        whose = "this rank itself" if is_one_of(rank, [world_rank(group)]) else "not a rank of this group"
        raise LabError(f"{name}={rank!r} is {whose}. Choose one of {others}.")
