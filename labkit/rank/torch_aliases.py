"""Give torch's functions their newest names, which a torch as old as 2.11 has under older ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from labkit.theory.primitives import PRIMITIVES


def add_newest() -> None:
    """Give an older torch the names that newer ones have for its functions: `dist.all_gather_single` is in each."""
    for function in (f for p in PRIMITIVES.values() for f in p.functions):
        newest, *older = function.names
        found = [getattr(dist, name) for name in older if hasattr(dist, name)]
        # A torch that has the newest name keeps it; what it has under no name stays missing.
        if found and not hasattr(dist, newest):
            for module in (dist, distributed_c10d):
                setattr(module, newest, found[0])


def torchs(name: str) -> Callable[..., Any]:
    """Torch's own function of this name, or of an older one for it."""
    names = next(f.names for p in PRIMITIVES.values() for f in p.functions if name in f.names)
    return next(getattr(dist, n) for n in names if hasattr(dist, n))


all_gather_single, reduce_scatter_single = map(torchs, ("all_gather_single", "reduce_scatter_single"))
