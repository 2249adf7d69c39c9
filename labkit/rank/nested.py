"""Find the tensors inside a value."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in a value: itself, those in lists, tuples and dicts, a module's parameters and buffers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from chain(value.parameters(), value.buffers())
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors(one)
