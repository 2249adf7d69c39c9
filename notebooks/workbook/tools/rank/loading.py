"""What lesson 13f loads and measures with: a model with a buffer, a meter of memory, and scores from slices.

    from workbook.tools.rank.loading import Primed, meter, scores_from_slices

    with meter("everyone reads"):
        model = Primed()

Memory is what Linux counts of this process; without `/proc` nothing is told.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from labkit.rank import comms, tiny

__all__ = ["Primed", "kib", "loss_of", "meter", "scores_from_slices", "trained"]

linear, norm = torch.nn.functional.linear, torch.nn.functional.layer_norm


class Primed(tiny.Transformer):
    """The small transformer with six layers, and a buffer that it adds to its scores: logarithms of frequencies."""

    prior: torch.Tensor

    def __init__(self, layers: int = 6, width: int = 240, heads: int = 12) -> None:
        super().__init__(layers, width, heads)
        self.register_buffer("prior", torch.zeros(36))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return super().forward(text) + self.prior


def loss_of(model: torch.nn.Module) -> float:
    """Return the mean loss on some text that no batch holds."""
    with torch.no_grad():
        return round(tiny.loss(model, tiny.validation(size=60)).item(), 4)


def trained(device: torch.device, steps: int = 8) -> Primed:
    """Return a model after some training steps, in this process alone."""
    torch.manual_seed(0)
    model = Primed().to(device)
    model.prior.copy_((torch.bincount(tiny.batch(0)[1], minlength=36) + 1).log())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for step in range(steps):
        optimizer.zero_grad()
        tiny.loss(model, tiny.batch(step, size=48)).backward()
        optimizer.step()
    return model


def _mib(file: str, key: str) -> float:
    (line,) = [x for x in Path("/proc/self", file).read_text().splitlines() if x.startswith(f"{key}:")]
    return int(line.split()[1]) / (2**10 if line.endswith("kB") else 2**20)


def kib(key: str) -> int:
    """Return how many KiB this process has read, by Linux's "rchar" or "read_bytes"; 0 where it counts nothing."""
    return int(_mib("io", key) * 2**10) if Path("/proc/self/io").exists() else 0


def _counters() -> tuple[float, float, float]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # give back what is free
    return _mib("status", "VmRSS"), _mib("status", "RssAnon"), _mib("io", "rchar")


@contextmanager
def meter(way: str) -> Iterator[dict[str, float]]:
    """Print how much more memory this way took at its peak and keeps, and what it read; yield the peak, in bytes."""
    peak: dict[str, float] = {"its own": 0, "mapped file": 0}  # to be filled in
    if not Path("/proc/self/clear_refs").exists():
        yield peak
        return
    held, own, read = _counters()
    Path("/proc/self/clear_refs").write_text("5")  # the highest begins anew
    yield peak
    most, (held_now, own_now, read_now) = _mib("status", "VmHWM") - held, _counters()
    mapped = max(0, held_now - own_now - (held - own))
    peak |= {"its own": 2**20 * max(0, most - mapped), "mapped file": 2**20 * mapped}
    kept, got = own_now - own, read_now - read
    print(f"{way}: {most:.1f} MiB more at the peak, {kept:.1f} MiB of its own afterwards; {got:.1f} MiB read")


def scores_from_slices(mine: Mapping[str, torch.Tensor], text: torch.Tensor, width: int = 240) -> torch.Tensor:
    """Return the model's scores, computed from each rank's slices: an all-reduce follows each row-parallel matrix."""

    def attend(x: torch.Tensor, w: Mapping[str, Any]) -> torch.Tensor:
        qkv = linear(x, w["qkv.weight"], w["qkv.bias"]).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (-1, 20)).transpose(1, 2) for t in qkv)  # my heads, of 20 numbers each
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        part = linear(seen.transpose(1, 2).flatten(-2), w["project.weight"])
        return comms.all_reduce(part) + w["project.bias"]

    def widen_and_narrow(x: torch.Tensor, w: Mapping[str, Any]) -> torch.Tensor:
        wide = torch.nn.functional.gelu(linear(x, w["widen.weight"], w["widen.bias"]))
        return comms.all_reduce(linear(wide, w["narrow.weight"])) + w["narrow.bias"]

    with torch.no_grad():
        x = mine["embedding.weight"][text] + mine["position.weight"]
        for block in (f"blocks.{i}." for i in range(6)):
            w = {name.removeprefix(block): t for name, t in mine.items() if name.startswith(block)}
            x = x + attend(norm(x, (width,), w["norm1.weight"], w["norm1.bias"]), w)
            x = x + widen_and_narrow(norm(x, (width,), w["norm2.weight"], w["norm2.bias"]), w)
        x = norm(x[:, -1], (width,), mine["norm.weight"], mine["norm.bias"])
        return linear(x, mine["output.weight"], mine["output.bias"]) + mine["prior"]
