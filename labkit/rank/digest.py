"""Hash all of a value in a short digest: equal on two ranks exactly if they hold the same. Runs on an engine.

Nothing here calls a collective: a distributed tensor counts with its local part, a module with its parameters
and buffers, not with `state_dict`, in which some wrappers gather.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

LEAVES = 200_000  # of a nested Python value; what comes after them is not read
DEPTH = 20  # a list may contain itself


def digest(value: Any) -> str:
    """Hash the content, types and shapes included, devices and addresses not.

    >>> digest(torch.ones(3)) == digest(torch.ones(3)), digest(torch.ones(3)) == digest(torch.ones(4))
    (True, False)
    """
    seen = hashlib.blake2b(digest_size=8)
    for piece in islice(_pieces(value, DEPTH), LEAVES):
        seen.update(piece)
        seen.update(b"\0")
    return seen.hexdigest()


def inside(value: Any) -> list[tuple[str | None, Any]] | None:
    """List what a container holds, each with its name if it has one; None for what is not a container."""
    if isinstance(value, dict):
        return [(one_line(k), v) for k, v in value.items()]
    if isinstance(value, torch.nn.Module):
        return [*value.named_parameters(), *value.named_buffers()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=False))
    if isinstance(value, (list, tuple)):
        return [(None, v) for v in value]
    if isinstance(value, (set, frozenset)):
        return [(None, v) for v in sorted(value, key=one_line)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    return None


def local(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor's data on this rank, without its graph; of a distributed tensor its local part."""
    value = value.detach()
    return value.to_local() if hasattr(value, "to_local") else value


def one_line(value: Any, length: int = 80) -> str:
    """Write an object's `repr`, or a text, on one line, without addresses."""
    try:
        text = value if isinstance(value, Message) else repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    text = re.sub(r"\b0x[0-9a-fA-F]{6,}", "0x…", " ".join(text.split()))
    return text if len(text) <= length else text[: length - 1] + "…"


class Message(str):
    """A text that is not a value and so is shown without quotes."""

    __slots__ = ()


def _pieces(value: Any, depth: int) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield from _tensor(value)
        return
    yield type(value).__name__.encode()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, (str, bytes, bytearray)):
        yield value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
    elif depth and (entries := inside(value)) is not None:
        if isinstance(value, dict):  # dicts are equal in any order
            entries.sort(key=lambda entry: entry[0] or "")
        for key, entry in entries:
            yield (key or "").encode("utf-8", "surrogatepass")
            yield from _pieces(entry, depth - 1)
        yield b"end"
    else:
        yield one_line(value, 2000).encode("utf-8", "surrogatepass")


def _tensor(value: torch.Tensor) -> Iterator[bytes]:
    yield f"{value.dtype}{tuple(value.shape)}".encode()
    try:
        data = local(value)
        if data.is_meta:
            return
        parts = [data]
        if data.layout == torch.sparse_coo:
            data = data.coalesce()
            parts = [data.indices(), data.values()]
        elif data.layout != torch.strided:
            parts = [data.to_sparse_coo().coalesce().indices(), data.values()]
        for part in parts:
            if part.is_quantized:
                part = part.int_repr()
            flat = part.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            yield flat.view(torch.uint8).numpy().tobytes()
    except (RuntimeError, NotImplementedError, TypeError) as error:
        yield type(error).__name__.encode()
