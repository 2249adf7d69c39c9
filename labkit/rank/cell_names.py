"""Name what functions of the lessons' modules see on a rank: what a learner's cells see, and what checks need.

A lesson's module imports these names `if TYPE_CHECKING`, for editors; on a rank `labkit.rank.lessons` puts them there.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit.rank import comms, recorder
from labkit.rank.known_mistakes import everyones, name_it
from labkit.rank.spans import span

__all__ = ["comms", "device", "dist", "everyones", "name_it", "rank", "recorder", "span", "torch", "world_size"]

rank: int
world_size: int
device: torch.device
