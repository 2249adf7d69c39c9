"""Describe what a rank holds as plain data: small enough to send, exact enough to compare. Runs on an engine.

A description shows the beginning of a value; its `digest` covers all of it, so that two ranks whose shown
parts agree are still told apart.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from labkit.rank.digest import Message, digest, inside, local, one_line

LIMIT = 8  # elements that a long row shows
ROWS = 4
DEPTH = 3  # lists within lists
TEXT = 200  # characters of a string
DENSE = 1 << 20  # elements up to which a sparse tensor is shown as a dense one


def find(expression: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Describe the value of an expression such as `"model.weight"` or `"xs[0]"` in a namespace.

    Returns `{"missing": True}` where a name is not defined, `{"error": "KeyError: 'w'"}` for other failures.
    """
    try:
        return describe(eval(expression.strip(), namespace))
    except NameError as error:
        return {"missing": True, "name": error.name}
    except Exception as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        name = type(error).__name__
        return {"error": one_line(Message(f"{name}: {why}" if why else name), TEXT)}


def describe(value: Any) -> dict[str, Any]:
    """Say what a value is: kind, type, shape, device, first elements, and a digest of all of it.

    >>> d = describe(torch.tensor([1.0, 2.0]))
    >>> d["kind"], d["dtype"], d["shape"], d["values"]
    ('tensor', 'float32', [2], [1.0, 2.0])

    Everything in it survives JSON: NaN and the infinities are the strings "nan", "inf" and "-inf", complex
    numbers are strings too. A row of more than twice `LIMIT` elements shows its head, a matrix its first
    rows; such a tensor also has `min`, `max` and `mean`. Containers have `length` and their first `entries`.
    """
    return {**_describe(value, DEPTH), "digest": digest(value)}


def _describe(value: Any, depth: int) -> dict[str, Any]:
    name = type(value).__name__
    if value is None:
        return {"kind": "none"}
    if isinstance(value, (bool, int, float, complex, np.number, np.bool_)):
        return {"kind": "number", "dtype": name, "values": _number(value)}
    if isinstance(value, (str, bytes, bytearray)):
        text = value if isinstance(value, str) else repr(bytes(value[:TEXT]))
        shown = text if len(text) <= TEXT else text[: TEXT - 1] + "…"
        return {"kind": "string", "dtype": name, "length": len(value), "values": shown}
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        described = {"kind": "array", "dtype": str(value.dtype), "shape": list(value.shape)}
        return {**described, **_elements(value)}
    return _container(value, depth)


def _container(value: Any, depth: int) -> dict[str, Any]:
    name = type(value).__name__
    held = inside(value)
    if held is None:
        return {"kind": "object", "type": name, "repr": one_line(value)}
    kinds = {dict: "dict", list: "list", tuple: "tuple"}
    kind = next((k for t, k in kinds.items() if isinstance(value, t)), "object")
    described: dict[str, Any] = {"kind": kind, "type": name, "length": len(held)}
    if isinstance(value, torch.nn.Module):
        described["parameters"] = sum(local(p).numel() for p in value.parameters())
    shown = held[: 2 * LIMIT] if depth else []
    return {**described, "entries": [{"key": k, **_describe(v, depth - 1)} for k, v in shown]}


def _tensor(value: torch.Tensor) -> dict[str, Any]:
    described = {
        "kind": "tensor",
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "device": str(value.device),
        "requires_grad": value.requires_grad,
    }
    try:
        data = local(value)
        if hasattr(value, "to_local"):
            described |= {"note": f"this rank's part of {tuple(value.shape)}", "shape": list(data.shape)}
        if data.is_meta:
            return {**described, "note": "a meta tensor has no values"}
        if data.layout != torch.strided:
            described["note"] = str(data.layout).removeprefix("torch.").replace("_", " ")
            if data.numel() > DENSE:
                return described
            data = data.to_dense()
        if data.is_quantized:
            data = data.dequantize()
        return {**described, **_elements(data)}
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return {**described, "note": one_line(Message(f"{type(value).__name__}, unreadable: {error}"))}


def _elements(array: Any) -> dict[str, Any]:
    """Return the head of a tensor or array as nested lists; where that is not all of it, its range and mean too."""
    *outer, last = array.shape or (1,)
    head = [min(n, 2) for n in outer[:-1]] + [min(n, ROWS) for n in outer[-1:]]
    head.append(last if last <= 2 * LIMIT else LIMIT)
    part = _wide(array[tuple(slice(n) for n in head)] if array.shape else array)
    shown = {"values": _plain(part.tolist(), single=str(part.dtype).endswith("float32"))}
    if math.prod(head) < math.prod(array.shape) and "complex" not in str(array.dtype):
        shown |= _range(_wide(array))
    return shown


def _range(array: Any) -> dict[str, Any]:
    double = torch.float64 if isinstance(array, torch.Tensor) else np.float64
    try:
        return {
            "min": _number(array.min()),
            "max": _number(array.max()),
            "mean": _number(array.mean(dtype=double)),
        }
    except (RuntimeError, NotImplementedError):  # torch's uint16 has no min
        return {}


def _wide(array: Any) -> Any:
    """Turn half and 8-bit floats into float32, which everything can compute with and which holds them exactly."""
    if isinstance(array, np.ndarray):
        return array.astype(np.float32) if array.dtype == np.float16 else array
    if array.is_floating_point() and array.dtype not in (torch.float32, torch.float64):
        return array.to(torch.float32)
    return array.resolve_conj().resolve_neg()


def _plain(values: Any, single: bool) -> Any:
    if isinstance(values, list):
        return [_plain(v, single) for v in values]
    return _number(np.float32(values) if single else values)


def _number(value: Any) -> Any:
    """Return a number as JSON carries it, a float32 as 0.1 and not as 0.10000000149011612."""
    if isinstance(value, torch.Tensor):
        return _plain(value.item(), single=value.dtype == torch.float32)
    if isinstance(value, np.generic):
        value = float(str(value)) if value.dtype == np.float32 else value.item()
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an int of {value.bit_length()} bits"
    return value
