"""Ranks that share a GPU, for teaching: what NCCL and torch must be told, and how tables and figures say it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from labkit.floor.words import count

MANY_A_GPU = (2, 30)  # the version of NCCL from which on it takes several ranks of one host on a GPU
# Torch's symmetric memory refuses two ranks on one GPU ("overlapping devices") unless this says that it is meant.
SYMMETRIC = {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"}


def settings(rank: int, direct: int = 0) -> dict[str, str]:
    """Return the environment that a rank needs before its first call of NCCL, or of symmetric memory.

    NCCL 2.29 refuses two ranks on one GPU where both are on the same host (init.cc: "Duplicate GPU detected"). So each
    takes itself for a host of its own, and sends its data through sockets.

    From 2.30 on NCCL takes them where it is asked to, on the paths that it has between GPUs. That works where the
    kernels of all ranks run at the same time: under MPS, with so few channels that all fit. `direct` is then how many
    ranks share the GPU.
    """
    if direct:
        return {
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_MAX_CTAS": str(max(1, 8 // direct)),
            **SYMMETRIC,
        }
    return {"NCCL_HOSTID": f"labkit-{rank}", "NCCL_NET": "Socket", "NCCL_MAX_NCHANNELS": "2", **SYMMETRIC}


def said(gpus: Sequence[Hashable], together: bool = False) -> str:
    """Say, from the GPU of each rank, whether ranks share one, and how; "" where each has its own.

    `together` is true under an MPS daemon: the kernels of different ranks then run at the same time.

    >>> said(["na cuda:0", "na cuda:0", "na cuda:0", "na cuda:0"])
    '4 ranks share 1 GPU by turns'
    >>> said(["na cuda:0", "na cuda:0"], together=True)
    '2 ranks share 1 GPU under MPS'
    >>> said(["na cuda:0", "nb cuda:0"])
    ''
    """
    different = len(set(gpus))
    if different == len(gpus):
        return ""
    return f"{count(len(gpus), 'rank')} share {count(different, 'GPU')} {how(together)}"


def how(together: bool) -> str:
    """Say how ranks share a GPU: at the same time under an MPS daemon, or one after the other."""
    return "under MPS" if together else "by turns"
