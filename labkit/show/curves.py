"""What `lab.curves` returns: what every rank recorded over its steps, as a picture and as text. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.plot import curves as picture
from labkit.plot import svg
from labkit.words import alike, count, ranks

NEAR = 1e-3  # lines that differ by less than this part of a value are drawn as one, and called one


class Curves:
    """Lists of numbers from the ranks; `values[expression][r]` is rank r's."""

    def __init__(self, pulled: Mapping[str, Mapping[int, Any]], every: int = 1) -> None:
        self.values = {name: {r: _numbers(name, r, v) for r, v in held.items()} for name, held in pulled.items()}
        self.every = every

    def __repr__(self) -> str:
        width = max(len(f"rank {r}") for lines in self.values.values() for r in lines)
        told = []
        for name, lines in self.values.items():
            told.append(f"{name} · {self._note(lines)}")
            told += [f"{f'rank {r}':<{width}} │ {_ends(line)}" for r, line in lines.items()]
        return "\n".join(told)

    def _repr_html_(self) -> str:
        return svg.img(self.svg, self.alt)

    @property
    def svg(self) -> bytes:
        """The picture."""
        panels = [(name, lines, self._note(lines)) for name, lines in self.values.items()]
        return svg.svg(picture.draw(picture.axes(panels), panels, self.every))

    @property
    def alt(self) -> str:
        """The picture in words."""
        told = [
            f"{name}, {self._note(lines)}: " + "; ".join(f"rank {r} {_ends(line)}" for r, line in lines.items())
            for name, lines in self.values.items()
        ]
        return f"Values over steps, a line a rank. {'. '.join(told)}."

    def _note(self, lines: Mapping[int, Sequence[float]]) -> str:
        """How many different lines there are, and where one stops being a number."""
        first = {r: next(q for q in lines if _near(lines[q], line)) for r, line in lines.items()}
        groups = list(alike({r: str(q) for r, q in first.items()}).values())
        lost = [r for r, line in lines.items() if not all(map(math.isfinite, line))]
        if len(groups) == 1:
            said = f"{ranks(lines)}: one curve" if len(lines) > 1 else ranks(lines)
        else:
            together = [f"{ranks(group)} alike" for group in groups if len(group) > 1]
            said = ", ".join([count(len(groups), "different curve"), *together])
        return said + f"; {ranks(lost)}: not all of it finite" * bool(lost)


def _numbers(name: str, rank: int, value: Any) -> list[float]:
    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        numbers = np.empty(())
    if numbers.ndim != 1 or not numbers.size:
        raise LabError(
            f"{name!r} on rank {rank} is no list of numbers to draw. Append one number a step, such as loss.item()."
        )
    return [float(number) for number in numbers]


def _near(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and bool(np.allclose(one, other, rtol=NEAR, atol=0, equal_nan=True))


def _ends(line: Sequence[float]) -> str:
    return f"{line[0]:.2f} → {line[-1]:.2f} ({count(len(line), 'value')})"
