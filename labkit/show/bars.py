"""Show the bytes that each rank holds, by kind, beside what a formula says, for `lab.bars`. No torch, no cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from labkit.floor.words import listed, nbytes
from labkit.plot import bars
from labkit.show.picture import EachRank


class Bars(EachRank):
    """Each rank's bytes as a stacked bar; its text has the same figures.

    `bytes[name][r]` is rank r's dict, `totals[name][r]` its sum, `formula[name][r]` what a formula says for it.
    """

    what = "Bytes that each rank holds, a stacked bar for each rank."

    def __init__(self, held: Mapping[str, Sequence[Any]], formula: Mapping[str, Any] | None = None) -> None:
        self.bytes = {name: [_sizes(name, r, mine) for r, mine in enumerate(ranks)] for name, ranks in held.items()}
        self.totals = {name: [sum(mine.values()) for mine in ranks] for name, ranks in self.bytes.items()}
        if not isinstance(formula or {}, Mapping):
            raise LabError(f"formula={formula!r} is not a dict. Give bytes by expression: {{'ddp': 4 * 12444}}.")
        self.formula = {name: self._said_by(name, value) for name, value in (formula or {}).items()}

    def _said_by(self, name: str, value: Any) -> list[float]:
        if name not in self.bytes:
            drawn = listed([repr(n) for n in self.bytes])
            raise LabError(f"formula has {name!r}, but the picture draws {drawn}. Use the same names in both.")
        ranks = len(self.bytes[name])
        each = list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value] * ranks
        if len(each) != ranks or not all(map(_is_size, each)):
            raise LabError(
                f"formula[{name!r}]={value!r} is not a number of bytes. Give one, 0 or more, for every rank, "
                f"or a list with one for each of the {ranks} ranks."
            )
        return [float(size) for size in each]

    @property
    def says(self) -> dict[str, dict[int, str]]:
        return {name: {r: _said(mine) for r, mine in enumerate(ranks)} for name, ranks in self.bytes.items()}

    def _heading(self, name: str) -> str:
        if name not in self.formula:
            return name
        sizes = [nbytes(size) for size in self.formula[name]]
        one = len(set(sizes)) == 1
        return f"{name} · the formula says {sizes[0] if one else listed(sizes)} per rank"

    def _drawn(self) -> Any:
        return bars.draw([bars.Held(name, ranks, self.formula.get(name)) for name, ranks in self.bytes.items()])


def _is_size(value: Any) -> bool:
    """Tell whether a value is a number of bytes."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, (bool, str, bytes)) and math.isfinite(number) and number >= 0


def _sizes(name: str, rank: int, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise LabError(
            f"{name!r} on rank {rank} is a {type(value).__name__}, not a dict of bytes by kind. "
            f"Make one, such as {name if name.isidentifier() else 'held'} = footprint(model, optimizer)."
        )
    for kind, size in value.items():
        if not _is_size(size):
            raise LabError(
                f"{name}[{kind!r}] on rank {rank} is {size!r}, which is not a number of bytes. Keep numbers, 0 or "
                "more, as footprint(model, optimizer) does."
            )
    return {str(kind): float(size) for kind, size in value.items()}


def _said(mine: Mapping[str, float]) -> str:
    parts = ", ".join(f"{kind} {nbytes(size)}" for kind, size in mine.items())
    total = nbytes(sum(mine.values()))
    return f"{total}: {parts}" if parts else total
