"""Ranks that share a GPU, for teaching: what NCCL must be told to take them, and how tables and figures say it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from labkit.words import count


def settings(rank: int) -> dict[str, str]:
    """What a rank's environment must say before its first call of NCCL.

    NCCL 2.29 refuses two ranks on one GPU where both are on the same host (init.cc: "Duplicate GPU detected"). So each
    takes itself for a host of its own, and sends its data through sockets. torch then waits for every call to be done
    (ProcessGroupNCCL.hpp), so that a rank that waits for another one is seen to wait in that call, as with Gloo.
    """
    return {
        "NCCL_HOSTID": f"labkit-{rank}",
        "NCCL_NET": "Socket",
        "NCCL_MAX_NCHANNELS": "2",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
    }


def said(gpus: Sequence[Hashable]) -> str:
    """In words, from the GPU of each rank, whether ranks share one; "" where each has its own.

    >>> said(["na cuda:0", "na cuda:0", "na cuda:0", "na cuda:0"])
    '4 ranks share 1 GPU'
    >>> said(["na cuda:0", "nb cuda:0"])
    ''
    """
    different = len(set(gpus))
    return f"{count(len(gpus), 'rank')} share {count(different, 'GPU')}" if different < len(gpus) else ""
