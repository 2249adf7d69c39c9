"""Processes that are forked from one that has imported torch, which alone would take each of them two seconds."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

# What the ranks of the tests and the workbook's scripts import; the first optimizer of a process imports _dynamo.
PRELOAD = (
    "torch.distributed",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "labkit.rank.comms",
    "labkit.rank.clock",
    "labkit.rank.tiny",
)


def context() -> ForkServerContext:
    """Multiprocessing's, whose server has imported these."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(list(PRELOAD))
    return found
