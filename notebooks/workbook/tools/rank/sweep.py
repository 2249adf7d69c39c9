"""One size of one collective, timed and checked on this rank; `lab.sweep` asks for one size after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from labkit.rank import group as groups
from labkit.rank.clock import Timing, timed
from labkit.rank.torch_aliases import all_gather_single, reduce_scatter_single
from labkit.theory.primitives import PART, PRIMITIVES, meaning

_group: Any = None  # None is the world


@dataclass(frozen=True)
class Buffers:
    """What a call takes and leaves, in a group of n ranks in which this is number `me`; `root` is a world rank."""

    given: torch.Tensor
    taken: torch.Tensor
    group: Any
    n: int
    me: int
    root: int


def _gather(b: Buffers) -> None:
    dist.gather(b.given, list(b.taken.chunk(b.n)) if b.me == 0 else None, dst=b.root, group=b.group)


def _scatter(b: Buffers) -> None:
    dist.scatter(b.taken, list(b.given.chunk(b.n)) if b.me == 0 else None, src=b.root, group=b.group)


def _send_recv(b: Buffers) -> None:
    ranks = dist.get_process_group_ranks(b.group)
    send = dist.P2POp(dist.isend, b.given, ranks[(b.me + 1) % b.n], b.group)
    recv = dist.P2POp(dist.irecv, b.taken, ranks[(b.me - 1) % b.n], b.group)
    for work in dist.batch_isend_irecv([send, recv]):
        work.wait()


CALLS: dict[str, Callable[[Buffers], Any]] = {
    "all_reduce": lambda b: dist.all_reduce(b.taken, group=b.group),
    "all_gather": lambda b: all_gather_single(b.taken, b.given, group=b.group),
    "reduce_scatter": lambda b: reduce_scatter_single(b.taken, b.given, group=b.group),
    "all_to_all": lambda b: dist.all_to_all_single(b.taken, b.given, group=b.group),
    "gather": _gather,
    "scatter": _scatter,
    "broadcast": lambda b: dist.broadcast(b.taken, src=b.root, group=b.group),
    "reduce": lambda b: dist.reduce(b.taken, dst=b.root, group=b.group),
    "send_recv": _send_recv,
    "barrier": lambda b: dist.barrier(b.group),
}


def begin(ranks: Sequence[int] | None, limit: float) -> None:
    """Make the group that is measured, where it is not the world; every rank of the world takes part."""
    global _group
    _group = None if ranks is None else dist.new_group(list(ranks), timeout=timedelta(seconds=limit))


def end() -> None:
    """Leave that group again."""
    global _group
    if _group is not None and _group is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.destroy_process_group(_group)
    _group = None


def row(
    op: str, elements: int, dtype: str, repeat: int, calls: int | None = None
) -> tuple[Timing, Timing | None, bool]:
    """Time `op` on buffers of so many elements in all, and a copy of as many bytes; whether the result is right.

    The result is checked before the clock runs, on small whole numbers; what is timed then are zeros, since a sum
    repeated a thousand times would overflow.
    """
    b, call = _buffers(op, elements, getattr(torch, dtype)), CALLS[op]
    right = _right(op, b)
    b.given.zero_()
    b.taken.zero_()
    timing = timed(lambda: call(b), repeat=repeat, calls=calls, group=_group)
    if op == "barrier":
        return timing, None, right
    here, there = (torch.empty(elements, dtype=b.given.dtype, device=b.given.device).fill_(0) for _ in range(2))
    copied = timed(lambda: there.copy_(here), warmup=2, repeat=max(2, repeat // 4), group=_group)
    return timing, copied, right


def _buffers(op: str, elements: int, dtype: torch.dtype) -> Buffers:
    ranks = dist.get_process_group_ranks(_group)
    n, me = len(ranks), dist.get_rank(_group)
    device = groups.choose_device(dist.get_rank(), "nccl" if "nccl" in dist.get_backend_config(_group) else "gloo")
    primitive = PRIMITIVES[op]
    given, taken = (elements // n if side == PART else elements for side in (primitive.brings, primitive.gets))
    in_place = primitive.kind == "collective" and not primitive.cut  # torch leaves the result in the argument
    made = [torch.empty(size, dtype=dtype, device=device).fill_(0) for size in (given, taken)]
    return Buffers(made[1 if in_place else 0], made[1], _group, n, me, ranks[0])


def _right(op: str, b: Buffers) -> bool:
    """Call once on numbers that tell ranks and chunks apart, and hold the result against the meaning."""
    if op == "barrier":
        return CALLS[op](b) is None
    one = PRIMITIVES[op].brings == PART
    xs: list[Any] = [(3 * r) % 7 if one else [(3 * r + c) % 7 for c in range(b.n)] for r in range(b.n)]
    b.taken.zero_()
    b.given.copy_(_spread(xs[b.me], b.given))
    CALLS[op](b)
    wanted = xs[b.me - 1] if op == "send_recv" else meaning(op)(xs)[b.me]
    return wanted is None or torch.equal(b.taken, _spread(wanted, b.taken))  # None: not the root


def _spread(values: Any, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor like another one, cut into as many stretches as there are values, each filled with its own."""
    told = torch.tensor(values, dtype=like.dtype, device=like.device).reshape(-1)
    return told[torch.arange(len(like), device=like.device) * len(told) // len(like)]
