"""The reductions by name, and what each of them can reduce."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,  # divided afterwards, which every backend and torch can
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
ALIASES = {"mean": "avg", "prod": "product"}
BITWISE = ("band", "bor", "bxor")
LINEAR = ("sum", "avg")  # these carry gradients
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MOVED = (torch.bool, *INTEGERS, *FLOATS)  # Gloo and NCCL both know these; others travel as bytes


def op_name(op: Any) -> str:
    """Name a reduction that is given by name, in any case, or as torch's own ReduceOp; "mean" is "avg"."""
    name = str(getattr(getattr(op, "op", op), "name", op)).lower()
    return ALIASES.get(name, name)


def misfit(op: str, dtype: torch.dtype, backend: str) -> str:
    """Say why this reduction of this dtype is refused, and what to do; "" where it works."""
    kind = str(dtype).removeprefix("torch.")
    if op not in OPS:
        scaled = " Multiply x by the factor first." if op == "premul_sum" else ""
        return f"op={op!r} is not a reduction here.{scaled} Use one of {', '.join(OPS)}."
    if dtype == torch.bool and op not in ("min", "max", *BITWISE):
        return f"the {op} of bools is not a bool. Pass x.int(), or use op='max' as any() and op='min' as all()."
    if op == "avg" and not (dtype.is_floating_point or dtype.is_complex):
        return f"{kind} cannot hold a mean. Pass x.float(), or reduce the sum and divide it."
    if op in BITWISE and dtype not in (torch.bool, *INTEGERS):
        return f"{op} works on the bits of whole numbers, not on {kind}. Pass integers."
    if op in BITWISE and backend == "nccl":
        return f"NCCL has no {op}. Use all_gather and combine the tensors, or a Gloo group."
    if dtype not in MOVED and not (dtype.is_complex and op in LINEAR):
        return f"{backend} has no {op} of {kind}. Convert to int32, int64 or a float with x.to(dtype)."
    return ""
