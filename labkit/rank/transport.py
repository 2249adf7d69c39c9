"""Run collectives on tensors of any lengths, out of place: new tensors come back, what came in stays as it was.

Torch's collectives want equal lengths: shorter tensors are padded here, the ranks having agreed on the
lengths. Nothing here knows of gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.rank.consistency import Spec
from labkit.rank.ops import MOVED, OPS
from labkit.rank.torch_aliases import reduce_scatter_single


def broadcast(xs: Sequence[Tensor], spec: Spec, src: int, group: Any) -> Tensor:
    """Return the tensor of `src`, which brings xs = [tensor]; what the others bring is not read."""
    buffer = _flat(xs[0]).clone() if dist.get_rank() == src else _room(spec)
    dist.broadcast(buffer, src=src, group=group)
    return _shaped(buffer, spec)


def reduce(x: Tensor, op: str, dst: int, group: Any) -> Tensor:
    """Return the reduced tensor on `dst`; elsewhere something undefined."""
    total = x.contiguous().clone()
    dist.reduce(total, dst=dst, op=OPS[op], group=group)
    return _mean(total, group) if op == "avg" else total


def all_reduce(x: Tensor, op: str, group: Any) -> Tensor:
    """Return the reduced tensor, on every rank."""
    total = x.contiguous().clone()
    dist.all_reduce(total, op=OPS[op], group=group)
    return _mean(total, group) if op == "avg" else total


def scatter(xs: Sequence[Tensor], specs: Sequence[Spec], src: int, group: Any) -> Tensor:
    """Return rank r's chunk r of the xs of `src`."""
    size = _longest(specs)
    mine = _room(specs[dist.get_rank(group)], size)
    dist.scatter(mine, [_flat(x, size) for x in xs] if dist.get_rank() == src else None, src=src, group=group)
    return _shaped(mine, specs[dist.get_rank(group)])


def gather(x: Tensor, specs: Sequence[Spec], dst: int, group: Any) -> list[Tensor]:
    """Return every rank's x on `dst`, nothing elsewhere."""
    size = _longest(specs)
    everyone = [_room(spec, size) for spec in specs] if dist.get_rank() == dst else None
    dist.gather(_flat(x, size), everyone, dst=dst, group=group)
    return [_shaped(buffer, spec) for buffer, spec in zip(everyone or [], specs, strict=everyone is not None)]


def all_gather(x: Tensor, specs: Sequence[Spec], group: Any) -> list[Tensor]:
    """Return every rank's x, on every rank."""
    size = _longest(specs)
    everyone = [_room(spec, size) for spec in specs]
    dist.all_gather(everyone, _flat(x, size), group=group)
    return [_shaped(buffer, spec) for buffer, spec in zip(everyone, specs, strict=True)]


def reduce_scatter(xs: Sequence[Tensor], op: str, group: Any) -> Tensor:
    """Return every rank's chunk r, reduced, on rank r."""
    size = max(x.numel() for x in xs)
    everything = torch.cat([_padded(x.reshape(-1), size) for x in xs])
    mine = everything.new_empty(size)
    reduce_scatter_single(mine, everything, op=OPS[op], group=group)
    like = xs[dist.get_rank(group)]
    mine = mine[: like.numel()].reshape(like.shape)
    return _mean(mine, group) if op == "avg" else mine


def all_to_all(xs: Sequence[Tensor], specs: Sequence[Spec], group: Any) -> list[Tensor]:
    """Return every rank's chunk for this one; `specs` says what each sends here."""
    outgoing, incoming = [_flat(x) for x in xs], [_count(spec) for spec in specs]
    buffer = outgoing[0].new_empty(sum(incoming))
    dist.all_to_all_single(buffer, torch.cat(outgoing), incoming, [len(x) for x in outgoing], group=group)
    return [_shaped(chunk, spec) for chunk, spec in zip(buffer.split(incoming), specs, strict=True)]


def send(x: Tensor, dst: int, group: Any) -> None:
    """Hand x to `dst`, which receives it with the same spec."""
    dist.send(_flat(x), dst=dst, group=group)


def recv(spec: Spec, src: int, group: Any) -> Tensor:
    """Return the tensor that `src` sends."""
    buffer = _room(spec)
    dist.recv(buffer, src=src, group=group)
    return _shaped(buffer, spec)


def _flat(x: Tensor, size: int = 0) -> Tensor:
    """Make x one contiguous row of at least `size` elements; dtypes that Gloo cannot move are seen as bytes."""
    row = x.contiguous().reshape(-1)
    return _padded(row if x.dtype in MOVED else row.view(torch.uint8), size)


def _padded(row: Tensor, size: int) -> Tensor:
    return row if len(row) >= size else torch.cat([row, row.new_zeros(size - len(row))])


def _count(spec: Spec) -> int:
    """Count the elements that `_flat` makes of such a tensor."""
    return torch.Size(spec.shape).numel() * (1 if spec.dtype in MOVED else spec.dtype.itemsize)


def _longest(specs: Sequence[Spec]) -> int:
    return max(_count(spec) for spec in specs)


def _room(spec: Spec, size: int = 0) -> Tensor:
    dtype = spec.dtype if spec.dtype in MOVED else torch.uint8
    return torch.empty(max(size, _count(spec)), dtype=dtype, device=spec.device)


def _shaped(row: Tensor, spec: Spec) -> Tensor:
    return row[: _count(spec)].view(spec.dtype).view(spec.shape)


def _mean(total: Tensor, group: Any) -> Tensor:
    return total / dist.get_world_size(group)
