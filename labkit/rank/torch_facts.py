"""Say in a line of JSON what torch finds on this machine: `python -m labkit.rank.torch_facts`, a process of its own."""

from __future__ import annotations

import json
import warnings
from typing import Any

import torch
import torch.distributed as dist


def facts() -> dict[str, Any]:
    """Return torch's version, how many GPUs it can use, NCCL's version, and what torch warns of first meanwhile."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if gpus:
            torch.cuda.init()
    nccl = torch.cuda.nccl.version() if dist.is_available() and dist.is_nccl_available() else ()
    return {
        "version": torch.__version__,
        "gpus": gpus,
        "nccl": nccl,
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "warned": " ".join(str(warned[0].message).split()) if warned else "",
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
