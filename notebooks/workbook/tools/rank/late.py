"""Let one rank come late to what follows."""

from __future__ import annotations

import time

import torch.distributed as dist

from labkit.rank import recorder


def come(late: int, seconds: float) -> None:
    """Return on all ranks at once, and on rank `late` so many seconds later; no record is left of it."""
    with recorder.paused():
        dist.barrier()
    if dist.get_rank() == late:
        time.sleep(seconds)
