"""Torch's two spellings of what 2.13 names anew: the collectives on one flat buffer, and the scaled sum."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def all_gather_single(output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Fill `output`, world_size times as long, with every rank's flat `input` in rank order.

    Older torch calls it `all_gather_into_tensor`. Other arguments (group, async_op) are torch's.
    """
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    return getattr(dist, name)(output, input, *args, **kwargs)


def reduce_scatter_single(output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Fill `output` with this rank's chunk of the reduced flat `input`, which is world_size times as long.

    Older torch calls it `reduce_scatter_tensor`. Other arguments (op, group, async_op) are torch's.
    """
    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    return getattr(dist, name)(output, input, *args, **kwargs)


def premul_sum(factor: float) -> Any:
    """The reduction that multiplies by `factor` before it adds: `op=premul_sum(0.5)`. NCCL has it, Gloo refuses it.

    Newer torch spells it `ReduceOp.PREMUL_SUM(factor)`.
    """
    scaled = dist.ReduceOp.PREMUL_SUM
    return scaled(factor) if callable(scaled) else dist._make_nccl_premul_sum(factor)
