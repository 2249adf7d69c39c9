"""Find what a failed call has used whose process group is gone, in what torch's frames hold.

The lab joins a new group when it heals, and torch forgets all that were made in the old one: groups, and with them
meshes, models, optimizers. What it raises where one of these is used depends on the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import torch.distributed as dist

from labkit.rank import frames, group, torch_internals

CLOSED = "Connection closed by peer"  # what Gloo says of a group whose sockets are shut


def used(error: BaseException, called: Sequence[FrameType]) -> str:
    """Name the type of what the frames below the cell have used; "call" if it has no name, "" if nothing is gone."""
    theirs = [f for f in called if not frames.is_learners(f)]
    held = [value for f in theirs for value in list(f.f_locals.values())]
    held += [value for one in held for value in list(getattr(one, "__dict__", {}).values())]
    found = next(filter(_is_gone, held), None)
    if found is None:
        names = [f.f_locals.get("group") for f in theirs if f.f_code.co_filename == torch_internals.FUNCTIONAL]
        # Where C++ alone holds the group, as in a backward pass, a connection is down, and none of a group that lives.
        closed = isinstance(error, RuntimeError) and CLOSED in str(error) and group.broken() is False
        return "call" if closed or not _are_known(name for name in names if isinstance(name, str)) else ""
    first = theirs[0].f_code
    whose = theirs[0].f_locals.get("self") if "." in first.co_qualname and first.co_name != "__init__" else None
    kind = dist.ProcessGroup if isinstance(found, dist.ProcessGroup) else type(found)
    return (kind if whose is None else type(whose)).__name__


def _is_gone(value: Any) -> bool:
    """Tell whether this is a process group that torch has forgotten, or a mesh that has one."""
    if isinstance(value, dist.ProcessGroup):
        return value not in torch_internals.groups()
    return isinstance(value, dist.DeviceMesh) and not _are_known(torch_internals.mesh_groups(value))


def _are_known(names: Iterable[str]) -> bool:
    return set(names) <= torch_internals.group_names()
