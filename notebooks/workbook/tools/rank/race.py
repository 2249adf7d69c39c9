"""One turn of a contestant in a race, on this rank; `workbook.tools.race.measure` says whose turn it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.rank.clock import timed
from labkit.rank.copies import shell

ODD = ((1, "float32"), (5, "float32"), (4097, "float32"), (7, "int64"), (13, "float64"), (257, "float16"))
AGAIN = 3  # calls in a row with fresh numbers: a slot that is used again too early shows in the second
LARGE = 2**19  # elements: so many are tried once

_contestants: dict[str, Callable[[torch.Tensor], Any]] = {}
_buffer: torch.Tensor | None = None
_copy: torch.Tensor | None = None


def enter(codes: Sequence[str], copy: str) -> None:
    """Make a function of x of each expression, in the learner's namespace; `copy` names the one that copies."""
    for code in codes:
        _contestants[code] = eval(compile(f"lambda x: {code}", "<race>", "eval"), shell().user_ns)
    _contestants[copy] = _copied


def leave() -> None:
    """Free functions and buffers."""
    global _buffer, _copy
    _contestants.clear()
    _buffer = _copy = None


def odd(name: str) -> str:
    """Try a contestant on odd lengths and other dtypes; return what was wrong first, on any rank, or ""."""
    for elements, dtype in ODD:
        if why := _tried(name, elements, getattr(torch, dtype)):
            return f"{elements} × {dtype}: {why}"
    return ""


def turn(
    name: str, nbytes: int, dtype: str, repeat: int, calls: int, check: bool
) -> tuple[str, int, list[tuple[float, ...]]]:
    """Time a contestant on zeros of so many bytes; return why it does not count, the calls, samples[i][r] in seconds.

    0 calls: as many as `timed` finds enough. `check` holds results against the sum first, outside the clock.
    """
    global _buffer, _copy
    kind = getattr(torch, dtype)
    elements = max(1, nbytes // kind.itemsize)
    if check and (why := _tried(name, elements, kind)):
        return why, 0, []
    if _buffer is None or (len(_buffer), _buffer.dtype) != (elements, kind):
        _buffer, _copy = (torch.empty(elements, dtype=kind).fill_(0) for _ in range(2))
    x, call = _buffer, _contestants[name]
    timing = timed(lambda: call(x), warmup=1 if calls else 3, repeat=repeat, calls=calls or None)
    return "", timing.calls, list(timing.samples)


def _copied(x: torch.Tensor) -> None:
    assert _copy is not None
    _copy.copy_(x)


def _tried(name: str, elements: int, dtype: torch.dtype) -> str:
    """Call it a few times on fresh numbers; return what was wrong on any rank, the same on all of them.

    It may work in place or return the sum.
    """
    if _contestants[name] is _copied:
        return ""
    n, me = dist.get_world_size(), dist.get_rank()
    why = ""
    for k in range(AGAIN if elements < LARGE else 1):
        few = (torch.arange(11) + k) % 11
        x, wanted = (t.to(dtype).repeat(elements // 11 + 1)[:elements] for t in (few + me, n * few + n * (n - 1) // 2))
        try:
            out = _contestants[name](x)
            got = out if isinstance(out, torch.Tensor) else x
            why = why or _difference(got, wanted)
        except Exception as error:
            why = why or f"{type(error).__name__}: {error}"
            break
    told: list[str] = [""] * n
    dist.all_gather_object(told, why)
    return next((f"rank {r}: {text}" for r, text in enumerate(told) if text), "")


def _difference(got: torch.Tensor, wanted: torch.Tensor) -> str:
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return f"it ends with {tuple(got.shape)} of {str(got.dtype).removeprefix('torch.')}"
    if torch.equal(got, wanted):
        return ""
    at = int((got != wanted).nonzero()[0])
    return f"element {at} is {got[at].item():g}, and the sum is {wanted[at].item():g}"
