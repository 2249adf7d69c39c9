"""Find tensors that Gloo would spoil: it takes their elements to lie side by side in memory, and does not check it.

Measured with torch 2.13, each collective with columns, steps, transposed and expanded tensors, as input and as output:
what is not named here comes out right, or torch refuses it itself (pytorch#192920).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.rank.nested import tensors


def in_order(x: torch.Tensor) -> bool:
    """Tell whether a tensor's elements lie one behind the other, or are none of a dense tensor's."""
    return x.layout != torch.strided or x.is_contiguous()


def _dense(x: torch.Tensor) -> bool:
    """Tell whether they fill their memory in any order; that all ranks have the same one, the guard compares."""
    return in_order(x) or bool(torch.ops.aten.is_non_overlapping_and_dense.default(x))


def _copied(x: torch.Tensor) -> bool:
    """Tell whether a tensor lies in order, or has gaps: then torch makes a copy that does."""
    return in_order(x) or not _dense(x)


TAKES: dict[str, dict[str, Callable[[torch.Tensor], bool]]] = {  # by operation and argument
    "allreduce_": {"tensors": _dense},
    "broadcast_": {"tensors": _dense},
    "reduce_": {"tensors": _dense},
    "reduce_scatter_": {"input_tensors": _copied, "output_tensors": in_order},
    "scatter_": {"input_tensors": in_order, "output_tensors": in_order},
    "alltoall_base_": {"output": in_order},
}


def spoiled(name: str, given: dict[str, Any], group: Any) -> str:
    """Say what is wrong with a tensor that an operation of the dispatcher is given, and what to do; "" for nothing."""
    for argument, fits in TAKES.get(name, {}).items():
        for x in tensors(given[argument]):
            if not fits(x) and f"{x.device.type}:gloo" in dist.get_backend_config(group):
                shape, strides = list(x.shape), x.stride()
                remedy = "x.contiguous()" if argument.startswith("input") else "y = x.contiguous(), then x.copy_(y)"
                return (
                    f"Gloo would spoil a tensor of shape {shape} whose elements do not lie one behind the other in "
                    f"memory (its strides are {strides}). Make the call with {remedy}."
                )
    return ""
