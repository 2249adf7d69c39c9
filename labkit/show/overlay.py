"""Show several expressions in one panel, for `lab.curves(…, overlay=True)`. No torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from labkit.floor.words import count, ranks
from labkit.plot import overlay as picture
from labkit.show.curves import Curves

FINE = 400  # points of a mean at most: more than that a picture does not show


class Overlay(Curves):
    """Lists of numbers from the ranks, one line per expression: where ranks differ, their mean in a shaded range.

    The mean is over the same place on the axis, where a rank's line lies between two of its values. It begins where all
    ranks have begun; a rank that has no more values counts with its last one.
    """

    def __init__(self, pulled: Mapping[str, Mapping[int, Any]], *how: Any, **more: Any) -> None:
        if len(pulled) > picture.MOST:
            raise LabError(
                f"{len(pulled)} lines cannot be told apart in one panel. Give {picture.MOST} expressions at most, "
                "or leave overlay=True out."
            )
        super().__init__(pulled, *how, **more)
        self.lines = {name: self._line(name) for name in self.values}

    def __repr__(self) -> str:
        width = max(map(len, self.values))
        return "\n".join([f"over {self._axis}", *(f"{n:<{width}} │ {self._told(n)}" for n in self.values)])

    def _drawn(self) -> Any:
        along = self._axis if self.over or self.xlabel else "step"
        return picture.draw(list(self.lines.values()), along, self.ylabel)

    @property
    def alt(self) -> str:
        told = [f"{name}: {self._told(name)}" for name in self.values]
        return f"{self.up} over {self._axis}, a line per expression. {'. '.join(told)}."

    @property
    def _axis(self) -> str:
        return self.axis(*self.values)

    def _line(self, name: str) -> picture.Line:
        lines, places = self.values[name], self.places[name]
        first = next(iter(lines))
        if set(self.alike(name).values()) == {first}:
            note = f"{ranks(lines)}{' alike' * (len(lines) > 1)}{self._lost(name)}"
            return picture.Line(name, places[first], lines[first], None, note)
        begin, end = max(xs[0] for xs in places.values()), max(xs[-1] for xs in places.values())
        grid = np.unique(np.clip(np.concatenate([*places.values()]), begin, end))
        if len(grid) > FINE:
            grid = np.linspace(begin, end, FINE)
        held = np.array([np.interp(grid, places[r], lines[r]) for r in lines])
        with warnings.catch_warnings():  # a loss that is infinite on one rank and not on another
            warnings.simplefilter("ignore", RuntimeWarning)
            mean = held.mean(0).tolist()
        note = f"mean of {ranks(lines)}, shaded from lowest to highest{self._lost(name)}"
        return picture.Line(name, grid.tolist(), mean, (held.min(0).tolist(), held.max(0).tolist()), note)

    def _told(self, name: str) -> str:
        line, lines = self.lines[name], self.values[name]
        said = f"{line.ys[0]:.2f} → {line.ys[-1]:.2f}"
        if line.band is not None:
            low, high = (ends[-1] for ends in line.band)
            said += f" on average, at the end {low:.2f} to {high:.2f}"
        lengths = sorted({len(own) for own in lines.values()})
        many = count(lengths[0], "value") if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,} values"
        where = f", {self.reach(line.xs)}" if self.over else ""
        return f"{said} ({many}{where}) · {line.note}"
