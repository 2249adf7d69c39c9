"""What is noted of a call before it runs: its group, ranks, tensor and place in the cell. Wrong ranks are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from labkit.rank import backward_pass, guard
from labkit.rank.cell_record import Cell
from labkit.rank.consistency import whole
from labkit.rank.frames import leading_here
from labkit.rank.group_counters import Recorded
from labkit.rank.torch_internals import group_ranks
from labkit.theory.log import Op

ENQUEUES = {"cuda"}  # kinds of devices on which a call returns once it is enqueued

_dtypes: dict[Any, str] = {}  # their names


def begun(
    cell: Cell, op: str, kind: str, what: Any, other: str, given: Callable[[str], Any]
) -> tuple[Op, Any, Recorded] | None:
    """Record a call: its record, its group, its place in the tally; None where torch will say what is wrong."""
    try:
        group: Any = given("group")
        if group is dist.GroupMember.NON_GROUP_MEMBER:  # it is not this rank's call
            return None
        group = dist.group.WORLD if group is None else group
        name = group.group_name
        ranks = cell.tally.ranks.get(name)
        if ranks is None:
            ranks = cell.tally.know(group, name)
        peer, inside = (whole(given(name)) for name in (other, f"group_{other}")) if other else (None, None)
        dtype, shape, size = facts(what)
    except KeyError:  # torch's word for it, which some of its functions forget to say
        raise ValueError("Invalid process group specified") from None
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return None
    if not op.startswith("comms."):  # whose ranks tell one another
        _check_peer(group, ranks, peer, inside)
    if peer is None and inside is not None:
        peer = ranks[inside]
    if peer is None and other and kind == "collective":
        peer = 0  # the root that torch and comms take where none is named
    recorded = cell.tally.begun(group, name)
    at, function = where()
    record = Op(
        rank=cell.rank,
        issued=next(cell.order),
        op=op,
        kind=kind,
        ranks=ranks,
        peer=peer,
        dtype=dtype,
        shape=shape,
        bytes=size,
        line=at,
        function=function,
        group=name,
    )
    tensor = what[0] if shape is not None and not isinstance(what, Tensor) else what
    if isinstance(tensor, Tensor) and tensor.device.type in ENQUEUES:
        record.enqueued = True
    if kind == "collective":
        record.nth = cell.nth[name] = cell.nth.get(name, -1) + 1
    else:
        record.tag = whole(given("tag")) or 0
        if isinstance(tensor, Tensor):
            record.view = cell.snapshots.before(tensor, at, kind)
    cell.ops.append(record)
    cell.made += 1
    return record, group, recorded


def _check_peer(group: Any, ranks: Sequence[int], peer: int | None, inside: int | None) -> None:
    """Refuse a rank that does not exist: `peer` is its number in the world, `inside` the one in the group."""
    if peer is None and inside is not None:
        guard.must_exist(inside, len(ranks), group)
    elif peer is not None and group is dist.group.WORLD:  # of a smaller group torch says so itself
        guard.must_exist(peer, len(ranks), group)


def check_batch(batch: Any = None, *more: Any, **others: Any) -> None:
    """Refuse a batch that cannot be carried out before any of it is begun; torch says what is not a batch at all."""
    ops = others.get("p2p_op_list", batch)
    if not isinstance(ops, list) or not all(isinstance(op, dist.P2POp) for op in ops):
        return
    if not ops:
        guard.refuse(ValueError("this batch has no send and no receive: leave the call out on a rank without any"))
    for op in ops:
        if ranks := group_ranks().get(op.group):  # torch says where it has forgotten a group
            _check_peer(op.group, tuple(ranks), None, op.group_peer)


def facts(what: Any) -> tuple[str | None, tuple[int, ...] | None, int | None]:
    """Return dtype, shape and bytes of a tensor, or dtype and bytes of a list of them; nothing of an object."""
    if isinstance(what, Tensor):
        name = _dtypes.get(what.dtype)
        if name is None:
            name = _dtypes[what.dtype] = str(what.dtype).removeprefix("torch.")
        return name, tuple(what.shape), what.nbytes
    if isinstance(what, (list, tuple)) and what and all(isinstance(x, Tensor) for x in what):
        dtype, shape, _ = facts(what[0])
        return dtype, shape if len(what) == 1 else None, sum(x.nbytes for x in what)
    return None, None, None


def shared(tensors: Any) -> int:
    """Count how often one tensor stands in a list; 0 where all are different, or where there is no list."""
    times = max(Counter(map(id, tensors)).values(), default=0) if isinstance(tensors, (list, tuple)) else 0
    return times if times > 1 else 0


def reduction(op: Any) -> str:
    """Name a reduction, "sum" or "avg" for instance; "" for what is none, such as a group in its place."""
    name = "SUM" if op is None else str(op).rpartition(".")[2]
    return name.lower() if name.isidentifier() else ""


def is_true(given: Any) -> bool:
    """Tell whether an argument counts as true; not one that is neither, an array say: torch will say so."""
    try:
        return bool(given)
    except (RuntimeError, ValueError):
        return False


def where() -> backward_pass.Where:
    """Find the line of the cell that a call came from, and the learner's function that made it."""
    cells = leading_here()
    if not cells:
        return None, None
    (code, line), (_, called) = cells[0], cells[-1]
    return called, None if len(cells) == 1 else (code.co_name, line)
