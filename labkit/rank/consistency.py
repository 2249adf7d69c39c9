"""Let ranks tell one another what they are about to do before they communicate: a mismatch is every rank's error.

Without that it may hang, end an engine or give wrong numbers. It costs one all-gather of 1 KiB per rank.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from labkit.floor.errors import LabError
from labkit.floor.words import alike
from labkit.floor.words import ranks as named
from labkit.rank.objects import Parcel, exchange
from labkit.rank.ops import LINEAR, OPS, misfit

ALIKE = ("kind", "device", "dtype")  # what must agree even where shapes may differ
EQUAL = (*ALIKE, "shape")
REMEDY = {
    "call": "Make the same call with the same arguments on every rank.",
    "kind": "Bring a tensor on every rank, or an object on every rank.",
    "device": "Move the tensors to one kind of device with x.to(device).",
    "dtype": "Convert with x.to(dtype) before the call.",
    "shape": "Give every rank the same shape.",
}


class Spec(NamedTuple):
    """What a receiver must know of a tensor to make room for it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


@dataclass(frozen=True)
class Announcement:
    """What one rank is about to do, as it tells the others."""

    call: str
    kind: str
    what: str
    specs: tuple[Spec, ...]
    grad: bool
    complaint: str

    @property
    def shape(self) -> Any:
        """Shape of the tensor, or the list of its chunks' shapes."""
        return self.specs[0].shape if self.what == "tensor" else [spec.shape for spec in self.specs]

    @property
    def dtype(self) -> Any:
        """Dtype of the tensor, or of all its chunks."""
        return self.specs[0].dtype

    @property
    def device(self) -> str:
        """ "cpu" or "cuda"."""
        return self.specs[0].device


@dataclass(frozen=True)
class Agreement:
    """Every rank's announcement in the group's order; `ranks` are their numbers in the world."""

    ranks: list[int]
    announcements: list[Announcement]

    def of(self, rank: int) -> Announcement:
        """Return the announcement of a rank, by its number in the world."""
        return self.announcements[self.ranks.index(rank)]

    @property
    def specs(self) -> list[Spec]:
        """Spec of every rank's tensor."""
        return [announcement.specs[0] for announcement in self.announcements]

    @property
    def grad(self) -> bool:
        """Tell whether any rank wants a gradient, so that all of them take part in the backward pass."""
        return any(announcement.grad for announcement in self.announcements)


def agree(
    call: str, parcel: Parcel, group: Any, same: Sequence[str] = (), *, linear: bool = False, **options: Any
) -> Agreement:
    """Exchange what the ranks are about to do; unless it fits, raise one and the same LabError on all.

    The call and its options (src, dst, op) must be equal everywhere, and so must the attributes `same` of what ranks
    bring. `linear`: refuse an op that carries no gradient where an input requires one.
    """
    ranks = members(group)
    agreed = Agreement(ranks, exchange(announced(call, parcel, group, **options), group))
    _compare("call", agreed.announcements, ranks)
    blamed = [(rank, c.complaint) for rank, c in zip(ranks, agreed.announcements, strict=True) if c.complaint]
    if blamed:
        who = [rank for rank, complaint in blamed if complaint == blamed[0][1]]
        raise LabError(f"{call} on {named(who)}: {blamed[0][1]}")
    bringing = [(rank, c) for rank, c in zip(ranks, agreed.announcements, strict=True) if c.kind != "nothing"]
    for attribute in same if bringing else ():
        if attribute != "shape" or bringing[0][1].kind == "tensor":
            _compare(attribute, [c for _, c in bringing], [rank for rank, _ in bringing])
    if linear and agreed.grad and options["op"] not in LINEAR:
        raise LabError(f"{call} with op={options['op']!r} carries no gradient. Pass x.detach().")
    return agreed


def announced(call: str, parcel: Parcel, group: Any, **options: Any) -> Announcement:
    """Make what this rank tells the others of a call."""
    return Announcement(
        call=f"{call}({', '.join(f'{name}={value!r}' for name, value in options.items())})",
        kind=parcel.kind,
        what=parcel.what,
        specs=tuple(Spec(tuple(t.shape), t.dtype, t.device.type) for t in parcel.tensors),
        grad=torch.is_grad_enabled() and any(t.requires_grad for t in parcel.tensors),
        complaint=parcel.complaint or _complaint(parcel, group, **options),
    )


def members(group: Any = None) -> list[int]:
    """List the group's ranks by their numbers in the world, in the group's order; this rank must be among them."""
    if not dist.is_initialized():
        raise LabError("There is no process group. Call start() in the notebook, or dist.init_process_group.")
    if group is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(group) < 0:
        raise LabError("This rank is not in the group. Call on the group's own ranks only.")
    return dist.get_process_group_ranks(group)


def world_rank(group: Any = None) -> int:
    """Return this rank's number in the world, if it is in the group."""
    members(group)
    return dist.get_rank()


def whole(given: Any) -> int | None:
    """Return a whole number as a learner has given it, also numpy's; None where it is none."""
    try:
        return operator.index(given)
    except (TypeError, ValueError, RuntimeError):
        return None


def is_one_of(rank: Any, ranks: Sequence[int]) -> bool:
    """Tell whether what a learner has given for a rank is one of these; an array is none."""
    return whole(rank) in ranks


def _complaint(parcel: Parcel, group: Any, **options: Any) -> str:
    """Say what is wrong with this rank's own arguments."""
    ranks = members(group)
    for name in ("src", "dst"):
        if not is_one_of(options.get(name, ranks[0]), ranks):
            return f"{name}={options[name]!r} is not a rank of this group. Choose one of {ranks}."
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    first = parcel.tensors[0] if parcel.kind == "tensor" else None  # chunks share its device and dtype
    if first is not None and first.device.type not in backends:
        takes = " or ".join(sorted(backends))
        return f"the tensor is on {first.device}, and this group takes {takes} tensors. Pass x.to(device)."
    if first is not None and "op" in options:
        return misfit(options["op"], first.dtype, backends[first.device.type])
    if options.get("op", "sum") not in OPS:
        return misfit(options["op"], torch.float32, "")
    return ""


def _compare(attribute: str, announcements: Sequence[Announcement], ranks: Sequence[int]) -> None:
    """Raise unless the attribute is equal on all announcements; name the minority first."""
    if len({str(getattr(announcement, attribute)) for announcement in announcements}) == 1:
        return
    shown = "what" if attribute == "kind" else attribute
    texts = [str(getattr(announcement, shown)).removeprefix("torch.") for announcement in announcements]
    groups = sorted(alike(dict(zip(ranks, texts, strict=True))).items(), key=lambda group: len(group[1]))
    verb = "call" if attribute == "call" else "bring"
    parts = [f"{named(who)} {verb}{'s' * (len(who) == 1)} {text}" for text, who in groups]
    raise LabError(f"Ranks disagree on the {attribute}: {', '.join(parts)}. {REMEDY[attribute]}")
